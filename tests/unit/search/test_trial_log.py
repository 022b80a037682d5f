"""``trials.log``: Optuna reads it, a torn tail costs one entry, and one process at a time writes it."""

from __future__ import annotations

import math
import os
from pathlib import Path

import optuna
import pytest
from hypothesis import given
from hypothesis import strategies as st
from optuna.storages.journal import JournalFileBackend

from farandole.errors import ControlError, UsageError
from farandole.search.optuna_advisor import quiet
from farandole.search.space import Space
from farandole.search.trial_log import LoggedTrial, TrialLog

SPACE = Space.of({"lr": {"low": 1e-4, "high": 1.0, "log": True}, "n": (1, 9), "kind": ["a", True, 3]})


def write(path: Path) -> list[LoggedTrial]:
    with TrialLog(path, "test", minimize=True) as log:
        for n in range(3):
            assert log.begin({"lr": 0.1, "n": n + 1, "kind": True}, SPACE, seed=n * 7, goal=1) == n
        log.report(0, 1, 0.5)
        log.report(0, 1, 0.25)
        log.go_on(0, 3)
        log.report(1, 1, math.nan)
        log.finish(1, "complete", math.nan)
        log.report(2, 1, 0.75)
        log.finish(2, "pruned", 0.75)
        log.report(0, 3, 0.125)
        log.finish(0, "complete", 0.125)
        return log.trials()


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    before = write(tmp_path / "trials.log")
    with TrialLog(tmp_path / "trials.log", "test", minimize=True) as log:
        assert str(log.trials()) == str(before)
        assert log.begin({"lr": 0.1, "n": 1, "kind": "a"}, SPACE, seed=1, goal=1) == 3
    first, second, third = before
    assert first == LoggedTrial(0, {"lr": 0.1, "n": 1, "kind": True}, 0, 3, {1: 0.25, 3: 0.125}, "complete")
    assert (second.phase, second.why, second.seed) == ("failed", "its value is nan", 7)
    assert (third.phase, third.values) == ("pruned", {1: 0.75})
    assert os.stat(tmp_path / "trials.log").st_mode & 0o777 == 0o600


def test_optuna_reads_it_while_it_is_written(tmp_path: Path) -> None:
    write(tmp_path / "trials.log")
    with TrialLog(tmp_path / "trials.log", "test", minimize=True) as log, quiet():
        log.begin({"lr": 0.1, "n": 1, "kind": "a"}, SPACE, seed=1, goal=1)
        storage = optuna.storages.JournalStorage(JournalFileBackend(str(tmp_path / "trials.log")))
        study = optuna.load_study(study_name="test", storage=storage)
        assert [trial.state.name for trial in study.trials] == ["COMPLETE", "FAIL", "PRUNED", "RUNNING"]
        assert (study.best_trial.number, study.best_value) == (0, 0.125)
        assert study.trials[0].params == {"lr": 0.1, "n": 1, "kind": True}


def test_cut_by_twenty_bytes_it_opens_and_has_lost_one_entry(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "trials.log"
    write(path)
    entries = path.read_bytes().splitlines(keepends=True)
    os.truncate(path, path.stat().st_size - 20)
    with TrialLog(path, "test", minimize=True) as log:
        assert path.read_bytes() == b"".join(entries[:-1])
        assert log.trials()[0].phase == "running"  # its end was the last entry
        assert log.trials()[0].values == {1: 0.25, 3: 0.125}
        log.finish(0, "complete", 0.125)
    assert len(path.read_bytes().splitlines()) == len(entries)
    assert "not whole is cut off" in caplog.text


@given(cut=st.integers(1, 4000))
def test_cut_anywhere_it_opens_with_what_was_whole(tmp_path_factory: pytest.TempPathFactory, cut: int) -> None:
    path = tmp_path_factory.mktemp("log") / "trials.log"
    write(path)
    whole = path.read_bytes()
    kept = whole[: max(0, len(whole) - cut)]
    path.write_bytes(kept)
    with TrialLog(path, "test", minimize=True) as log:
        numbers = [trial.number for trial in log.trials()]
        assert numbers == list(range(len(numbers)))
        assert log.begin({"lr": 0.1, "n": 1, "kind": "a"}, SPACE, seed=1, goal=1) == len(numbers)
    assert path.read_bytes().startswith(kept[: kept.rfind(b"\n") + 1])


def test_damage_in_the_middle_is_said_and_nothing_is_cut(tmp_path: Path) -> None:
    path = tmp_path / "trials.log"
    write(path)
    lines = path.read_bytes().splitlines(keepends=True)
    lines[2] = b"}" + lines[2]
    path.write_bytes(b"".join(lines))
    with pytest.raises(ControlError, match="damaged in line 3"):
        TrialLog(path, "test", minimize=True)
    assert path.read_bytes() == b"".join(lines)


def test_one_writer_and_one_direction(tmp_path: Path) -> None:
    path = tmp_path / "trials.log"
    with TrialLog(path, "test", minimize=True), pytest.raises(UsageError, match="another search writes"):
        TrialLog(path, "test", minimize=True)
    with pytest.raises(UsageError, match="direction='minimize'"):
        TrialLog(path, "test", minimize=False)
