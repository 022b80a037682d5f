"""The pool of threads: errors at their batch, and no thread left however an iteration ends."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from farandole import events
from farandole.data.formats.images import images
from farandole.data.loading import pool
from farandole.data.loading.augment import SampleLoader
from farandole.data.loading.batch_memory import BatchMemory, part_of
from farandole.data.loading.batches import Batches
from farandole.data.loading.concurrency import Concurrency
from farandole.data.storage.waits import during
from farandole.errors import DataError, UsageError
from farandole.runtime.session.tracebacks import folded
from tests.support.launching import run_to_end
from tests.support.patience import PATIENCE_S


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("farandole-load")]


class Broken:
    """Sample 11 cannot be decoded."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> Any:
        if index == 11:
            raise ZeroDivisionError("no header")
        return np.full(3, index)

    def path_of(self, index: int) -> str:
        return f"/set/{index}.bin"


def test_an_error_is_raised_at_its_batch_with_sample_file_and_traceback() -> None:
    seen: list[int] = []
    with pytest.raises(DataError, match=r"^sample 11 \(/set/11.bin\): ZeroDivisionError: no header$") as caught:
        seen.extend(int(batch[0, 0]) for batch in Batches(Broken(), 4, shuffle=False, threads=3))
    assert seen == [0, 4]
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert caught.value.__cause__.__traceback__ is not None
    assert not threads()


def test_a_damaged_file_is_told_of_in_a_few_lines(tmp_path: Path) -> None:
    (tmp_path / "0.png").write_bytes(b"\x89PNG\r\n\x1a\nrubbish")
    with pytest.raises(DataError) as caught:
        next(iter(Batches(images(tmp_path), 1, threads=2)))
    told = str(caught.value)
    assert told.startswith(f"sample 0: {tmp_path}/0.png cannot be read as an image (UnidentifiedImageError: ")
    assert told.count(str(tmp_path)) == 1
    lines = folded(caught.value).splitlines()
    assert lines[0].startswith("PIL.UnidentifiedImageError: ")
    assert sum("Traceback" in line for line in lines) == 1


def test_no_thread_outlives_its_iteration() -> None:
    for batch in Batches(range(100), 4, threads=5):
        assert len(threads()) == 5
        assert len(batch) == 4
        break
    assert not threads()
    loop = iter(Batches(range(100), 4, threads=5))
    next(loop)
    del loop
    assert not threads()
    pending = Batches(range(100), 4, threads=5).load([[1, 2], [3]])
    cycle: list[Any] = [pending]
    cycle.append(cycle)
    next(pending)
    del pending, cycle
    gc.collect()
    assert not threads()


class Meeting:
    """As many samples are in flight as there are threads, or none of them comes back."""

    def __init__(self, parties: int) -> None:
        self.barrier = threading.Barrier(parties)

    def __len__(self) -> int:
        return 48

    def __getitem__(self, index: int) -> int:
        self.barrier.wait(PATIENCE_S)
        return index


@pytest.mark.parametrize("batch_size", [1, 3, 12])
def test_as_many_samples_are_read_at_a_time_as_there_are_threads(batch_size: int) -> None:
    """Whatever the size of a batch: reads that take long hide behind one another."""
    batches = Batches(Meeting(12), batch_size, shuffle=False, threads=12)
    assert [int(n) for batch in batches for n in batch] == [*range(48)]


