"""Journal of an elastic job, in memory, and its copy in the user's file, made by a thread.

with Journal("job.journal") as journal:          # "": no copy
    membership = Recorded(policy, journal.write, journal.lines())
"""

# The file may be on a file system that does not answer, or be a pipe without a reader. A controller that waited for it
# would stop the job. So a thread writes. It reads what to write from the journal, which is in memory: no queue can
# overflow, and a thread that is behind skips nothing.
#
# The loop sets ``_size``, the thread ``_behind_since_s``, ``_copied`` and ``_ended``; the condition guards all of them.
# A failure to write this file does not end the job.

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING, final

from farandole.errors import UsageError
from farandole.events import logger

if TYPE_CHECKING:
    from typing_extensions import Self

AT_ONCE_BYTES = 4096
"""Bytes per write: a pipe takes them all or none (``PIPE_BUF``)."""

LAG_S = 10.0
"""Time without progress after which a warning is logged."""

CLOSE_S = 5.0
"""Time for the rest of the copy after the end of the job."""


@final
class Journal:
    """Journal with a copy in the file ``path`` (``--elastic-journal``); raises ``UsageError`` if that cannot be opened.

    Without a ``path`` there is no copy.
    """

    def __init__(self, path: str = "") -> None:
        self._path, self._fd = path, -1
        if path:
            try:
                self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
            except OSError as error:
                raise UsageError(f"--elastic-journal {path}: {error.strerror}") from error
        self._text = bytearray()
        self._copied = 0
        self._behind_since_s: float | None = None
        self._ended = self._told = self._closing = False
        self._change = threading.Condition()

    def __enter__(self) -> Self:
        if self._fd >= 0:
            # A daemon: stuck in the kernel it cannot be joined, and must not keep this process alive.
            threading.Thread(target=self._write_until_closed, name="farandole-journal", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close(CLOSE_S)

    def lines(self) -> list[str]:
        """All lines written so far."""
        return [line.decode() for line in bytes(self._text).splitlines(keepends=True)]  # str splits at more characters

    def write(self, line: str) -> None:
        """Add a whole line; warn, once, if nothing has been copied for ``LAG_S``."""
        now = time.monotonic()
        with self._change:
            self._text += line.encode()
            self._behind_since_s = now if self._behind_since_s is None else self._behind_since_s
            lags = self._fd >= 0 and not self._ended and now >= self._behind_since_s + LAG_S
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
                missing = len(self._text) - self._copied
                logger.warning("--elastic-journal %s lacks its last %d bytes: it takes nothing", self._path, missing)
                return  # the thread may still write
        os.close(self._fd)
        self._fd = -1

    def _write_until_closed(self) -> None:
        try:
            while text := self._next():
                written = os.write(self._fd, text)  # may be partial on a full disk: the next write then fails
                with self._change:
                    self._copied += written
        except OSError as error:
            reason = error.strerror
            logger.warning("--elastic-journal %s: %s: it ends here, and the job goes on", self._path, reason)
        with self._change:
            self._ended = True
            self._change.notify()

    def _next(self) -> bytes:
        """Wait for the next bytes to copy; empty at the end."""
        with self._change:
            if self._copied >= len(self._text):
                self._behind_since_s = None
                self._change.wait_for(lambda: self._copied < len(self._text) or self._closing)
            self._behind_since_s = time.monotonic()
            return bytes(self._text[self._copied : self._copied + AT_ONCE_BYTES])
