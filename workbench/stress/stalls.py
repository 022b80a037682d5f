"""Random stalls where threads and processes synchronize: locks and conditions of Farandole, sockets that it uses.

    STRESS_STALLS=7:0.02:0.02           # seed, share of the operations that stall, longest stall in seconds

A stall lies only between two operations that any scheduler may separate, so a failure under stalls can happen without
them. Locks are wrapped if modules of ``farandole`` make them: locks of the interpreter and of libraries stay.

Stalls come before and after: after a lock was taken, which makes critical sections long, and after it was released,
which lets others overtake the thread.
"""

from __future__ import annotations

import os
import random
import socket
import sys
import threading
import time
from collections.abc import Callable
from functools import wraps
from typing import Any, final

import zmq

VARIABLE = "STRESS_STALLS"


@final
class Stalls:
    """Draws which operations stall, and for how long. ``Random`` is thread-safe enough: any number will do."""

    def __init__(self, seed: int, share: float, longest_s: float) -> None:
        self._random = random.Random(seed * 1_000_003 + os.getpid())  # else all ranks would stall in step
        self._share, self._longest_s = share, longest_s

    @classmethod
    def from_text(cls, text: str) -> Stalls:
        """Parse ``seed:share:longest_s``."""
        seed, share, longest_s = text.split(":")
        return cls(int(seed), float(share), float(longest_s))

    def text(self, seed: int) -> str:
        """Notation that ``from_text`` reads, with another seed."""
        return f"{seed}:{self._share}:{self._longest_s}"

    def stall(self) -> None:
        """Sleep, now and then."""
        if self._random.random() < self._share:
            time.sleep(self._random.random() * self._longest_s)


def install(stalls: Stalls) -> None:
    """Let the locks that Farandole makes from now on stall, and all sockets; call it before ``farandole`` makes any."""
    real_lock, real_rlock, real_condition = threading.Lock, threading.RLock, threading.Condition

    def wrap(make: Callable[..., Any], *names: str) -> Callable[..., Any]:
        def made(*args: Any, **kwargs: Any) -> Any:
            inner = make(*args, **kwargs)
            caller = sys._getframe(1).f_globals.get("__name__", "")
            return _Stalling(inner, stalls, names) if caller.startswith("farandole.") else inner

        return made

    threading.Lock = wrap(real_lock, "acquire", "release")  # type: ignore[assignment]
    threading.RLock = wrap(real_rlock, "acquire", "release")  # type: ignore[assignment]

    class Condition(threading.Condition):  # a class, as others use its methods
        def __new__(cls, lock: Any = None) -> Any:
            caller = sys._getframe(1).f_globals.get("__name__", "")
            # Over the lock inside: two conditions may share one, and each stalls by itself.
            inner = real_condition(lock._inner if isinstance(lock, _Stalling) else lock)
            names = ("acquire", "release", "wait", "wait_for", "notify", "notify_all")
            return _Stalling(inner, stalls, names) if caller.startswith("farandole.") else inner

    threading.Condition = Condition  # type: ignore[misc]
    for owner, names in (
        (zmq.Socket, ("send", "send_multipart", "recv", "recv_multipart")),
        (socket.socket, ("send", "sendall", "recv", "recv_into", "sendmsg", "connect")),
    ):
        for name in names:
            setattr(owner, name, _before(getattr(owner, name), stalls))


def _before(function: Callable[..., Any], stalls: Stalls) -> Callable[..., Any]:
    @wraps(function)
    def stalling(*args: Any, **kwargs: Any) -> Any:
        stalls.stall()
        return function(*args, **kwargs)

    return stalling


@final
class _Stalling:
    """A lock or condition that stalls before and after its operations."""

    def __init__(self, inner: Any, stalls: Stalls, names: tuple[str, ...]) -> None:
        self._inner, self._stalls = inner, stalls
        for name in names:
            setattr(self, name, self._around(getattr(inner, name)))

    def _around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def stalling(*args: Any, **kwargs: Any) -> Any:
            self._stalls.stall()
            try:
                return function(*args, **kwargs)
            finally:
                self._stalls.stall()

        return stalling

    def __enter__(self) -> Any:
        self._stalls.stall()
        return self._inner.__enter__()

    def __exit__(self, *error: object) -> Any:
        try:
            return self._inner.__exit__(*error)
        finally:
            self._stalls.stall()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)
