"""Thread of a controller that reads and writes in the folder of its run, whose file system may not answer.

    thread = FolderThread(folder, lambda: limits_in(folder, supply, 2, 16))
    thread.heard()                      # thread.fd was readable
    thread.begun()                      # [record] or [None], once: what the journal ended with
    thread.write(line)                  # to the journal, sooner or later
    thread.write(line, tag=b"person")
    thread.written()                    # [(b"person", "")], once the line is on the disk
    limits = thread.limits()            # None: they are what they were

A controller that waited for a file server would be killed as hung, and so would the next one. The thread takes lines
from ``_lines``, a queue, and leaves what it has read in ``_found`` and ``_begun``, and the tags of what it has written
in ``_written``, which the loop's thread takes; each is written at one end only. For news of the last two it rings
``fd``, under ``_lock``, which guards ``_closed`` and the number of that descriptor. It is a daemon: stuck in the kernel
it cannot be joined.
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

from farandole.errors import FarandoleError
from farandole.events import logger
from farandole.launch.hosts.run_folder import RunFolder
from farandole.launch.leases.journal import LeaseRecord, read_records
from farandole.launch.leases.limits import LeaseLimits

JOURNAL = "leases.jsonl"
"""File with every decision about leases."""

EVERY_S = 60.0
"""Pause between two readings of the policy."""

AGAIN_S = 1.0
"""Pause between two attempts to read what the journal ends with."""

TAIL_BYTES = 2**24
"""Part of a journal in which its last lines are."""

MOST_LINES = 10_000
"""Lines that wait for a file system that does not answer; later ones are lost."""

_Left = TypeVar("_Left")


@final
class FolderThread:
    """Thread of one controller; ``read`` raises ``FarandoleError`` for a policy that cannot be meant."""

    def __init__(self, folder: RunFolder, read: Callable[[], LeaseLimits], every_s: float = EVERY_S) -> None:
        self._path, self._read, self._every_s = folder.path / JOURNAL, read, every_s
        self._folder = folder
        self._lines: queue.Queue[tuple[str, bytes] | None] = queue.Queue(MOST_LINES)
        self._found: list[LeaseLimits | str] = []
        self._begun: deque[LeaseRecord | None] = deque()
        self._written: deque[tuple[bytes, str]] = deque()
        self._lock = threading.Lock()
        self._closed = False
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        """Readable when ``begun`` or ``written`` has something."""
        self._thread = threading.Thread(target=self._serve, name="farandole-folder", daemon=True)
        self._thread.start()

    def write(self, line: str, tag: bytes = b"") -> bool:
        """Append a line to the journal, without waiting; False if too many wait. One with a ``tag`` is confirmed."""
        try:
            self._lines.put_nowait((line.rstrip("\n") + "\n", tag))
        except queue.Full:
            return False
        return True

    def begun(self) -> list[LeaseRecord | None]:
        """The last decision of the controller before, or ``None`` if there is none, once that has been read."""
        return _taken(self._begun)

    def written(self) -> list[tuple[bytes, str]]:
        """Tags of lines that are on the disk, or cannot be written, and why."""
        return _taken(self._written)

    def heard(self) -> None:
        """Make ``fd`` wait for news again. Call it before ``begun`` and ``written``: what comes later rings again."""
        with self._lock, contextlib.suppress(BlockingIOError):
            if not self._closed:
                os.eventfd_read(self.fd)

    def limits(self) -> LeaseLimits | str | None:
        """Limits as they have been read anew, or why they cannot be; ``None`` if they are what they were."""
        return self._found.pop() if self._found else None

    def close(self, patience_s: float) -> None:
        """Write what is left, if that takes no longer than ``patience_s``. What was written can still be asked for."""
        with contextlib.suppress(queue.Full):
            self._lines.put_nowait(None)
        self._thread.join(patience_s)
        with self._lock:
            if not self._closed:
                self._closed = True
                os.close(self.fd)

    def _serve(self) -> None:
        if not self._begin():
            return
        known: LeaseLimits | str | None = None
        look_s = time.monotonic() + self._every_s
        while True:
            if time.monotonic() >= look_s:  # also where lines come all the time
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
        """Read what the journal ends with, however often that fails; False if this is closed before it could be.

        Whoever took a journal that cannot be read for none would begin with an empty plan, and ask for all leases anew.
        """
        early: list[tuple[str, bytes]] = []
        is_told = is_closed = False
        while not is_closed:
            try:
                self._begun.append(last(self._folder))
                self._ring()
                break
            except Exception as error:  # nobody else would try again
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
        why = ""
        try:
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            with open(fd, "wb") as file:
                size = os.fstat(fd).st_size
                is_torn = size > 0 and os.pread(fd, 1, size - 1) != b"\n"  # by a controller that was killed
                file.write(b"\n" * is_torn + line.encode())
                if tag:
                    file.flush()
                    os.fsync(fd)
        except OSError as error:  # nobody can be told who has not asked, and the training goes on
            why = f"{self._path} cannot be written: {error.strerror}"
        if tag:
            self._written.append((tag, why))
            self._ring()

    def _ring(self) -> None:
        with self._lock:
            if not self._closed:
                os.eventfd_write(self.fd, 1)

    def _look(self) -> LeaseLimits | str:
        try:
            return self._read()
        except FarandoleError as error:
            return str(error)


def _taken(left: deque[_Left]) -> list[_Left]:
    return [left.popleft() for _ in range(len(left))]


def last(folder: RunFolder) -> LeaseRecord | None:
    """Last decision in the journal of a run, ``None`` if there is none that this version understands.

    Raises ``OSError`` where that is not known: for a moment, a file server may not answer.
    """
    # NFS remembers that a name did not exist until the folder is opened again; and one that is away has no names.
    os.close(os.open(folder.path, os.O_RDONLY | os.O_DIRECTORY))
    try:
        with open(folder.path / JOURNAL, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL_BYTES))
            lines = [line.decode(errors="replace") for line in deque(file, maxlen=2)]  # the last may be torn
    except FileNotFoundError:
        return None
    for line in reversed(lines):
        with contextlib.suppress(FarandoleError):
            for found in read_records([line]):
                return found
    return None


def set_aside(folder: RunFolder) -> None:
    """Keep the journal of an earlier run under another name: the next one has other leases."""
    path = folder.path / JOURNAL
    with contextlib.suppress(FileNotFoundError):
        path.replace(path.with_name(f"{JOURNAL}.old"))
