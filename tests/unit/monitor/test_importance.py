"""What is told of how much a hyper-parameter matters."""

from __future__ import annotations

import math
import random
from typing import Any

import optuna.importance  # what it loads sets variables of the environment, which no test may
import pytest

from farandole.monitor.folder import RunInfo, TrialRecord
from farandole.monitor.hub import Hub
from farandole.monitor.importance import LEAST_TRIALS, ValuesAtFirstRung, importance

assert optuna.importance

SPACE: dict[str, dict[str, Any]] = {
    "lr": {"low": 1e-4, "high": 1.0, "log": True, "step": 0.0, "whole": False},
    "n": {"low": 1.0, "high": 9.0, "log": False, "step": 0.0, "whole": True},
    "kind": {"choices": ["a", True, 3]},
}


def played(count: int, *, minimize: bool = True) -> list[tuple[dict[str, Any], float]]:
    chance, found = random.Random(1), []
    for _ in range(count):
        params: dict[str, Any] = {
            "lr": 10 ** chance.uniform(-4, 0),
            "n": chance.randint(1, 9),
            "kind": chance.choice(["a", True, 3]),
        }
        found.append((params, (1 if minimize else -1) * (math.log10(params["lr"]) + 2) ** 2))
    return found


@pytest.mark.parametrize("minimize", [True, False])
def test_what_decides_alone_is_the_most_important(minimize: bool) -> None:
    trials = [*played(60, minimize=minimize), ({"lr": 0.1, "n": 1, "kind": "a"}, math.nan)]
    found = importance(ValuesAtFirstRung(SPACE, 1, minimize, trials))
    assert next(iter(found)) == "lr"
    assert found["lr"] > 0.7
    assert sum(found.values()) == pytest.approx(1.0)


def test_of_few_trials_or_equal_ones_nothing_is_told() -> None:
    assert importance(ValuesAtFirstRung(SPACE, 1, True, played(LEAST_TRIALS - 1))) == {}
    equal = [(params, 0.5) for params, _ in played(20)]
    assert importance(ValuesAtFirstRung(SPACE, 1, True, equal)) == {}


def test_trials_are_compared_where_all_have_been() -> None:
    asked = {"space": {"parameters": SPACE}, "rungs": {"levels": [2, 6], "reduction": 3}}
    hub = Hub(RunInfo(0.0, [], search={"minimize": False}, asked=asked))
    params: dict[str, Any] = {"lr": 0.1, "n": 1, "kind": "a"}
    for number, points in enumerate(([(1, 0.9)], [(1, 0.9), (2, 0.5), (6, 0.1)], [(3, 0.4)])):
        hub.add_record(TrialRecord(1.0, number, "running", params, points=points))
    assert hub.at_first_rung() == ValuesAtFirstRung(SPACE, 2, False, [(params, 0.5), (params, 0.4)])
