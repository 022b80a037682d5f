"""Wait for the controller's abort reason, on a rank whose engine only knows which connection was lost.

    await_news(told, lambda: active.older_than(0.0, generation), link.up)

When a rank dies, engines often notice before the controller knows which rank and why: a connection breaks, or a
neighbour gives up because its own connection broke. Errors should name the cause.

Threads. The thread whose engine failed waits here; the control thread receives the reason and ends the session, which
sets ``told`` and so wakes the waiter. The session stores the failure to raise before it sets ``told``. A signal handler
may end the session on top of the waiting thread: hence no ``threading.Event``.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence

from farandole.control.channel import Dealer
from farandole.control.messages import Blocked
from farandole.control.reentrant_event import ReentrantEvent
from farandole.errors import ControlError

REASON_WAIT_S = 2.0
"""Longest wait for the reason. It only lasts that long if no rank has ended: an engine failed by itself."""

ASK_AGAIN_S = 0.1


def await_news(told: ReentrantEvent, blocked: Callable[[], Sequence[Blocked]], up: Dealer) -> None:
    """Wait for the controller's abort reason, which sets ``told``, at most ``REASON_WAIT_S``.

    The controller reports a death to every rank, and a ``shutdown()`` only to the ranks that are ``blocked`` by it.
    """
    until_s = time.monotonic() + REASON_WAIT_S
    while not told.is_set() and time.monotonic() < until_s:
        with contextlib.suppress(ControlError):  # closed: the session has ended here, and ``told`` is set
            for message in blocked():
                up.send(message)
        told.wait(ASK_AGAIN_S)
