"""Advisors, by the contract and by what they are for."""

from __future__ import annotations

import logging
import random
import statistics
from collections.abc import Callable

import optuna
import pytest
from optuna.trial import create_trial

from farandole.errors import UsageError
from farandole.search.advisor import Advisor, FixedList, Parameters, TrialResult
from farandole.search.optuna_advisor import OptunaAdvisor, quiet
from farandole.search.space import Space
from farandole.testing.advisor_contract import run_advisor_contract

SPACE = Space.of({"lr": {"low": 1e-4, "high": 1.0, "log": True}, "n": (1, 9), "kind": ["a", True, 3]})
LIST: list[Parameters] = [{"lr": 0.1, "n": n, "kind": "a"} for n in range(1, 6)]

ADVISORS: dict[str, Callable[[], Advisor]] = {
    "random": lambda: OptunaAdvisor(SPACE, "random", seed=3),
    "tpe": lambda: OptunaAdvisor(SPACE, "tpe", seed=3),
    "list": lambda: FixedList(LIST),
}


@pytest.mark.parametrize("name", ADVISORS)
def test_contract(name: str) -> None:
    wrong = {case: text for case, text in run_advisor_contract(ADVISORS[name], SPACE).items() if text}
    assert not wrong, "\n".join(wrong.values())


def test_the_contract_finds_an_advisor_that_forgets() -> None:
    class Counting(Advisor):
        def __init__(self) -> None:
            self.asked = 0

        def ask(self, number: int) -> Parameters | None:
            self.asked += 1
            return {"lr": 0.1, "n": self.asked % 9 + 1, "kind": "a"}

        def tell(self, outcome: TrialResult) -> None:
            pass

    found = run_advisor_contract(Counting, SPACE)
    assert found["a_crash_changes_no_proposal"]
    assert not found["proposals_are_in_the_space"]


@pytest.mark.parametrize("method", ["random", "tpe"])
def test_proposals_are_those_of_a_study_of_optuna_that_is_told_all(method: str) -> None:
    advisor, chance = OptunaAdvisor(SPACE, method, seed=5), random.Random(1)
    with quiet():
        for number in range(40):
            study = optuna.create_study(sampler=advisor._sampler(number))
            known = [advisor._known[each] for each in sorted(advisor._known)]
            study.add_trials([create_trial(**{name: getattr(each, name) for name in GIVEN}) for each in known])
            asked = advisor.ask(number)
            assert asked == study.ask(advisor._distributions).params
            for again in {number, chance.randrange(number + 1)}:  # some go on after a pause
                values = {epoch: chance.random() for epoch in range(1, chance.randrange(1, 4))}
                phase = chance.choice(["running", "paused", "pruned", "complete", "failed"])
                told = advisor._known[again].params if again in advisor._known else asked
                advisor.tell(TrialResult(again, told, values, phase))  # type: ignore[arg-type] # a Phase


GIVEN = ("state", "value", "params", "distributions", "intermediate_values")


def best_of(method: str, seed: int) -> float:
    space = Space.of({"x": (-5.0, 5.0), "y": (-5.0, 5.0)})
    advisor, values = OptunaAdvisor(space, method, seed), []
    for number in range(30):
        asked = advisor.ask(number)
        assert asked
        values.append((float(asked["x"]) - 1) ** 2 + (float(asked["y"]) + 2) ** 2)
        advisor.tell(TrialResult(number, asked, {1: values[-1]}, "complete"))
    return min(values)


def test_tpe_learns_where_random_does_not() -> None:
    learnt = statistics.median(best_of("tpe", seed) for seed in range(3))
    assert learnt < statistics.median(best_of("random", seed) for seed in range(3))


def test_trials_asked_for_at_the_same_time_differ() -> None:
    advisor = ADVISORS["tpe"]()
    asked = []
    for number in range(16):
        asked.append(advisor.ask(number))
        assert asked[-1]
        advisor.tell(TrialResult(number, asked[-1]))
    assert len({str(each) for each in asked}) == 16


def test_a_list_ends_and_is_checked() -> None:
    advisor = FixedList(LIST)
    assert [advisor.ask(n) for n in range(6)] == [*LIST, None]
    with pytest.raises(UsageError, match="n=9"):
        FixedList([{"lr": 0.1, "n": 9.5, "kind": "a"}]).check(SPACE)
    with pytest.raises(UsageError, match="at least one"):
        FixedList([])


def test_unknown_methods_are_refused_and_optuna_says_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError, match="random, tpe"):
        OptunaAdvisor(SPACE, "grid")
    level = logging.getLogger("optuna").level
    ADVISORS["tpe"]().ask(0)
    assert logging.getLogger("optuna").level == level
    assert capfd.readouterr() == ("", "")
