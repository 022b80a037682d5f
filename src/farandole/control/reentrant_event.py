"""Event that a signal handler may set on top of any line of the thread that sets it, or waits for it.

    told = ReentrantEvent()
    told.wait(0.1)          # in the main thread, where a handler's ``told.set()`` may come before any instruction of it

Threads. ``threading.Event`` has a plain lock, which a handler on top of ``wait`` would wait for and never get. Here is
a turnstile: a lock that is taken from the beginning, and open for good from ``set`` on. Whoever has passed it leaves it
open for the next one, whatever exception ends the wait. Nobody holds it while anything else is done, so nothing here
waits but ``wait``; and what is set before a thread sleeps is not missed by it, as it would be by a notification.
"""

from __future__ import annotations

import contextlib
import threading
from typing import final


@final
class ReentrantEvent:
    """Event for any thread and for signal handlers. It is set once, and stays set."""

    __slots__ = ("_is_set", "_turnstile")

    def __init__(self) -> None:
        self._is_set = False
        self._turnstile = threading.Lock()
        self._turnstile.acquire()

    def is_set(self) -> bool:
        """True from ``set`` on."""
        return self._is_set

    def set(self) -> None:
        """Wake all who wait, now and later."""
        self._is_set = True  # before it opens: who passes looks at this
        self._open()

    def wait(self, timeout_s: float) -> bool:
        """Return when it is set, or ``timeout_s`` is over; true if it is set."""
        try:
            if not self._is_set:
                self._turnstile.acquire(timeout=max(0.0, timeout_s))
        finally:
            if self._is_set:
                self._open()
        return self._is_set

    def _open(self) -> None:
        with contextlib.suppress(RuntimeError):  # it is open: another thread, or the frame below, has done it
            self._turnstile.release()
