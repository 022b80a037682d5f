"""The folder of a run: one writer, and a log that opens whatever cut it."""

from __future__ import annotations

import contextlib
import os
import resource
import stat
import subprocess
import zlib
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farandole.control.watch_messages import MetricPoint, Printed, RankMetrics
from farandole.errors import UsageError
from farandole.monitor.describe import describe, git_commit, seeds_in
from farandole.monitor.folder import (
    HEAD,
    MAGIC,
    METRICS,
    LogReader,
    MarkRecord,
    MemberRecord,
    PointRecord,
    Record,
    RunInfo,
    RunWriter,
    TrialRecord,
    read_info,
    read_records,
)
from farandole.monitor.hub import Hub
from farandole.monitor.recording import Recording
from tests.support.launching import Launch

RECORDS: list[Record] = [
    MemberRecord(1.0, 1, ["a", "b"]),
    PointRecord(1, 1, [MetricPoint(2.0, 7, 64, {"loss": 0.5}), MetricPoint(2.1, 8, 128, {"loss": float("inf")})], 3),
    MarkRecord(3.0, "fault", "rank 1 was killed", 9),
    TrialRecord(4.0, 3, "paused", {"lr": 0.1, "opt": "sgd"}, {"acc": 0.9}, 9, 2),
]


def written(folder: Path) -> Path:
    with RunWriter.create(folder, RunInfo(1.0, ["train"])) as writer:
        for record in RECORDS:
            writer.append(record)
        writer.output(0, b"[0]<stdout>:hello\n")
    return folder


def test_what_was_written_is_read_and_belongs_to_its_owner_alone(tmp_path: Path) -> None:
    folder = written(tmp_path / "runs" / "a")
    assert list(read_records(folder)) == RECORDS
    assert (folder / "output" / "stdout").read_bytes() == b"[0]<stdout>:hello\n"
    for path in (folder, *folder.rglob("*")):
        assert not stat.S_IMODE(os.stat(path).st_mode) & 0o077, path
    assert read_info(folder).command == ["train"]


@pytest.mark.parametrize("cut", [1, 7, 9, 20])
def test_a_log_that_was_cut_loses_its_last_record_alone_and_is_gone_on_with(tmp_path: Path, cut: int) -> None:
    log = written(tmp_path / "a") / METRICS
    os.truncate(log, os.stat(log).st_size - cut)
    assert list(read_records(log.parent)) == RECORDS[:-1]
    more = MarkRecord(5.0, "note", "again")
    with RunWriter.open(log.parent) as writer:
        writer.append(more)
    assert list(read_records(log.parent)) == [*RECORDS[:-1], more]


def test_a_log_without_even_its_first_bytes_is_gone_on_with(tmp_path: Path) -> None:
    log = written(tmp_path / "a") / METRICS
    os.truncate(log, 3)
    with RunWriter.open(log.parent) as writer:
        writer.append(RECORDS[0])
    assert list(read_records(log.parent)) == RECORDS[:1]
    log.write_bytes(b"something else")
    with pytest.raises(UsageError, match="is no log of a run"):
        RunWriter.open(log.parent)


@given(st.binary(max_size=300), st.integers(0, 400))
def test_no_bytes_make_a_reader_raise_or_read_what_was_not_written(noise: bytes, at: int) -> None:
    assert list(LogReader(noise)) == [] or noise.startswith(MAGIC)
    whole = MAGIC + b"".join(_framed(record) for record in RECORDS)
    damaged = whole[:at] + noise + whole[at + len(noise) :]
    found = list(LogReader(damaged))
    assert found == RECORDS[: len(found)]


def _framed(record: Record) -> bytes:
    payload = msgspec.msgpack.encode(record)
    return HEAD.pack(len(payload), zlib.crc32(payload)) + payload


def test_a_second_writer_is_refused_and_so_is_a_second_run(tmp_path: Path) -> None:
    info = RunInfo(1.0, ["train"])
    with RunWriter.create(tmp_path / "a", info), pytest.raises(UsageError, match="it has a writer already"):
        RunWriter.open(tmp_path / "a")
    with pytest.raises(UsageError, match="record of another run"):
        RunWriter.create(tmp_path / "a", info)
    with pytest.raises(UsageError, match="no record of a run"):
        read_info(tmp_path / "b")


def test_a_run_that_cannot_begin_leaves_a_folder_for_the_next_try(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, hard))  # no file may be longer: like a full disk, on any system
    try:
        with pytest.raises(UsageError, match="cannot be recorded"):
            RunWriter.create(tmp_path / "run", RunInfo(1.0, ["train"]))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    RunWriter.create(tmp_path / "run", RunInfo(1.0, ["train"])).close()


def test_what_comes_after_the_end_is_written_nowhere(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    info = RunInfo(1.0, ["train"])
    recording = Recording(RunWriter.create(tmp_path / "run", info), Hub(info))
    news = RankMetrics(1, 0, [MetricPoint(2.0, 7, 64, {"loss": 0.5})])
    recording.record_message(news)
    recording.end(0, "", 3.0)
    with contextlib.ExitStack() as held:
        others = [held.enter_context(open(tmp_path / f"other{i}", "wb")) for i in range(8)]  # by the same numbers
        recording.record_message(news)
        recording.record_message(Printed(4.0, 0, b"late"))
        assert len(list(read_records(tmp_path / "run"))) == 1
        assert not any(os.fstat(file.fileno()).st_size for file in others)
    assert not caplog.text


def test_the_description_names_the_commit_and_the_seeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert git_commit() == ""
    for words in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "one"]):
        subprocess.run(
            ["git", "-c", "user.name=a", "-c", "user.email=a@b", *words], check=True, env={**os.environ, "HOME": "/"}
        )
    assert len(git_commit()) == 40
    told = describe(["python", "train.py", "--seed=3"], {})
    assert (told.git, told.seeds) == (git_commit(), {"--seed": "3"})
    assert told.versions["numpy"]
    assert seeds_in(["a", "--seed"], {}) == {"--seed": ""}


def test_a_run_of_one_rank_is_recorded_as_well(launch: Launch) -> None:
    script = (
        "import farandole.numpy as hvd\nhvd.init()\nfor i in range(3):\n    hvd.log(loss=float(i))\nprint(hvd.size())"
    )
    assert launch(1, script, options=["--record", "run"]).ok().lines() == ["1"]
    records = [each for each in read_records(launch.folder / "run") if isinstance(each, PointRecord)]
    values = [point.values for each in records for point in each.points]
    assert values[-1]["loss"] == 2.0
