"""A search that is asked for more trials or epochs is what it would have been, asked for all of them at once."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import msgspec
import optuna
import pytest
from hypothesis import given
from hypothesis import strategies as st
from optuna.storages.journal import JournalFileBackend

from farandole.errors import UsageError
from farandole.search.optuna_advisor import quiet
from farandole.search.run_record import RunRecord
from farandole.search.rungs import Rungs
from farandole.search.study import Study, StudyPlan, to_reopen
from tests.unit.search.test_study import PLAN, loss, make


def grown(folder: Path, plan: StudyPlan, top: int) -> tuple[Study, Any]:
    """The study of a folder that is asked for more."""
    _, log = make(folder, plan)
    log.reopen(to_reopen(log.trials(), top, plan.rungs.levels[-1]))
    log.close()
    return make(folder, plan)


def play(study: Study, stop_after: float = math.inf) -> None:
    """Train all trials on one worker; or until so many reports were made."""
    while not study.is_over:
        number = study.next()[0]
        assert number is not None
        for epoch in range(study.rows[number].epoch + 1, study.plan.rungs.levels[-1] + 1):
            if stop_after <= 0:
                return
            stop_after -= 1
            if not study.report(number, epoch, loss(study, number, epoch), {"twice": 2.0 * epoch})[0]:
                break
        study.released(number)
    study.close()


def plan(trials: int, epochs: int, seed: int = 1) -> StudyPlan:
    return StudyPlan(PLAN.space, trials, Rungs.of(1, epochs, 3), minimize=True, seed=seed)


def outcome(study: Study) -> list[tuple[Any, ...]]:
    return [(row.parameters, row.seed, row.phase, row.values, row.metrics) for row in study.rows]


# Of nine trials one completes by its own right; of fewer the best does, which it might not among more.
@given(seed=st.integers(0, 10**6), first=st.integers(9, 17), stop_after=st.sampled_from([5.0, 20.0, math.inf]))
def test_trials_that_are_added_are_as_if_they_had_been_there(
    tmp_path_factory: pytest.TempPathFactory, seed: int, first: int, stop_after: float
) -> None:
    whole, log = make(tmp_path_factory.mktemp("whole"), plan(18, 9, seed))
    play(whole)
    log.close()
    folder = tmp_path_factory.mktemp("grown")
    study, log = make(folder, plan(first, 9, seed))
    play(study, stop_after)  # to its end, or it is stopped
    log.close()
    study, log = grown(folder, plan(18, 9, seed), 9)
    play(study)
    assert outcome(study) == outcome(whole)
    log.close()


@pytest.mark.parametrize(("first", "then"), [(9, 27), (3, 27), (1, 27), (10, 27), (9, 11)])
def test_epochs_that_are_added_are_trained_after_those_that_are_done(tmp_path: Path, first: int, then: int) -> None:
    study, log = make(tmp_path, plan(9, first))
    play(study)
    best = study.best
    assert best is not None
    before = {row.number: row.values for row in study.rows}
    log.close()
    study, log = grown(tmp_path, plan(9, then), first)
    assert study.rows[best.number].phase == "paused"
    play(study)
    assert study.best is not None
    assert study.best.epoch == then
    for row in study.rows:
        assert row.values == {epoch: loss(study, row.number, epoch) for epoch in range(1, row.epoch + 1)}
        assert row.values.items() >= before[row.number].items()
    log.close()


def test_more_epochs_are_what_they_would_have_been_at_once(tmp_path: Path) -> None:
    found = []
    for name, steps in (("whole", [27]), ("grown", [3, 9, 27])):
        (tmp_path / name).mkdir()
        top = 0
        for epochs in steps:
            study, log = (
                grown(tmp_path / name, plan(27, epochs), top) if top else make(tmp_path / name, plan(27, epochs))
            )
            play(study)
            found.append(outcome(study))
            log.close()
            top = epochs
    assert found[0] == found[-1]


def test_who_was_stopped_has_failed_or_has_had_enough_stays_so(tmp_path: Path) -> None:
    study, log = make(tmp_path, plan(4, 3))
    for number in range(4):
        study.next()
        if number == 0:
            study.stop(0, "stopped by a user")
        elif number == 1:
            study.failed(1, "it raised")
        elif number == 2:
            study.report(2, 1, 0.9)
        else:
            study.report(3, 1, 0.1)
        study.released(number)
    assert study.next()[0] == 3
    study.returned(3, None)  # before it has trained all: its loss did not fall any more, say
    study.released(3)
    study.close()
    assert to_reopen(log.trials(), 3, 9) == [2]
    log.close()


def test_optuna_reads_a_log_that_goes_on(tmp_path: Path) -> None:
    study, log = make(tmp_path, plan(9, 3))
    play(study)
    log.close()
    length = (tmp_path / "trials.log").stat().st_size
    study, log = grown(tmp_path, plan(9, 9), 3)
    assert (tmp_path / "trials.log").stat().st_size == length, "nothing but states was written over"
    play(study)
    log.close()
    assert all(json.loads(line) for line in (tmp_path / "trials.log").read_bytes().splitlines())
    with quiet():
        storage = optuna.storages.JournalStorage(JournalFileBackend(str(tmp_path / "trials.log")))
        read = optuna.load_study(study_name="test", storage=storage)
    assert study.best is not None
    assert (read.best_trial.number, read.best_value) == (study.best.number, study.best.value)
    assert {each.state.name for each in read.trials} == {"COMPLETE", "PRUNED"}


def test_a_record_says_from_where_a_search_grows(tmp_path: Path) -> None:
    def kept(trials: int, epochs: int, space: Any = PLAN.space) -> int:
        asked = {"space": space, "trials": trials, "rungs": Rungs.of(1, epochs, 3)}
        record, top = RunRecord(0.0, [], "", "", "", {}, {}, "", asked).keep(tmp_path / "run.json")
        record.write(tmp_path / "run.json")
        return top

    assert [kept(9, 9), kept(9, 9), kept(12, 9), kept(12, 27), kept(12, 27)] == [0, 0, 9, 9, 0]
    with pytest.raises(UsageError, match="trials=12, and now it is 9; epochs=27, and now it is 9: ask the same, with"):
        kept(9, 9)
    other = msgspec.structs.replace(PLAN.space.parameters["x"], high=2.0, log=True, step=0.5)
    with pytest.raises(UsageError, match=r"space\['x'\]=0.0 to 1.0, and now it is 0.0 to 2.0 \(log, step 0.5\): ask"):
        kept(12, 27, msgspec.structs.replace(PLAN.space, parameters={"x": other}))
