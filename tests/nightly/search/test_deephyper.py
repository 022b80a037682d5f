"""The advisor of DeepHyper, where that is installed: pip install 'farandole[deephyper]'."""

from __future__ import annotations

import importlib.util
import statistics
from pathlib import Path

import pytest

import farandole
from farandole.errors import UsageError
from farandole.search.advisor import Advisor, TrialResult
from farandole.search.deephyper_advisor import DeepHyperAdvisor
from farandole.search.optuna_advisor import OptunaAdvisor
from farandole.search.space import Space
from farandole.testing.advisor_contract import run_advisor_contract

IS_THERE = importlib.util.find_spec("deephyper") is not None
if IS_THERE:
    importlib.import_module("deephyper.hpo")  # here: it sets variables of OpenMP, and a test may set none
needs_deephyper = pytest.mark.skipif(not IS_THERE, reason="DeepHyper is not installed")

SPACE = Space.of(
    {
        "lr": {"low": 1e-4, "high": 1.0, "log": True},
        "n": (1, 9),
        "kind": ["a", True, 3],
        "step": {"low": 0.5, "high": 2.0, "step": 0.25},
        "one": (3, 3),
    }
)


@needs_deephyper
def test_contract() -> None:
    wrong = {
        case: text for case, text in run_advisor_contract(lambda: DeepHyperAdvisor(SPACE, 3), SPACE).items() if text
    }
    assert not wrong, "\n".join(wrong.values())


@needs_deephyper
def test_trials_asked_for_at_the_same_time_differ() -> None:
    advisor, asked = DeepHyperAdvisor(SPACE, seed=3), []
    for number in range(16):
        asked.append(advisor.ask(number))
        assert asked[-1]
        advisor.tell(TrialResult(number, asked[-1]))
    assert len({str(each) for each in asked}) == 16


@needs_deephyper
def test_it_learns_where_random_does_not() -> None:
    space = Space.of({"x": (-5.0, 5.0), "y": (-5.0, 5.0)})

    def best_of(advisor: Advisor) -> float:
        values = []
        for number in range(30):
            asked = advisor.ask(number)
            assert asked
            values.append((float(asked["x"]) - 1) ** 2 + (float(asked["y"]) + 2) ** 2)
            advisor.tell(TrialResult(number, asked, {1: values[-1]}, "complete"))
        return min(values)

    learnt = statistics.median(best_of(DeepHyperAdvisor(space, seed)) for seed in range(3))
    assert learnt < statistics.median(best_of(OptunaAdvisor(space, "random", seed)) for seed in range(3))


@pytest.mark.skipif(IS_THERE, reason="DeepHyper is installed")
def test_where_it_is_missing_the_search_says_what_to_type(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"pip install 'farandole\[deephyper\]'"):
        farandole.search(print, SPACE, folder=tmp_path, advisor="cbo")
