"""Copy of an elastic job's journal in the user's file, made by a thread of the controller.

copy = JournalCopy("job.journal", fd, journal)
copy.begin(size)                    # in a controller: so much of the journal is there
copy.extend(size)                   # and now so much
copy.close(5.0)
"""

# The file may lie where nothing answers, or be a pipe that nobody reads; a controller that waited for it would count as
# hung, and so would the next one. So a thread writes, and what it has to write it reads from the journal, which is in
# memory: there is no queue that could grow or overflow, and however far behind it is, nothing is left out.
#
# The loop sets ``_size``, the thread ``_behind_since_s`` and ``_ended``; the condition guards all three. How much is
# copied lies in memory that all controllers of the job share: a pipe cannot be begun anew by the next of them. A job
# does not end because this file cannot go on.

from __future__ import annotations

import mmap
import os
import stat
import threading
import time
from typing import final

from farandole.events import logger

AT_ONCE_BYTES = 4096
"""A pipe takes so much whole or not at all (``PIPE_BUF``), also when the writer is killed."""

LAG_S = 10.0
"""Time without progress after which people are told."""


@final
class JournalCopy:
    """Writer of the file ``path``, open as ``fd`` (-1: none), after the file ``journal``."""

    def __init__(self, path: str, fd: int, journal: int) -> None:
        self._path, self._fd, self._journal = path, fd, journal
        self._shared = mmap.mmap(-1, 8)
        self._size = 0
        self._behind_since_s: float | None = None
        self._ended = self._told = self._closing = False

    def begin(self, size: int) -> None:
        """Start the thread. A file is written anew, as the controller before may have torn a line of it."""
        self._change = threading.Condition()
        if self._fd >= 0:
            # A daemon: stuck in the kernel it cannot be joined, and must not keep this process from ending.
            threading.Thread(target=self._run, name="farandole-journal", daemon=True).start()
        self.extend(size)

    def extend(self, size: int) -> None:
        """Have the journal copied up to ``size``; tells people, once, if nothing has been written for long."""
        if self._fd < 0:
            return
        now = time.monotonic()
        with self._change:
            self._size = size
            self._behind_since_s = now if self._behind_since_s is None else self._behind_since_s
            lags = not self._ended and now >= self._behind_since_s + LAG_S
            self._change.notify()
        if lags and not self._told:
            self._told = True
            logger.warning("--elastic-journal %s takes nothing for %g s: the job goes on", self._path, LAG_S)

    def close(self, timeout_s: float) -> None:
        """Wait until all is copied, and say so if it is not."""
        if self._fd < 0:
            return
        with self._change:
            self._closing = True
            self._change.notify()
            if not self._change.wait_for(lambda: self._ended, timeout_s):
                missing = self._size - self._copied
                logger.warning("--elastic-journal %s lacks its last %d bytes: it takes nothing", self._path, missing)

    @property
    def _copied(self) -> int:
        return int.from_bytes(self._shared[:8], "little")

    @_copied.setter
    def _copied(self, size: int) -> None:
        self._shared[:8] = size.to_bytes(8, "little")

    def _run(self) -> None:
        try:
            if stat.S_ISREG(os.fstat(self._fd).st_mode):
                self._copied = 0
                os.ftruncate(self._fd, 0)
                os.lseek(self._fd, 0, os.SEEK_SET)
            while text := self._next():
                self._copied += os.write(self._fd, text)  # not all of it where the disk is full, which the rest says
        except OSError as error:
            reason = error.strerror
            logger.warning("--elastic-journal %s: %s: it ends here, and the job goes on", self._path, reason)
        with self._change:
            self._ended = True
            self._change.notify()

    def _next(self) -> bytes:
        """The next bytes to copy, once there are some; none at the end."""
        with self._change:
            if self._copied >= self._size:
                self._behind_since_s = None
                self._change.wait_for(lambda: self._copied < self._size or self._closing)
            self._behind_since_s = time.monotonic()
            length = min(self._size - self._copied, AT_ONCE_BYTES)
        return os.pread(self._journal, length, self._copied)
