"""What survivors see when a worker dies or never comes, through the real launcher."""

from __future__ import annotations

import re
import threading
from typing import TYPE_CHECKING

import pytest

from farandole.engines.engine import Rendezvous
from farandole.errors import FarandoleError
from farandole.runtime.session.init import current, init, shutdown
from workbench.jobs import run_job

if TYPE_CHECKING:
    from farandole.testing.rank import RankContext
    from tests.support.launching import Launch

PRELUDE = """
import os, sys, time
import numpy as np
from farandole.errors import CollectiveError
from farandole.runtime.session.init import current, init, shutdown
from workbench.jobs import NumpyCalls
from farandole.testing.leaks import no_leaks

init()
session, do, x = current(), NumpyCalls(), np.ones(1000)
rank = session.topology.rank
do.allreduce("first", x)
"""

DEATH = """
def die_or_raise(blocked, moment=sys.argv[1]):
    if rank == int(sys.argv[2]):
        with open(moment, "w") as file:
            file.write(repr(time.time()))
        os.kill(os.getpid(), 9)
    try:
        blocked()
    except CollectiveError as error:
        with open(moment) as file:
            print(type(error).__name__, error, "in time" if time.time() - float(file.read()) < 0.5 else "late")

def planned():
    lane = session.planned.lane(0, "p", "p: ")
    while True:
        with lane.next("bucket"):
            engine.barrier()
"""

SECOND_ENGINE = """
session.planned.engine(0, "again")
try:
    session.planned.engine(0, "again") if rank == 0 else do.allreduce("elsewhere", x)
except CollectiveError as error:
    print(error)
"""

SURVIVAL = """
shutdown()
for _ in range(2):  # the second time has to leave no more than the first
    with no_leaks():
        init()
        y = np.ones(3)
        do.allreduce("again", y)
        print("again", current().topology.rank, current().topology.size, y[0])
        shutdown()
"""


def test_a_deadlock_in_the_second_engine_of_a_label_is_found_at_once(launch: Launch) -> None:
    found = launch(2, PRELUDE + SECOND_ENGINE).ok().lines()
    assert len(found) == 2
    assert all(
        "deadlock, as all threads of these ranks wait: " in line and "again: connecting" in line for line in found
    )


def test_survivors_are_told_at_once_and_go_on_in_the_same_process(launch: Launch) -> None:
    for victim, blocked in ((1, 'lambda: do.allreduce("second", x)'), (0, "planned")):
        script = PRELUDE + 'engine = session.planned.engine(0, "p")\n' + DEATH
        script += f"die_or_raise({blocked})\n" + SURVIVAL
        for _ in range(5):  # this machine may be busy with other things for half a second
            done = launch(3, script, options=["--on-failure", "continue"], arguments=["moment", str(victim)])
            if "late" not in done.stdout:
                break
        assert done.code == 137
        host = re.search(rf"rank {victim} on (\S+) was killed by SIGKILL", done.stderr)
        assert host, done.stderr
        told = f"AbortError rank {victim} on {host[1]} was killed by SIGKILL in time"
        again = [f"again {rank} 2 2.0" for rank in (0, 1)] * 2
        assert done.lines() == sorted([told, told, *again]), done.stdout + done.stderr


def test_one_that_never_calls_init_is_named(launch: Launch) -> None:
    script = """
        import os, signal
        from farandole.runtime.session.init import init
        init() if os.environ["FARANDOLE_RANK"] == "0" else signal.pause()
    """
    done = launch(2, script, options=["--start-timeout", "3"])
    assert done.code == 1
    assert re.search(r"StartError: .*rank 1 on \S+ \(process \d+\) has not called init\(\) within 3 s", done.stderr)


