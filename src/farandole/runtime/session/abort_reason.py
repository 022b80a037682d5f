"""Wait for the controller's abort reason, on a rank whose engine only knows which connection it has lost.

    await_news(told, lambda: active.older_than(0.0, generation), link.up)

Where a rank dies, engines often notice before the controller can say who and how: a connection breaks, a neighbour
gives up because its own has broken. Errors should tell the cause.

Threads. The one whose engine has failed waits here; the control thread hears the reason, ends the session, which sets
``told``, and so wakes it. The session sets that after the failure to raise, so who finds it set has the failure, too.
A signal handler may end the session on top of the waiting thread: hence no ``threading.Event``.
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
"""The longest wait for the reason. It is only waited out where no rank has ended: an engine has failed by itself."""

ASK_AGAIN_S = 0.1


def await_news(told: ReentrantEvent, blocked: Callable[[], Sequence[Blocked]], up: Dealer) -> None:
    """Return when the end of the generation has been ``told``, or no reason for one has come in ``REASON_WAIT_S``.

    The controller tells every rank of one that has died, and of one that called ``shutdown()`` those ``blocked`` by it.
    """
    until_s = time.monotonic() + REASON_WAIT_S
    while not told.is_set() and time.monotonic() < until_s:
        with contextlib.suppress(ControlError):  # closed: the session has ended here, and ``told`` says so
            for message in blocked():
                up.send(message)
        told.wait(ASK_AGAIN_S)
