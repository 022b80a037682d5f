"""Studies without processes: whatever is interrupted, the log says enough to go on."""

from __future__ import annotations

import math
import random
from collections import Counter
from pathlib import Path
from typing import final

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farandole.search.advisor import Advisor, Parameters, TrialResult
from farandole.search.optuna_advisor import OptunaAdvisor
from farandole.search.rungs import Rungs
from farandole.search.space import Space
from farandole.search.study import ATTEMPTS, Study, StudyPlan, StudyTrial
from farandole.search.trial_log import TrialLog

SPACE = Space.of({"x": (0.0, 1.0)})
PLAN = StudyPlan(SPACE, 9, Rungs.of(1, 9, 3), minimize=True, seed=1)


def make(path: Path, plan: StudyPlan = PLAN) -> tuple[Study, TrialLog]:
    """A study of what the log has, and the log."""
    log = TrialLog(path / "trials.log", "test", minimize=plan.minimize)
    return Study(plan, log, OptunaAdvisor(plan.space, "random", plan.seed)), log


@final
class Told(Advisor):
    """Advisor of chosen trials that keeps what it is told."""

    def __init__(self, trials: list[Parameters]) -> None:
        self.trials, self.told = trials, list[TrialResult]()

    def ask(self, number: int) -> Parameters | None:
        return self.trials[number]

    def tell(self, outcome: TrialResult) -> None:
        self.told.append(outcome)


def loss(study: Study, number: int, epoch: int) -> float:
    return float(study.rows[number].parameters["x"]) + 1 / epoch


@given(seed=st.integers(0, 10**6), workers=st.integers(1, 4), crash=st.floats(0, 0.2))
def test_a_study_that_crashes_again_and_again_has_each_trial_once(
    tmp_path_factory: pytest.TempPathFactory, seed: int, workers: int, crash: float
) -> None:
    chance, path = random.Random(seed), tmp_path_factory.mktemp("study")
    study, log = make(path)
    active: dict[int, int] = {}  # to the epoch that it has done
    saved: dict[int, int] = {}  # to the last rung that it has a checkpoint of
    crashes = 0
    while not study.is_over:
        while len(active) < workers and (number := study.next()[0]) is not None:
            assert number not in active
            active[number] = saved.get(number, 0)
        number = chance.choice(sorted(active))
        epoch = active[number] = active[number] + 1
        saved[number] = epoch if epoch in PLAN.rungs.levels else saved.get(number, 0)
        if not study.report(number, epoch, loss(study, number, epoch))[0]:
            del active[number]
            study.released(number)
        if chance.random() < crash and crashes < 5:
            log.close()
            study, log = make(path)
            active, crashes = {}, crashes + 1
    study.close()
    phases = Counter(row.phase for row in study.rows)
    assert [row.number for row in study.rows] == list(range(9))
    assert phases.keys() == {"complete", "pruned"}
    for row in study.rows:
        assert row.values == {n: loss(study, row.number, n) for n in range(1, row.epoch + 1)}
    log.close()
    again, log = make(path)
    assert again.is_over
    assert [(row.phase, row.values) for row in again.rows] == [(row.phase, row.values) for row in study.rows]
    log.close()


@pytest.mark.parametrize("minimize", [True, False])
@pytest.mark.parametrize("diverged", [math.nan, math.inf, -math.inf])
def test_a_trial_that_diverges_takes_the_place_of_no_other(tmp_path: Path, diverged: float, minimize: bool) -> None:
    """The second and best of nine diverges at its second epoch: the best of the others trains to the end."""
    values = [0.9, 0.1, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2]
    advisor = Told([{"x": value} for value in values])
    plan = msgspec.structs.replace(PLAN, minimize=minimize)
    with TrialLog(tmp_path / "trials.log", "test", minimize=minimize) as log:
        study = Study(plan, log, advisor)
        while (number := study.next()[0]) is not None:
            for epoch in range(study.rows[number].epoch + 1, 10):
                value = (values[number] + 1 / epoch) * (1 if minimize else -1)
                if not study.report(number, epoch, diverged if (number, epoch >= 2) == (1, True) else value)[0]:
                    break
            study.released(number)
        assert study.best is study.rows[8]
    assert all(
        value == math.inf for each in advisor.told if each.number == 1 for value in list(each.values.values())[1:]
    )


