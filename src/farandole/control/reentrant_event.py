"""Event that a signal handler may set at any point of the thread that sets it, or waits for it.

    told = ReentrantEvent()
    told.wait(0.1)          # in the main thread, where a handler may call ``told.set()`` before any instruction of it

Threads. ``threading.Event`` has a plain lock; a handler on top of ``wait`` would wait for that lock forever. This class
has a turnstile: a lock that is held from the beginning, and released for good by ``set``. A thread that has acquired it
releases it for the next one, whatever exception ends the wait. No thread holds it while it does anything else, so only
``wait`` ever waits; and a ``set`` before a thread sleeps is not missed, as a notification would be.
"""

from __future__ import annotations

import contextlib
import threading
from typing import final


@final
class ReentrantEvent:
    """Event for all threads and for signal handlers. After ``set`` it stays set."""

    __slots__ = ("_is_set", "_turnstile")

    def __init__(self) -> None:
        self._is_set = False
        self._turnstile = threading.Lock()
        self._turnstile.acquire()

    def is_set(self) -> bool:
        """True after ``set``."""
        return self._is_set

    def set(self) -> None:
        """Wake all present and future waiters."""
        self._is_set = True  # before ``_open``: a thread that passes the turnstile checks this flag
        self._open()

    def wait(self, timeout_s: float) -> bool:
        """Wait until the event is set, at most ``timeout_s``; true if it is set."""
        try:
            if not self._is_set:
                self._turnstile.acquire(timeout=max(0.0, timeout_s))
        finally:
            if self._is_set:
                self._open()
        return self._is_set

    def _open(self) -> None:
        with contextlib.suppress(RuntimeError):  # already open: by another thread, or by the frame below
            self._turnstile.release()
