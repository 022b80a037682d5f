"""Descriptor by which any thread wakes a loop that polls.

    wakeup = Wakeup()
    poller.register(wakeup.fd, select.POLLIN)
    queue.append(result); wakeup.signal()       # another thread: first the result, then the signal
    wakeup.clear(); take(queue)                 # the loop: first clear, so that a later result signals again

A descriptor that one thread closes while another one writes to it may by then have become another file. So a lock
covers both, and a signal after ``close`` does nothing: a thread that is stuck in the kernel may still end later. The
lock is reentrant, because a signal handler may signal while its own thread does.
"""

from __future__ import annotations

import contextlib
import os
import threading
from typing import final


@final
class Wakeup:
    """Descriptor ``fd`` that is readable after ``signal``, until ``clear``; ``fd`` is -1 once it is closed."""

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._lock = threading.RLock()

    def signal(self) -> None:
        """Make the descriptor readable. Any thread may call it."""
        with self._lock:
            if self.fd >= 0:
                os.eventfd_write(self.fd, 1)

    def clear(self) -> bool:
        """Take the signals back; false if there was none, or it is closed."""
        with self._lock, contextlib.suppress(BlockingIOError):
            return self.fd >= 0 and os.eventfd_read(self.fd) > 0
        return False

    def close(self) -> None:
        """Close the descriptor. Idempotent."""
        with self._lock:
            fd, self.fd = self.fd, -1
            if fd >= 0:
                os.close(fd)
