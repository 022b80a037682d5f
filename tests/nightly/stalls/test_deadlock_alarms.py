"""No false alarm: programs that look like a deadlock for long, to whom looks often, and come to their end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.support.launching import Launch

PRELUDE = """
import _thread, ctypes, os, select, signal, threading
from pathlib import Path
import numpy as np
from farandole.collective import Kind
from farandole.errors import UsageError
from farandole.runtime.collectives.planned import PlannedLane
from farandole.runtime.lanes.announcement import Announcement
from farandole.runtime.lanes.native_threads import expect_native_threads
from farandole.runtime.session import session as sessions
from farandole.runtime.session.init import current, global_process_set, init
from workbench.jobs import NumpyCalls

sessions.WAITS_LOOK_S = 0.02
looks, survey, waiting = [], sessions.survey, None

def counted(*arguments):
    looks.append(survey(*arguments))
    if waiting is not None and looks[-1].waits:
        waiting.touch()
    return looks[-1]

sessions.survey = counted

def be_looked_at(times=20):
    until = len(looks) + times
    while len(looks) < until:
        threading.Event().wait(0.01)

init(process_sets=SETS)
session, x = current(), np.ones(1)
rank = session.topology.rank
everybody = NumpyCalls()
"""

HANDLER = """
def handle(*_):
    be_looked_at()  # another script's writes a file, or waits for one
    if HOW == "planned":
        try:
            p.meet("on top of another one", "ready")
        except UsageError:
            refused.append(True)
    q.meet("in the handler", "ready")

refused = []
p, q = (PlannedLane(session, global_process_set, label) for label in "pq")
signal.signal(signal.SIGUSR1, handle)
number = np.array([float(os.getpid()) if rank == 0 else 0.0])
everybody.allreduce("number", number)
for turn in range(3):
    inside = Path(f"inside-{turn}")
    if rank == 0:
        waiting = inside
        WAIT
        waiting = None
    else:
        while not inside.exists():
            be_looked_at(1)
        os.kill(int(number[0]), signal.SIGUSR1)
        q.meet("in the handler", "ready")
        WAIT
    q.meet("between", "ready")
numbers = np.array([float(p._collectives.sequence)])
everybody.allreduce("numbers", numbers)
assert numbers[0] == 2 * p._collectives.sequence, "what was refused counts on no rank"
assert bool(refused) == (HOW == "planned" and rank == 0)
print("done")
"""

NATIVE = """
class Sigevent(ctypes.Structure):
    _fields_ = [("value", ctypes.c_void_p), ("signal", ctypes.c_int), ("notify", ctypes.c_int),
                ("function", ctypes.c_void_p), ("attributes", ctypes.c_void_p), ("rest", ctypes.c_byte * 32)]

libc = ctypes.CDLL(None, use_errno=True)
ended = threading.Event()

@ctypes.CFUNCTYPE(None, ctypes.c_void_p)
def from_a_native_thread(_):
    everybody.allreduce("native", x)
    ended.set()

timer = ctypes.c_void_p()
event = Sigevent(notify=2, function=ctypes.cast(from_a_native_thread, ctypes.c_void_p))  # SIGEV_THREAD
assert libc.timer_create(1, ctypes.byref(event), ctypes.byref(timer)) == 0

def come_later(seconds):
    when = (ctypes.c_long * 4)(0, 0, int(seconds), int(seconds % 1 * 1e9))
    assert libc.timer_settime(timer, 0, when, None) == 0

if HOW == "known":
    expect_native_threads()
else:  # it has come before
    come_later(0.001) if rank == 0 else from_a_native_thread(None)
    ended.wait()
for turn in range(2):
    if rank == 0:
        ended.clear()
        come_later(1.0)  # in C until then
        everybody.allreduce("main", x)
        ended.wait()
    else:
        everybody.allreduce("native", x)
        everybody.allreduce("main", x)
libc.timer_delete(timer)
print("done")
"""

IN_C = """
from concurrent.futures import ThreadPoolExecutor

pool = ThreadPoolExecutor(1)
pool.submit(int).result()  # its thread waits for a task from now on
for wait in (lambda: select.poll().poll(700), lambda: ctypes.CDLL(None).usleep(700_000)):
    def come():
        wait()
        everybody.allreduce("later", x)

    if rank == 0:
        thread = threading.Thread(target=come) if HOW == "threading" else None
        ended = threading.Event()
        if thread:
            thread.start()
        elif HOW == "pool":
            pool.submit(lambda: (come(), ended.set()))
        else:
            _thread.start_new_thread(lambda: (come(), ended.set()), ())
        everybody.allreduce("first", x)
        thread.join() if thread else ended.wait()
    else:
        everybody.allreduce("later", x)
        everybody.allreduce("first", x)
print("done")
"""

CROSSING = """
pair = NumpyCalls(1)
for turn in range(3):
    order = [pair, everybody] if rank == 0 else [everybody, pair] if rank == 1 else [everybody]
    handles = []
    for do in order:
        handles.append(do.submit(do.reduction("allreduce.noname.0", np.ones(1))))
        be_looked_at(40)  # 0.8 s
    for handle in handles:
        handle.wait()
print("done")
"""

AGAIN = """
pair = NumpyCalls(1)
for turn in range(200):  # one name again and again, in flight and waited for, in sets whose members come at all times
    handle = everybody.submit(everybody.reduction("often", np.ones(1000)))
    if rank < 2:
        pair.allreduce("often", x)
    handle.wait()
    everybody.allreduce("granted", np.ones(1))
    if rank == turn % 3 and turn % 20 == 0:
        be_looked_at(5)
lane, old = session._lane, Announcement(0, "allreduce.often", Kind.ALLREDUCE, ())
assert lane.in_flight() is not None
lane._waits[1] = 1, old  # a thread that has not run since its collective ended
handle = everybody.submit(everybody.reduction("often", np.ones(1000)))
assert lane.in_flight() is None
del lane._waits[1]
handle.wait()
print("done")
"""


def _ends(launch: Launch, size: int, script: str, how: str = "") -> None:
    prelude = PRELUDE.replace("SETS", "[[0, 1]]" if size > 2 else "None")
    lines = launch(size, f"HOW = {how!r}{prelude}{script}").ok().lines()
    assert lines == ["done"] * size


@pytest.mark.parametrize("how", ["planned", "named"])
def test_a_signal_handler_that_takes_long_and_meets_the_others(launch: Launch, how: str) -> None:
    wait = {"planned": 'p.meet("a step", "ready")', "named": 'everybody.allreduce("named", np.ones(100))'}[how]
    _ends(launch, 2, HANDLER.replace("WAIT", wait), how)


@pytest.mark.parametrize("how", ["known", "come before"])
def test_a_native_thread_that_comes_later(launch: Launch, how: str) -> None:
    _ends(launch, 2, NATIVE, how)


@pytest.mark.parametrize("how", ["threading", "_thread", "pool"])
def test_a_thread_that_is_blocked_in_c(launch: Launch, how: str) -> None:
    _ends(launch, 2, IN_C, how)


def test_asynchronous_collectives_of_two_process_sets_in_another_order(launch: Launch) -> None:
    _ends(launch, 3, CROSSING)


def test_one_name_in_two_process_sets_again_and_again(launch: Launch) -> None:
    _ends(launch, 3, AGAIN)