@pytest.mark.parametrize(
    "busy",
    [
        "while time.monotonic() < end: pass",
        "collections.deque(itertools.takewhile(end.__gt__, iter(time.monotonic, None)), 0)",
    ],
    ids=["computing", "holding the interpreter's lock"],
)
def test_who_never_comes_is_shown_with_its_stack_and_then_everybody_raises(launch: Launch, busy: str) -> None:
    script = PRELUDE + (
        "import collections, itertools\n"
        "def computing():\n"
        "    end = time.monotonic() + 7\n"
        f"    {busy}\n"
        "try:\n"
        "    computing() if rank == 1 else None\n"
        '    do.allreduce("second", x)\n'
        "except CollectiveError as error:\n"
        "    print(type(error).__name__, error)\n"
    )
    limits = ["--stall-check-warning-time-seconds", "0.5", "--stall-check-shutdown-time-seconds", "3"]
    done = launch(2, script, options=limits).ok()
    assert "in computing" in done.stderr, done.stderr
    assert re.search(r"rank 1 on \S+ last finished allreduce\S* 'first'", done.stderr), done.stderr
    assert len(done.lines()) == 2
    assert all(re.match(r"StallError allreduce 'second' has waited .* rank 1 on", line) for line in done.lines())


MISMATCH = """
from farandole.runtime.session.process_sets import ProcessSet

try:
    others = session.add_process_set([1, 2])  # rank 0 may be in here still when the others have ended
    if rank:
        NumpyCalls(others.process_set_id).allreduce("differs", np.ones(rank))
    do.allreduce("never", x)
except CollectiveError as error:
    print(type(error).__name__, error)
    raise
"""


def test_who_waits_elsewhere_reads_why_the_ranks_differ(launch: Launch) -> None:
    done = launch(3, PRELUDE + MISMATCH, options=["--on-failure", "continue"])  # else a busy rank may be ended first
    assert done.code
    lines = done.lines()
    assert len(lines) == 3
    for line in lines:
        assert line.startswith("MismatchError allreduce 'differs' in process set 1: the ranks differ in the shape")
    assert any(re.search(r"\(raised on rank [12] on \S+, whose script has ended\)", line) for line in lines)


CROSSED_LANES = """
from farandole.errors import MismatchError
from farandole.runtime.collectives.planned import PlannedLane
from farandole.runtime.session.init import current, init
from farandole.runtime.session.process_sets import global_process_set

init()
session = current()

def lane(label):
    PlannedLane(session, global_process_set, label)

def engine(label):
    session.planned.engine(0, label)

first, second = [lane, engine][:: 1 if session.topology.rank else -1]
try:
    first(first.__name__)
except MismatchError as error:
    print(error)
"""


def test_ranks_that_make_engines_in_another_order_are_found_at_once(launch: Launch) -> None:
    """One for a lane, another for itself: each rank waits with one thread, in one collective."""
    lines = launch(2, CROSSED_LANES).ok().lines()
    assert len(lines) == 2
    assert re.search(r"rank 0 on \S+ in engine: connecting, for rank 1 on \S+; rank 1 on \S+ in lane: ", lines[0])


def _leave_while_an_engine_is_made(member: RankContext) -> str:
    """Rank 0 has said that it has mapped all memory, and is interrupted before rank 1 has mapped that of rank 0."""
    init()
    settle, rounds, said = Rendezvous.__call__, [0], ""
    settling: list[threading.Thread] = []

    def interrupted(self: Rendezvous, payload: bytes) -> list[bytes]:
        rounds[0] += 1
        if member.rank == 0 and rounds[0] == 2:
            settling.append(threading.Thread(target=settle, args=(self, payload)))
            settling[0].start()
            raise KeyboardInterrupt
        found = settle(self, payload)
        if member.rank and rounds[0] == 1:
            member.exchange(b"")  # until rank 0 has dropped its memory
        return found

    Rendezvous.__call__ = interrupted  # type: ignore[method-assign]  # this process ends with the test
    try:
        current().planned.engine(0, "p")
    except KeyboardInterrupt:
        member.exchange(b"")
        settling[0].join()
        shutdown()
    except FarandoleError as error:
        said = f"{type(error).__name__} {error}"
    member.exchange(b"")
    shutdown()
    return said


def test_a_rank_that_leaves_while_an_engine_is_made_is_named() -> None:
    """And not memory that "could not be shared", which is all that the engine of the other rank knows."""
    said = run_job(_leave_while_an_engine_is_made, 2)
    assert re.match(r"AbortError rank 0 on \S+ has called shutdown\(\)", said[1]), said
