"""Copy of an elastic job's journal in the user's file, made by a thread of the controller.

copy = JournalCopy("job.journal", fd, journal)
copy.begin(size)                    # in a controller: current size of the journal
copy.extend(size)                   # new size
copy.close(5.0)
"""

# The file may be on a file system that does not answer, or be a pipe without a reader. A controller that waited for it
# would count as hung, and so would the next one. So a thread writes. It reads what to write from the journal, which is
# in memory: no queue can grow or overflow, and a thread that is behind skips nothing.
#
# The loop sets ``_size``, the thread ``_behind_since_s`` and ``_ended``; the condition guards all three. The number of
# copied bytes is in memory that all controllers of the job share: the next controller cannot restart a pipe. A failure
# to write this file does not end the job.

from __future__ import annotations

import mmap
import os
import stat
import threading
import time
from typing import final

from farandole.events import logger

AT_ONCE_BYTES = 4096
"""Bytes per write: a pipe takes them all or none (``PIPE_BUF``), even if the writer is killed."""

LAG_S = 10.0
"""Time without progress after which a warning is logged."""


@final
class JournalCopy:
    """Copy of the descriptor ``journal`` to the file ``path``, open as ``fd`` (-1: no copy)."""

    def __init__(self, path: str, fd: int, journal: int) -> None:
        self._path, self._fd, self._journal = path, fd, journal
        self._shared = mmap.mmap(-1, 8)
        self._size = 0
        self._behind_since_s: float | None = None
        self._ended = self._told = self._closing = False

    def begin(self, size: int) -> None:
        """Start the thread. A regular file is rewritten, because the previous controller may have left half a line."""
        self._change = threading.Condition()
        if self._fd >= 0:
            # A daemon: stuck in the kernel it cannot be joined, and must not keep this process alive.
            threading.Thread(target=self._run, name="farandole-journal", daemon=True).start()
        self.extend(size)

    def extend(self, size: int) -> None:
        """Copy the journal up to ``size``; warn, once, if nothing has been written for ``LAG_S``."""
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
        """Wait until everything is copied; warn if it is not within ``timeout_s``."""
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
                self._copied += os.write(self._fd, text)  # may be partial on a full disk: the next write then fails
        except OSError as error:
            reason = error.strerror
            logger.warning("--elastic-journal %s: %s: it ends here, and the job goes on", self._path, reason)
        with self._change:
            self._ended = True
            self._change.notify()

    def _next(self) -> bytes:
        """Wait for the next bytes to copy; empty at the end."""
        with self._change:
            if self._copied >= self._size:
                self._behind_since_s = None
                self._change.wait_for(lambda: self._copied < self._size or self._closing)
            self._behind_since_s = time.monotonic()
            length = min(self._size - self._copied, AT_ONCE_BYTES)
        return os.pread(self._journal, length, self._copied)
