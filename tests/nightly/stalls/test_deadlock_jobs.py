"""Ranks that wait for each other raise within seconds, whatever lanes they are in; ranks that are slow do not."""

from __future__ import annotations

import _thread
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import pytest

from farandole.control.messages import ThreadWait, Waits
from farandole.native.core import call_stacks
from farandole.runtime.lanes import native_threads, thread_joins, thread_waits
from farandole.runtime.lanes.active_collectives import ActiveCollectives
from farandole.runtime.lanes.reentry import Reentry
from farandole.runtime.lanes.single_process import SingleProcessLane
from farandole.runtime.lanes.thread_waits import survey
from tests.support.patience import PATIENCE_S

if TYPE_CHECKING:
    from tests.support.launching import Launch

Waiting: TypeAlias = Callable[..., None]

PRELUDE = """
import numpy as np
from farandole.errors import MismatchError
from farandole.runtime.collectives.planned import PlannedLane
from farandole.runtime.session.init import current, init
from farandole.runtime.session.process_sets import ProcessSet, global_process_set
from workbench.jobs import NumpyCalls

pair = ProcessSet([0, 1])
init(process_sets=[pair])
session, x = current(), np.ones(1)
rank = session.topology.rank
everybody, both = NumpyCalls(), NumpyCalls(pair.process_set_id)

def end(call):
    try:
        call()
        print("went on")
    except MismatchError as error:
        print(error)
"""

CROSSED = """
def crossed():
    calls = [lambda: both.allreduce("a", x), lambda: everybody.allreduce("b", x)]
    for call in {0: calls, 1: calls[::-1], 2: calls[1:]}[rank]:
        call()

end(crossed)
end(lambda: everybody.allreduce("later", x))
"""

EXTRA = """
lane = PlannedLane(session, global_process_set, "optimizer.0")

def one_more_step():
    for step in range(4):
        if step < 3 or rank == 1:
            lane.meet(f"step {step}", "ready")
        if step < 3:
            for again in range(3):  # from rank to rank from the third time on
                everybody.allreduce("loss", x)
    everybody.allreduce("loss", x)

end(one_more_step)
"""

ANOTHER = """
lane = PlannedLane(session, global_process_set, "optimizer.0")
lane.meet("step 0", "ready")

def another_optimizer():
    if rank == 1:
        PlannedLane(session, global_process_set, "optimizer.1")
    lane.meet("step 1", "ready")

end(another_optimizer)
"""


def test_process_sets_in_another_order_on_another_rank(launch: Launch) -> None:
    lines = launch(3, PRELUDE + CROSSED).ok().lines()
    assert len(lines) == 6
    assert len(set(lines)) == 1, "all ranks raise the same, and again whatever they call"
    assert "wait: rank 0 on " in lines[0]
    assert "in allreduce 'a' in process set 1, for rank 1 on " in lines[0]
    assert re.search("; (rank 1|ranks 1-2) on ", lines[0])  # of the last one it may not know yet
    assert "in allreduce 'b', for rank 0 on " in lines[0]


def test_a_step_more_of_one_rank(launch: Launch) -> None:
    lines = launch(3, PRELUDE + EXTRA).ok().lines()
    assert len(lines) == 3
    assert len(set(lines)) == 1
    assert "in allreduce 'loss', for rank 1 on " in lines[0]
    assert re.search(r"in optimizer\.0: step 3, for (rank 0|rank 2|ranks 0, 2) on ", lines[0])


def test_an_optimizer_more_on_one_rank(launch: Launch) -> None:
    lines = launch(3, PRELUDE + ANOTHER).ok().lines()
    assert len(lines) == 3
    assert len(set(lines)) == 1
    assert "in optimizer.0: step 1, for rank 1 on " in lines[0]
    assert re.search(r"in optimizer\.1: connecting, for (rank 0|rank 2|ranks 0, 2) on ", lines[0])


def _as_in(module: str, function: str) -> Waiting:
    """A function of this name that calls what it gets, as one of that module would on the stack."""
    names: dict[str, Any] = {"__name__": module}
    exec(f"def {function}(*calls):\n    for call in calls:\n        call()", names)
    return cast("Waiting", names[function])


@pytest.fixture(autouse=True)
def no_native_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """None are there: other tests of this process may have compiled programs, and pytest's workers have a thread."""
    monkeypatch.setattr(native_threads, "_expectation", native_threads._Expectation())
    others = call_stacks().keys() - {threading.get_ident()}
    ours = lambda: {thread: calls for thread, calls in call_stacks().items() if thread not in others}  # noqa: E731
    monkeypatch.setattr(thread_waits, "call_stacks", ours)
    monkeypatch.setattr(native_threads, "_all", lambda: [t for t in threading.enumerate() if t.ident not in others])


meet = _as_in("farandole.runtime.collectives.planned", "meet")


