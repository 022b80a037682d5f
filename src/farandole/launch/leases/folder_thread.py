"""Thread of a controller that reads and writes the run folder, whose file system may not answer.

    thread = FolderThread(folder, lambda: limits_in(folder, supply, 2, 16))
    thread.heard()                      # thread.fd was readable
    thread.begun()                      # [record] or [None], once: last decision in the journal
    thread.write(line)                  # appends to the journal, in the background
    thread.write(line, tag=b"person")
    thread.written()                    # [(b"person", "")], after the line is on disk
    limits = thread.limits()            # None: unchanged

A controller that waited for a file server would stop the job. The thread takes lines from the queue ``_lines``, puts
what it has read in ``_found`` and ``_begun``, and the tags of written lines in ``_written``; the loop's thread takes
them. Each is written at one end only. For ``_begun`` and ``_written`` the thread signals ``fd``. The thread is a
daemon: stuck in the kernel it cannot be joined.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TypeVar, final

from farandole.control.wakeup import Wakeup
from farandole.errors import FarandoleError
from farandole.events import logger
from farandole.launch.hosts.run_folder import RunFolder
from farandole.launch.leases.journal import LeaseRecord, read_records
from farandole.launch.leases.limits import LeaseLimits

JOURNAL = "leases.jsonl"
"""File with every decision about leases."""

EVERY_S = 60.0
"""Pause between two reads of the policy file."""

AGAIN_S = 1.0
"""Pause between two attempts to read the end of the journal."""

TAIL_BYTES = 2**24
"""Number of bytes at the end of a journal that are searched for its last line."""

MOST_LINES = 10_000
"""Most lines queued for a file system that does not answer; further lines are lost."""

_Left = TypeVar("_Left")


@final
class FolderThread:
    """Thread of one controller; ``read`` raises ``FarandoleError`` for an invalid policy."""

    def __init__(self, folder: RunFolder, read: Callable[[], LeaseLimits], every_s: float = EVERY_S) -> None:
        self._path, self._read, self._every_s = folder.path / JOURNAL, read, every_s
        self._folder = folder
        self._lines: queue.Queue[tuple[str, bytes] | None] = queue.Queue(MOST_LINES)
        self._found: list[LeaseLimits | str] = []
        self._begun: deque[LeaseRecord | None] = deque()
        self._written: deque[tuple[bytes, str]] = deque()
        self._wakeup = Wakeup()
        self._thread = threading.Thread(target=self._serve, name="farandole-folder", daemon=True)
        self._thread.start()

    @property
    def fd(self) -> int:
        """Descriptor that is readable when ``begun`` or ``written`` has something."""
        return self._wakeup.fd

    def write(self, line: str, tag: bytes = b"") -> bool:
        """Queue a line for the journal; False if the queue is full. ``written`` confirms a line with a ``tag``."""
        try:
            self._lines.put_nowait((line.rstrip("\n") + "\n", tag))
        except queue.Full:
            return False
        return True

    def begun(self) -> list[LeaseRecord | None]:
        """The previous controller's last decision, or ``None`` if there is none; returned once, after it was read."""
        return _taken(self._begun)

    def written(self) -> list[tuple[bytes, str]]:
        """Tags of lines that are on disk, or could not be written, and why."""
        return _taken(self._written)

    def heard(self) -> None:
        """Reset ``fd``. Call it before ``begun`` and ``written``, so that a later result signals ``fd`` again."""
        self._wakeup.clear()

    def limits(self) -> LeaseLimits | str | None:
        """New limits, or why they cannot be read; ``None`` if unchanged."""
        return self._found.pop() if self._found else None

    def close(self, patience_s: float) -> None:
        """Write the queued lines, waiting at most ``patience_s``. ``written`` still returns results afterwards."""
        with contextlib.suppress(queue.Full):
            self._lines.put_nowait(None)
        self._thread.join(patience_s)
        self._wakeup.close()

    def _serve(self) -> None:
        if not self._begin():
            return
        known: LeaseLimits | str | None = None
        look_s = time.monotonic() + self._every_s
        while True:
            if time.monotonic() >= look_s:  # also while lines arrive all the time
                found, look_s = self._look(), time.monotonic() + self._every_s
                if found != known:
                    known, self._found = found, [found]
            try:
                line = self._lines.get(timeout=max(0.0, look_s - time.monotonic()))
            except queue.Empty:
                continue
            if line is None:
                return
            self._append(*line)

    def _begin(self) -> bool:
        """Read the end of the journal, retrying after errors; False if ``close`` is called before it succeeds.

        Treating an unreadable journal as empty would start from an empty plan, and request all leases again.
        """
        early: list[tuple[str, bytes]] = []
        is_told = is_closed = False
        while not is_closed:
            try:
                self._begun.append(last(self._folder))
                self._wakeup.signal()
                break
            except Exception as error:  # retried below
                if not is_told:
                    is_told = True
                    after = "training goes on, but nothing is decided about leases until it can be"
                    logger.warning("%s cannot be read (%s): %s", self._path, error, after)
            with contextlib.suppress(queue.Empty):
                line = self._lines.get(timeout=min(AGAIN_S, self._every_s))
                is_closed = line is None
                early += [line] if line is not None else []
        for line in early:
            self._append(*line)
        return not is_closed

    def _append(self, line: str, tag: bytes) -> None:
        why = append_line(self._folder, line, is_synced=bool(tag))  # told only if there is a tag; the training goes on
        if tag:
            self._written.append((tag, why))
            self._wakeup.signal()

    def _look(self) -> LeaseLimits | str:
        try:
            return self._read()
        except FarandoleError as error:
            return str(error)


def _taken(left: deque[_Left]) -> list[_Left]:
    return [left.popleft() for _ in range(len(left))]


def append_line(folder: RunFolder, line: str, *, is_synced: bool = False) -> str:
    """Append a line to the journal of a run; returns why it cannot be written, or ""."""
    path = folder.path / JOURNAL
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        with open(fd, "wb") as file:
            size = os.fstat(fd).st_size
            is_torn = size > 0 and os.pread(fd, 1, size - 1) != b"\n"  # a killed controller left half a line
            file.write(b"\n" * is_torn + line.encode())
            if is_synced:
                file.flush()
                os.fsync(fd)
    except OSError as error:
        return f"{path} cannot be written: {error.strerror}"
    return ""


def last(folder: RunFolder) -> LeaseRecord | None:
    """Last decision in the journal of a run; ``None`` if there is none that this version can read.

    Raises ``OSError`` if that is unknown, for example while a file server does not answer.
    """
    # NFS caches that a name did not exist until the folder is opened again; an unmounted folder has no names.
    os.close(os.open(folder.path, os.O_RDONLY | os.O_DIRECTORY))
    try:
        with open(folder.path / JOURNAL, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL_BYTES))
            lines = [line.decode(errors="replace") for line in deque(file, maxlen=2)]  # the last may be incomplete
    except FileNotFoundError:
        return None
    for line in reversed(lines):
        with contextlib.suppress(FarandoleError):
            for found in read_records([line]):
                return found
    return None


def set_aside(folder: RunFolder) -> None:
    """Rename the journal of an earlier run: the next run has other leases."""
    path = folder.path / JOURNAL
    with contextlib.suppress(FileNotFoundError):
        path.replace(path.with_name(f"{JOURNAL}.old"))
