"""Scripts with signal handlers of their own, which are called all the time, in both lanes."""

from __future__ import annotations

import pytest

from tests.conftest import Launch

SCRIPT = """
import faulthandler, os, signal, socket, sys, threading
import numpy as np
from farandole.collective import DType, ReduceOp, Reduction
from farandole.runtime.session.init import current, init, shutdown
from farandole.testing.jobs import NumpyCalls

OWN = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP, signal.SIGCHLD, signal.SIGALRM)
got, pair = set(), socket.socketpair()

def handle(number, frame):
    got.add(number)

def install():
    for number in OWN:
        signal.signal(number, handle)
    pair[1].setblocking(False)
    signal.set_wakeup_fd(pair[1].fileno(), warn_on_full_buffer=False)
    faulthandler.enable()

def unchanged():
    fd = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(fd, warn_on_full_buffer=False)
    return fd == pair[1].fileno() and all(signal.getsignal(number) is handle for number in OWN)

if sys.argv[1] == "before":
    install()
init()
if sys.argv[1] == "after":
    install()
assert unchanged()
who, do, over = current().topology, NumpyCalls(), threading.Event()

def shoot():
    while not over.wait(0.001):
        for number in OWN[:5]:
            os.kill(os.getpid(), number)

shooter = threading.Thread(target=shoot)
shooter.start()
signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
total, engine = sum(range(who.size)), current().planned_engine(0, "lane")
memory = np.zeros(50_000, np.float32)
for step in range(150):
    for name, count in (("small", 5), ("large", 200_000)):
        values = np.full(count, who.rank, np.float32)
        do.allreduce(name, values)
        assert (values == total).all()
    memory[:] = who.rank
    with current().inside(0, "lane", step, f"lane: step {step}"):
        engine.allreduce(do.array(memory), Reduction(ReduceOp.SUM))
    assert (memory == total).all()
over.set()
shooter.join()
signal.setitimer(signal.ITIMER_REAL, 0)
assert got >= {*OWN[:5], signal.SIGALRM}, got
assert unchanged()
shutdown()
assert unchanged()
print("fine", flush=True)
"""


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("engine", ["shm", "tcp"])
def test_handlers_are_called_and_stay_and_numbers_are_right(launch: Launch, when: str, engine: str) -> None:
    assert launch(2, SCRIPT, options=("--engine", engine), arguments=(when,)).ok().lines() == ["fine", "fine"]