def _survey(active: ActiveCollectives, wait: Waiting = meet) -> Waits:
    """What the control thread finds, while the thread that calls this waits."""
    lane = SingleProcessLane(lambda *_: [], "a", [], True, Reentry())
    found: list[Waits] = []
    begun = threading.Event()

    def control() -> None:
        begun.wait()
        found.append(survey(1, active, lane))

    thread = threading.Thread(target=control, name="farandole-control")
    thread.start()
    wait(begun.set, thread.join)
    return found[0]


def _run(*calls: Callable[[], object]) -> None:
    for call in calls:
        call()


def test_all_threads_must_wait() -> None:
    active = ActiveCollectives()
    assert _survey(active) == Waits(1)
    active.enter(0, "p", 3, "p: step 3", needs_all=True)
    assert _survey(active) == Waits(1, [ThreadWait(1, 0, "p: step 3", lane="p", sequence=3)], [], [(0, "p", 3)])
    is_free = threading.Event()
    other = threading.Thread(target=is_free.wait)
    other.start()
    assert _survey(active) == Waits(1), "this one may call a collective yet"
    is_free.set()
    other.join()
    active.exit(0, "p")
    active.enter(0, "p", 4, "p: gather")
    assert _survey(active) == Waits(1), "may end before all have come, where one gives nothing"
    active.enter(0, "p", 4, "p: step 4", needs_all=True)
    active.enter(0, "q", 1, "q: step 1", needs_all=True)
    assert _survey(active) == Waits(1), "a signal handler has interrupted the first one, and may raise"
    active.exit(0, "q")
    active.enter(0, "q", 2, "q: gather")
    assert _survey(active) == Waits(1), "so it has, and is in what may end without us"
    active.exit(0, "q")
    assert len(_survey(active).waits) == 1


def test_a_thread_that_waits_for_one_that_waits_does_so_too() -> None:
    active, found = ActiveCollectives(), list[Waits]()
    main = threading.get_ident()

    def work() -> None:
        active.enter(0, "p", 3, "p: step 3", needs_all=True)
        while ("threading", "join") not in call_stacks()[main]:
            pause.wait(0.001)
        found.append(_survey(active))
        active.exit(0, "p")

    pause = threading.Event()
    for wait in (thread_joins.join, threading.Thread.join):
        thread = threading.Thread(target=work)
        thread.start()
        wait(thread)
    assert [[each.what for each in waits.waits] for waits in found] == [["p: step 3"], []]
    assert thread_joins.joined() == {}


def test_a_signal_handler_on_top_of_a_wait_does_not_wait() -> None:
    active = ActiveCollectives()
    active.enter(0, "p", 3, "p: step 3", needs_all=True)
    assert len(_survey(active).waits) == 1
    inside = _as_in("farandole.runtime.lanes.negotiated", "recv")
    assert len(_survey(active, lambda *calls: meet(partial(inside, *calls))).waits) == 1
    assert _survey(active, lambda *calls: meet(partial(_run, *calls))) == Waits(1), "one of the script is on top"
    assert _survey(active, _run) == Waits(1)
    elsewhere = _as_in("farandole.runtime.session.init", "shutdown")
    assert _survey(active, lambda *calls: meet(partial(elsewhere, *calls))) == Waits(1)


def test_a_native_thread_that_has_come_once_may_come_again() -> None:
    started, active = native_threads.StartedThreads(), ActiveCollectives()
    active.enter(0, "p", 3, "p: step 3", needs_all=True)
    started.note()
    thread = threading.Thread(target=started.note)
    thread.start()
    thread.join()
    assert len(_survey(active).waits) == 1
    ended = threading.Event()
    _thread.start_new_thread(_run, (started.note, ended.set))  # which ``threading`` knows no better
    ended.wait()
    assert _survey(active) == Waits(1)


def test_a_timer_may_end_a_wait() -> None:
    active = ActiveCollectives()
    active.enter(0, "p", 3, "p: step 3", needs_all=True)
    before = signal.signal(signal.SIGALRM, signal.SIG_IGN)
    signal.setitimer(signal.ITIMER_REAL, 100.0)
    try:
        assert _survey(active) == Waits(1)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
    assert _survey(active).waits


KEEPS_NOTHING = """
import sys, threading, time, weakref
from farandole.native.core import call_stacks

class Optimizer:
    pass

def look():
    while not is_over.is_set():
        call_stacks()

def drop():
    optimizer = Optimizer()
    time.sleep(0)  # the other thread looks now
    return weakref.ref(optimizer)

is_over = threading.Event()
sys.addaudithook(lambda event, arguments: None)  # as libraries do: Python in the middle of what is C
thread = threading.Thread(target=look)
thread.start()
sys.setswitchinterval(1e-6)
print(sum(drop()() is not None for _ in range(3000)))
is_over.set()
thread.join()
"""


def test_a_survey_keeps_nothing_alive_that_a_script_drops() -> None:
    """Not even for a moment: an optimizer must be gone at the same line on every rank."""
    done = subprocess.run(
        [sys.executable, "-c", KEEPS_NOTHING], capture_output=True, text=True, timeout=PATIENCE_S, check=True
    )
    assert done.stdout == "0\n"
