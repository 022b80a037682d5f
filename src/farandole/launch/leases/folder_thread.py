"""Thread of a controller that reads and writes in the folder of its run, whose file system may not answer.

    thread = FolderThread(folder, lambda: limits_in(folder, supply, 2, 16))
    thread.write(line)                  # to the journal, sooner or later
    limits = thread.limits()            # None: they are what they were

A controller that waited for a file server would be killed as hung, and so would the next one. The thread takes lines
from ``_lines``, a queue, and leaves what it has read in ``_found``, which the loop's thread takes; each is written at
one end only, so there is no lock. It is a daemon: stuck in the kernel it cannot be joined.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import final

from farandole.errors import FarandoleError
from farandole.launch.hosts.run_folder import RunFolder
from farandole.launch.leases.journal import LeaseRecord, read_records
from farandole.launch.leases.limits import LeaseLimits

JOURNAL = "leases.jsonl"
"""File with every decision about leases."""

EVERY_S = 60.0
"""Pause between two readings of the policy."""

TAIL_BYTES = 2**24
"""Part of a journal in which its last lines are."""

MOST_LINES = 10_000
"""Lines that wait for a file system that does not answer; later ones are lost."""


@final
class FolderThread:
    """Thread of one controller; ``read`` raises ``FarandoleError`` for a policy that cannot be meant."""

    def __init__(self, folder: RunFolder, read: Callable[[], LeaseLimits], every_s: float = EVERY_S) -> None:
        self._path, self._read, self._every_s = folder.path / JOURNAL, read, every_s
        self._lines: queue.Queue[str | None] = queue.Queue(MOST_LINES)
        self._found: list[LeaseLimits | str] = []
        self._thread = threading.Thread(target=self._serve, name="farandole-folder", daemon=True)
        self._thread.start()

    def write(self, line: str) -> None:
        """Append a line to the journal, without waiting."""
        with contextlib.suppress(queue.Full):
            self._lines.put_nowait(line.rstrip("\n") + "\n")

    def limits(self) -> LeaseLimits | str | None:
        """Limits as they have been read anew, or why they cannot be; ``None`` if they are what they were."""
        return self._found.pop() if self._found else None

    def close(self, patience_s: float) -> None:
        """Write what is left, if that takes no longer than ``patience_s``."""
        with contextlib.suppress(queue.Full):
            self._lines.put_nowait(None)
        self._thread.join(patience_s)

    def _serve(self) -> None:
        last: LeaseLimits | str | None = None
        look_s = time.monotonic() + self._every_s
        while True:
            if time.monotonic() >= look_s:  # also where lines come all the time
                found, look_s = self._look(), time.monotonic() + self._every_s
                if found != last:
                    last, self._found = found, [found]
            try:
                line = self._lines.get(timeout=max(0.0, look_s - time.monotonic()))
            except queue.Empty:
                continue
            if line is None:
                return
            self._append(line)

    def _append(self, line: str) -> None:
        with contextlib.suppress(OSError):  # nobody can be told, and the training goes on
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            with open(fd, "wb") as file:
                size = os.fstat(fd).st_size
                is_torn = size > 0 and os.pread(fd, 1, size - 1) != b"\n"  # by a controller that was killed
                file.write(b"\n" * is_torn + line.encode())

    def _look(self) -> LeaseLimits | str:
        try:
            return self._read()
        except FarandoleError as error:
            return str(error)


def last(folder: RunFolder) -> LeaseRecord | None:
    """Last decision in the journal of a run, ``None`` if there is none that this version understands."""
    try:
        with open(folder.path / JOURNAL, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL_BYTES))
            lines = [line.decode(errors="replace") for line in deque(file, maxlen=2)]  # the last may be torn
    except OSError:
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
