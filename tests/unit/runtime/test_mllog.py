"""The log of MLPerf as rank 0 writes it, over several generations, and as the launcher ends it."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import numpy as np
import pytest

from farandole import events
from farandole.errors import UsageError
from farandole.runtime.session.mllog import MLLog, begin, complete, lines_of

HOSTS = ("a", "a", "b")


def keys(path: Path) -> list[str]:
    return [line["key"] for line in lines_of(path.read_bytes())]


def test_the_run_begins_with_its_first_epoch_and_ends_with_the_job(tmp_path: Path) -> None:
    path = tmp_path / "log"
    begin(str(path))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    log = MLLog(str(path))
    log.introduce(HOSTS)
    log.write("epoch_start", None, {"epoch_num": np.int64(1)})
    log.close()
    log.close()
    complete(str(path), 0)
    complete(str(path), 1)
    assert keys(path) == [
        "init_start", "number_of_nodes", "number_of_ranks", "init_stop", "run_start", "epoch_start", "run_stop",
    ]  # fmt: skip
    first, nodes, ranks, *_, epoch, last = lines_of(path.read_bytes())
    assert (first["event_type"], epoch["event_type"], last["event_type"]) == (
        "INTERVAL_START",
        "INTERVAL_START",
        "INTERVAL_END",
    )
    assert (nodes["value"], ranks["value"], epoch["metadata"], last["metadata"]) == (
        2,
        3,
        {"epoch_num": 1},
        {"status": "success"},
    )


def test_the_next_generation_goes_on(tmp_path: Path) -> None:
    """The same epoch is the one that is open; one before it ends it as interrupted. A torn line is passed over."""
    path = tmp_path / "log"
    log = MLLog(str(path))
    log.introduce(HOSTS)
    log.write("seed", 3)
    log.write("epoch_start", None, {"epoch_num": 2})
    log.close()
    with path.open("ab") as file:
        file.write(b':::MLLOG {"namespace": "", "time\n')
    for number in (2, 1):
        log = MLLog(str(path))
        log.introduce(HOSTS)
        log.write("seed", 3)
        log.write("epoch_start", None, {"epoch_num": number})
        log.close()
    found = [(line["key"], line["metadata"]) for line in lines_of(path.read_bytes())][6:]
    assert found == [
        ("epoch_start", {"epoch_num": 2}),
        ("epoch_stop", {"epoch_num": 2, "interrupted": True}),
        ("epoch_start", {"epoch_num": 1}),
    ]


def test_a_recovery_is_written_and_nothing_after_the_close(tmp_path: Path) -> None:
    log = MLLog(str(tmp_path / "log"))
    log.introduce(HOSTS)
    recovery = events.Recovery(0.0, "rank 1 was killed", 2, 0, 3, 7, 0.1, 0.2, 0.3, 0.4, 5)
    events.emit(recovery)
    log.close()
    events.emit(recovery)
    assert keys(tmp_path / "log").count("farandole_recovery") == 1


def test_times_never_run_backwards(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = MLLog(str(path))
    log.write("late", time_ms=2**45)
    log.write("early", time_ms=5)
    log.close()
    assert [line["time_ms"] for line in lines_of(path.read_bytes())] == [2**45, 2**45]


def test_values_are_numbers_texts_or_nothing(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = MLLog(str(path))
    for value in (
        np.float32(0.5),
        np.array([1.5]),
        None,
        True,
        "x",
        [1, np.int8(2)],
        {"a": 1},
        float("nan"),
        Path("p"),
    ):
        log.write("value", value)
    log.close()
    assert [line["value"] for line in lines_of(path.read_bytes())] == [
        0.5, 1.5, None, True, "x", [1, 2], {"a": 1}, "nan", "p",
    ]  # fmt: skip


def test_a_log_is_of_one_run(tmp_path: Path) -> None:
    begin(str(tmp_path / "log"))
    with pytest.raises(UsageError, match="there is a file already"):
        begin(str(tmp_path / "log"))
    with pytest.raises(UsageError, match="cannot be written: No such file"):
        begin(str(tmp_path / "none" / "log"))
    complete(str(tmp_path / "log"), 0)
    assert not (tmp_path / "log").exists()  # nobody has written to it
    complete(str(tmp_path / "log"), 0)


def test_a_disk_that_takes_nothing_ends_the_log_and_not_the_training(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = MLLog(str(tmp_path / "none" / "log"))
    log.write("seed", 3)
    log.close()
    full = MLLog(str(tmp_path / "log"))

    def refuse(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", refuse)
    full.write("seed", 3)
    full.write("seed", 3)
    full.close()
    assert [record.message.partition(":")[0] for record in caplog.records] == [
        f"the log of MLPerf cannot be written to {tmp_path}/none/log",
        "the log of MLPerf ends here",
    ]