def test_a_trial_that_loses_its_workers_too_often_has_failed(tmp_path: Path) -> None:
    study, log = make(tmp_path)
    for _ in range(ATTEMPTS + 1):
        assert study.next()[0] == 0
        study.released(0, lost="out of memory")
    assert (study.rows[0].phase, study.next()[0]) == ("failed", 1)
    assert "4 times; the last time: out of memory" in study.rows[0].why
    log.close()


def test_losses_count_only_in_a_row(tmp_path: Path) -> None:
    plan = StudyPlan(SPACE, 1, Rungs.of(9, 9), minimize=True, seed=1)
    study, log = make(tmp_path, plan)
    for epoch in range(1, 9):
        assert study.next()[0] == 0
        assert study.report(0, epoch, 0.5)[0]
        study.released(0, lost="its node was taken")
    for _ in range(ATTEMPTS):
        assert study.rows[0].phase == "running"
        study.next()
        study.report(0, 8, 0.5)  # said again: it came no further
        study.released(0, lost="its node was taken")
    assert study.rows[0].phase == "failed"
    log.close()


def test_a_trial_is_repeated_beside_the_planned_ones(tmp_path: Path) -> None:
    study, log = make(tmp_path)
    study.next()
    study.failed(0, "its host was lost")
    assert study.repeat(0) == 1
    log.close()
    study, log = make(tmp_path)  # the log knows it
    planned, repeated = study.rows
    assert (repeated.parameters, repeated.again, repeated.phase) == (planned.parameters, 0, "running")
    assert repeated.seed != planned.seed
    assert study.next() == (1, "it repeats trial 0")
    while (number := study.next()[0]) is not None:
        assert study.rows[number].again < 0
    assert len(study.rows) == PLAN.trials + 1
    assert len({row.parameters["x"] for row in study.rows}) == PLAN.trials
    log.close()


def test_a_report_that_is_said_again_changes_nothing(tmp_path: Path) -> None:
    study, log = make(tmp_path)
    study.next()
    first = study.report(0, 1, 0.5)
    assert study.report(0, 1, 0.5)[0] == first[0] is False
    assert study.rows[0].phase == "paused"
    log.close()


def test_an_end_that_was_the_entry_lost_is_made_good(tmp_path: Path) -> None:
    study, log = make(tmp_path, StudyPlan(SPACE, 1, Rungs.of(1, 1), minimize=False, seed=1))
    study.next()
    assert study.report(0, 1, 0.5) == (False, "all 1 epochs are trained")
    log.close()
    path = tmp_path / "trials.log"
    path.write_bytes(path.read_bytes()[:-20])
    study, log = make(tmp_path, study.plan)
    assert study.is_over
    assert study.best is not None
    assert study.best.value == 0.5
    log.close()


def test_of_many_trials_a_report_looks_anew_at_the_one_that_reports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study, log = make(tmp_path, msgspec.structs.replace(PLAN, trials=60))
    looked: list[int] = []
    losses = Study._losses_at_rungs

    def looking(own: Study, row: StudyTrial) -> tuple[float, ...]:
        looked.append(row.number)
        return losses(own, row)

    monkeypatch.setattr(Study, "_losses_at_rungs", looking)
    while (number := study.next()[0]) is not None and len(study.rows) < 60:
        for epoch in range(study.rows[number].epoch + 1, 10):
            looked.clear()
            is_on = study.report(number, epoch, loss(study, number, epoch))[0]
            assert study.waiting
            assert study.rung(study.rows[number])
            assert set(looked) <= {number}
            if not is_on:
                break
        study.released(number)
    log.close()


