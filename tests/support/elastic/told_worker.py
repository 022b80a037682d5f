"""The worker of an elastic job that is told to end, or interrupted, at every moment of one re-formation after another.

``told_worker.py SIGTERM|SIGINT EVERY``: at each EVERY-th moment. Writes how many there were.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import signal
import sys
import threading

from farandole.elastic.worker.run import run
from farandole.elastic.worker.state import ObjectState
from farandole.errors import HostsUpdatedInterrupt
from farandole.runtime.session.init import init, rejoin, shutdown
from tests.support.runtime.interruptions import at_every_call

HANG_S = 60.0
FILES = tuple(
    f"farandole/{name}.py"
    for name in (
        "elastic/worker/run",
        "runtime/session/init",
        "runtime/session/start",
        "runtime/session/link",
        "runtime/session/session",
        "runtime/session/control_thread",
        "runtime/session/engine_pool",
        "control/channel",
        "control/admission",
        "control/sockets",
    )
)


class Calls(ObjectState):
    """How often the training function was called since this worker was told last."""

    calls: int


@run
def train(state: Calls) -> None:
    """Re-form once."""
    state.calls += 1
    state.commit()
    if state.calls == 1:
        raise HostsUpdatedInterrupt
    state.commit()


def main() -> None:
    """Be told at one moment after the other."""
    number, every = signal.Signals[sys.argv[1]], int(sys.argv[2])
    init()
    ended = moments = threads = 0

    def tell() -> None:
        if signal.getsignal(number) != signal.SIG_DFL:  # else it is not in the training function yet, or no more
            signal.raise_signal(number)

    for interruption in at_every_call(tell, FILES):
        if moments % every == 0:
            faulthandler.dump_traceback_later(HANG_S, exit=True)
            with contextlib.suppress(SystemExit, KeyboardInterrupt):
                interruption.run(lambda: train(Calls(calls=0)))
                ended -= 1
            ended += 1
            signal.signal(signal.SIGTERM, signal.SIG_DFL)  # who is told ignores it
            gc.collect()
            shutdown()
            if number == signal.SIGTERM:  # Ctrl-C may leave some to the end of the process
                threads = max(threads, threading.active_count())
            rejoin("", 0)
        else:
            interruption.has_come = True
        moments += 1
    faulthandler.cancel_dump_traceback_later()
    print(f"moments {moments // every}, ended at {ended}, threads {threads}", flush=True)


main()