def test_a_late_batch_gets_all_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few threads read what mostly needs the processors, until storage is slow or a batch late."""
    monkeypatch.setattr(pool, "LATE_S", 0.05)
    meeting = Meeting(12)
    monkeypatch.setattr(meeting, "decodes", True, raising=False)
    batches = Batches(meeting, 3, shuffle=False, threads=12)
    assert [int(n) for batch in batches for n in batch] == [*range(48)]


class Stalled:
    """Sample 2 comes when it is released."""

    def __init__(self) -> None:
        self.release = threading.Event()

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        if index == 2:
            with during("shared storage", "/lustre/a.h5, piece 3"):
                assert self.release.wait(PATIENCE_S)
        return index


def test_a_batch_that_is_late_is_told_of_with_sample_file_and_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "LATE_S", 0.01)
    dataset, notes, phases = Stalled(), [], []

    def hear(event: events.Event) -> None:
        if isinstance(event, events.Note):
            notes.append(event.text)
            dataset.release.set()
        elif isinstance(event, events.Phase):
            phases.append((event.lane, event.phase))

    cancel = events.subscribe(hear)
    try:
        batches = Batches(dataset, 4, shuffle=False, threads=2)
        loaded = batches.load([[0, 1, 2, 3], [4, 5, 6, 7]])
        next(loaded)
        assert loaded.last.cause == "shared storage"
        assert loaded.last.seconds > 0.01
        loaded.close()
    finally:
        cancel()
    assert notes[0] == ("rank 0 has waited 0.01 s for its next batch: sample 2 (shared storage, /lustre/a.h5, piece 3)")
    assert {("input", "starve"), ("input", "read"), ("input", "decode")} <= {*phases}


class StalledTable(Stalled):
    """A batch is read by one call, which may last."""

    def read_batch(self, indices: Sequence[int], columns: list[Any]) -> bool:
        columns[0][...] = indices
        return self[indices[0]] == indices[0]


def test_a_late_batch_that_is_read_by_one_call_has_a_thread_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "LATE_S", 0.01)
    dataset, notes = StalledTable(), []
    known = Concurrency(1, 1, decodes=False)
    known.form, known.is_fast = part_of(0), True
    load = pool.Loader(SampleLoader(dataset), 0)

    def hear(event: events.Event) -> None:
        if isinstance(event, events.Note):
            notes.append(event.text)
            dataset.release.set()

    cancel = events.subscribe(hear)
    with closing(pool.LoadedBatches([[2, 3]], [load], BatchMemory(), concurrency=known)) as batches:
        assert next(batches).tolist() == [2, 3]
    cancel()
    assert notes[0] == "rank 0 has waited 0.01 s for its next batch: sample 2 (shared storage, /lustre/a.h5, piece 3)"


def test_an_iteration_is_refused_in_a_fork() -> None:
    loop = Batches(range(100), 4, threads=2).load([[1, 2]] * 20)
    next(loop)
    if (pid := os.fork()) == 0:
        code = 1
        try:
            next(loop)
        except UsageError as error:
            code = 0 if "forked while batches were loaded" in str(error) else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert len([*loop]) == 19


PROGRAM = """
import os, signal, sys, threading
from farandole.data.loading.batches import Batches
class Interrupting:
    def __len__(self): return 1000
    def __getitem__(self, index):
        if index == 50 and {interrupt}:
            os.kill(os.getpid(), signal.SIGINT)
        return index
loop = iter(Batches(Interrupting(), 10, shuffle=False, threads=3))
try:
    for batch in loop:
        if batch[0] == 30 and not {interrupt}: sys.exit(0)     # the loop is still there when the interpreter ends
except KeyboardInterrupt:
    names = [thread.name for thread in threading.enumerate()]
    print("interrupted", names)
"""


def test_ctrl_c_and_the_interpreters_end_leave_nothing(tmp_path: Any) -> None:
    for interrupt in (True, False):
        code = PROGRAM.format(interrupt=interrupt)
        done = run_to_end([sys.executable, "-W", "error", "-c", code], tmp_path, PATIENCE_S).ok()
        assert done.stdout.strip() == ("interrupted ['MainThread']" if interrupt else "")
        assert not done.stderr


def test_signals_reach_the_consumer() -> None:
    dataset = Stalled()

    def handle(*_: object) -> None:
        dataset.release.set()
        raise TimeoutError

    before = signal.signal(signal.SIGUSR1, handle)
    try:
        loop = iter(Batches(dataset, 4, shuffle=False, threads=2))
        threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGUSR1)).start()
        with pytest.raises(TimeoutError):
            next(loop)
    finally:
        signal.signal(signal.SIGUSR1, before)