def test_a_stopped_trial_never_goes_on(tmp_path: Path) -> None:
    study, log = make(tmp_path)
    study.next()
    study.stop(0, "somebody said so")
    assert study.report(0, 1, 0.0) == (False, "somebody said so")
    study.released(0)
    assert study.next()[0] == 1
    log.close()


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_stopped_trial_counts_with_what_it_reports_until_it_has_left(tmp_path: Path, is_killed: bool) -> None:
    study, log = make(tmp_path)
    study.next()
    study.report(0, 1, 0.8)
    study.stop(0, "somebody said so")
    assert study.report(0, 2, 0.3) == (False, "somebody said so")
    study.report(0, 1, 0.8)  # said again
    if is_killed:
        log.close()
        study, log = make(tmp_path)
    else:
        study.released(0)
    log.close()
    for _ in range(2):
        row = study.rows[0]
        assert (row.phase, row.why, row.values, row.value) == ("pruned", "somebody said so", {1: 0.8, 2: 0.3}, 0.3)
        study, log = make(tmp_path)
        log.close()


@pytest.mark.parametrize("how", ["reports", "returns"])
def test_a_stopped_trial_that_comes_to_its_end_is_complete(tmp_path: Path, how: str) -> None:
    study, log = make(tmp_path)
    study.next()
    study.stop(0, "somebody said so")
    if how == "reports":
        assert not study.report(0, 9, 0.3)[0]
    else:
        study.returned(0, 0.3)
    study.released(0)
    log.close()
    for _ in range(2):
        assert (study.rows[0].phase, study.rows[0].why, study.rows[0].value) == ("complete", "", 0.3)
        study, log = make(tmp_path)
        log.close()


def test_a_search_that_ends_before_a_stopped_trial_has_left_says_that_it_was_stopped(tmp_path: Path) -> None:
    study, log = make(tmp_path)
    study.next()
    study.report(0, 1, 0.8)
    study.stop(0, "somebody said so")
    study.close()
    assert log.trials()[0].phase == "pruned"
    log.close()


def test_a_search_that_is_larger_in_maximizing(tmp_path: Path) -> None:
    study, log = make(tmp_path, StudyPlan(SPACE, 3, Rungs.of(1, 3), minimize=False, seed=1))
    for number, value in enumerate((0.1, 0.9, 0.5)):
        assert study.next()[0] == number
        study.report(number, 1, value)
        study.released(number)
    assert study.next()[0] == 1
    log.close()


@given(seed=st.integers(0, 10**6), workers=st.integers(1, 3))
def test_whatever_somebody_pauses_and_resumes_each_epoch_is_there_once(
    tmp_path_factory: pytest.TempPathFactory, seed: int, workers: int
) -> None:
    """Trials that were paused by hand keep their last epoch, so none is trained twice."""
    chance, path = random.Random(seed), tmp_path_factory.mktemp("study")
    study, log = make(path)
    active: dict[int, int] = {}
    saved: dict[int, int] = {}
    orders = 40
    while not study.is_over:
        while len(active) < workers and (number := study.next()[0]) is not None:
            active[number] = saved.get(number, 0)
        if not active or (orders and chance.random() < 0.4):
            orders = max(0, orders - 1)
            study.is_paused = bool(orders) and chance.random() < 0.2
            for row in study.rows:
                row.is_held = row.phase == "running" and bool(orders) and chance.random() < 0.3
            continue
        number = chance.choice(sorted(active))
        epoch = active[number] = active[number] + 1
        assert epoch not in study.rows[number].values
        if not study.report(number, epoch, loss(study, number, epoch))[0]:
            saved[number] = active.pop(number)
            study.released(number)
    study.close()
    log.close()
    assert {row.phase for row in study.rows} == {"complete", "pruned"}
    assert len(study.rows) == PLAN.trials
