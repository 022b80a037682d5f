"""Small files that one process holds at a time, and that record finished work: leases and records of a prediction.

    with leased(folder / "block-000012") as lease:          # raises BlockingIOError while another process has it
        if lease.read(Answer) is None:                      # nobody has done it yet
            lease.write(Answer(...))                        # on the disk before this returns

The lease is a ``WriterLock``: the end of a process releases it, however the process ends. A record is one line of JSON;
an incomplete record, whose writer was killed, is ignored.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar, final

import msgspec

from farandole.control.writer_lock import WriterLock
from farandole.errors import DataError
from farandole.events import logger

T = TypeVar("T")

SHORTEST_S, LONGEST_S, TOLD_S = 0.01, 0.5, 60.0
"""Least and longest wait between two attempts to get a lease, and the interval of messages that name its holder."""


@final
class Answer(msgspec.Struct, frozen=True):
    """Record of an answered block: digests of its rows by field, and the process that computed them.

    ``seconds`` is the time from its lease to its record.
    """

    digests: dict[str, str]
    host: str
    pid: int
    seconds: float


@final
class HeldFile:
    """File that this process holds; see ``leased``."""

    def __init__(self, fd: int, path: Path) -> None:
        self._fd, self._path = fd, path

    def read(self, kind: type[T]) -> T | None:
        """The record; ``None`` if there is none, or it is incomplete."""
        return _decoded(os.pread(self._fd, os.fstat(self._fd).st_size, 0), kind)

    def write(self, record: msgspec.Struct) -> None:
        """Write the record, over an earlier one; raises ``DataError`` if the disk is full."""
        line = msgspec.json.encode(record) + b"\n"
        os.ftruncate(self._fd, 0)
        if os.pwrite(self._fd, line, 0) < len(line):
            raise DataError(f"{self._path} cannot be written: the disk is full; free some, and the same call goes on")
        os.fsync(self._fd)


@contextlib.contextmanager
def leased(path: Path) -> Iterator[HeldFile]:
    """Hold the file ``path`` exclusively; raises ``BlockingIOError``, with its holder, if another process does."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)  # permissions by the umask
    lock: WriterLock | None = None
    try:
        lock = WriterLock(fd, path)
        yield HeldFile(fd, path)
    finally:
        if lock is not None:
            lock.close()
        os.close(fd)


@contextlib.contextmanager
def awaited(path: Path, heed: Callable[[], None]) -> Iterator[HeldFile]:
    """``leased``, but wait for the file; ``heed`` is called repeatedly meanwhile, and may raise."""
    with contextlib.ExitStack() as held:
        wait = Backoff()
        while True:
            try:
                lease = held.enter_context(leased(path))
                break
            except BlockingIOError as error:
                heed()
                wait(error)
        yield lease


@final
class Backoff:
    """Waits between attempts, longer each time; called with the error that names the holder."""

    def __init__(self) -> None:
        self._pause_s, self._told_s = SHORTEST_S, time.monotonic() + TOLD_S

    def __call__(self, error: OSError | None) -> None:
        """Wait once."""
        if error is not None and time.monotonic() >= self._told_s:
            logger.warning("a prediction waits: %s", error.strerror)
            self._told_s = time.monotonic() + TOLD_S
        time.sleep(self._pause_s)
        self._pause_s = min(LONGEST_S, 2 * self._pause_s)


def read_record(path: Path, kind: type[T]) -> T | None:
    """The record of a file that another process may be writing; ``None`` if it is missing or incomplete."""
    try:
        return _decoded(path.read_bytes(), kind)
    except FileNotFoundError:
        return None


def _decoded(line: bytes, kind: type[T]) -> T | None:
    try:
        return msgspec.json.decode(line, type=kind) if line.endswith(b"\n") else None
    except msgspec.DecodeError:
        return None
