"""Who has ended, asked of the controller by a rank whose engine only knows whom it has lost.

    await_news(told, lambda: planned.older_than(0.0, generation), link.up)

Where a rank dies, engines often notice before the controller can say who and how: a connection breaks, a neighbour
gives up because its own has broken. Errors should tell the cause.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence

from farandole.control.channel import Dealer
from farandole.control.messages import Blocked
from farandole.errors import ControlError

REASON_WAIT_S = 2.0
"""How long to wait for news. It is only waited out where nobody has ended: an engine has failed by itself."""

ASK_AGAIN_S = 0.1


def await_news(told: threading.Event, blocked: Callable[[], Sequence[Blocked]], up: Dealer) -> None:
    """Return when the end of the generation has been ``told``, or there will be no news of one.

    Of a rank that dies the controller tells everybody. Of one that called ``shutdown()`` it tells who is blocked.
    """
    until_s = time.monotonic() + REASON_WAIT_S
    while not told.is_set() and time.monotonic() < until_s:
        with contextlib.suppress(ControlError):
            for message in blocked():
                up.send(message)
        told.wait(ASK_AGAIN_S)
