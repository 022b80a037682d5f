"""Small all-reduces that come often, through the real launcher: without the controller, and with the same ends."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import pytest

from farandole.collective import Kind, ReduceOp
from farandole.errors import MismatchError
from farandole.runtime.session.init import current, init, shutdown
from farandole.testing.rank import RankContext
from tests.support.runtime.cases import play, require
from workbench.jobs import NumpyCalls, run_job

if TYPE_CHECKING:
    from tests.support.launching import Launch

SIZE = 3


def again_and_again(name: str, rank: int) -> None:
    """Often enough for the ranks to tell each other what they contribute, without the controller."""
    for turn in range(5):
        x = np.array([rank + 1.0, turn])
        NumpyCalls().allreduce(name, x)
        np.testing.assert_array_equal(x, [6, SIZE * turn])


def who_takes_the_long_way_takes_all_along(rank: int) -> None:
    do, last = NumpyCalls(), rank == SIZE - 1
    deviations: dict[str, Callable[[], object]] = {
        "shape": lambda: do.allreduce("loss", np.ones(3 if last else 2)),
        "reduce operation": lambda: do.allreduce("loss", np.ones(2), ReduceOp.MAX if last else ReduceOp.SUM),
        "the last one cannot": lambda: (
            current().refuse(0, "allreduce.loss", Kind.ALLREDUCE, ValueError("the last one cannot"))
            if last
            else do.allreduce("loss", np.ones(2))
        ),
    }
    for what, deviate in deviations.items():
        again_and_again("loss", rank)
        if last and "cannot" in what:
            deviate()
        else:
            with pytest.raises(MismatchError, match=what):
                deviate()
    again_and_again("loss", rank)
    for chosen in range(SIZE):  # one that does not wait for it, and does something else meanwhile
        x = np.array([rank + 1.0, 1.0])
        handle = do.submit(do.reduction("loss", x), background=rank == chosen)
        do.allreduce(f"else.{chosen}", np.ones(100)) if rank == chosen else handle.wait()
        if rank != chosen:
            do.allreduce(f"else.{chosen}", np.ones(100))
        handle.wait()
        np.testing.assert_array_equal(x, [6, SIZE])


def names_of_another_process_set_are_noticed_though_nobody_asks(rank: int) -> None:
    again_and_again("crossing", rank)
    others = current().add_process_set([1, 2])
    crossing = NumpyCalls(others.process_set_id or 0) if rank == 1 else NumpyCalls()
    with pytest.raises(MismatchError, match="differ in the process set"):
        crossing.allreduce("crossing", np.ones(2))
    again_and_again("crossing", rank)
    current().remove_process_set(others)


def many_names_in_any_order_come_often(rank: int) -> None:
    do = NumpyCalls()
    for turn in range(5):
        held = {f"often.{i}": np.full(3, float(i + turn)) for i in range(60)}
        order = np.random.default_rng(rank * 10 + turn).permutation(list(held))
        handles = [do.submit(do.reduction(name, held[name])) for name in order]
        for handle in handles:
            handle.wait()
        for i, x in enumerate(held.values()):
            np.testing.assert_array_equal(x, np.full(3, SIZE * float(i + turn)))


def nobody_waits_for_who_has_joined(rank: int) -> None:
    do = NumpyCalls()
    for first in range(SIZE):
        again_and_again("uneven", rank)
        x = np.ones(2)
        handle = do.submit(do.reduction("in flight", x))  # of all, also of who joins meanwhile
        for _ in range(3 if rank != first else 0):
            y = np.ones(2)
            do.allreduce("uneven", y)
            np.testing.assert_array_equal(y, [SIZE - 1, SIZE - 1])
        current().join()
        handle.wait()
        np.testing.assert_array_equal(x, [SIZE, SIZE])
    again_and_again("uneven", rank)


def who_joins_waits_for_nobody_who_waits_for_its_join(rank: int) -> None:
    """Rank 0 has contributed to what the others come to after something that only its join can end."""
    do = NumpyCalls()
    for turn in range(10):
        again_and_again("after", rank)
        again_and_again("before", rank)
        x, y = np.array([rank + 1.0]), np.array([rank + 1.0])
        handle = None
        if rank == 0:
            handle = do.submit(do.reduction("after", x))
        else:
            do.allreduce("before" if turn % 2 else f"new.{turn}", y)
            assert y.tolist() == [2.0 + 3.0]
            do.allreduce("after", x)
        current().join()
        if handle is not None:
            handle.wait()
        assert x.tolist() == [6.0]


CASES: dict[str, Callable[[int], None]] = {
    case.__name__: case
    for case in (
        who_takes_the_long_way_takes_all_along,
        many_names_in_any_order_come_often,
        nobody_waits_for_who_has_joined,
        who_joins_waits_for_nobody_who_waits_for_its_join,
        names_of_another_process_set_are_noticed_though_nobody_asks,
    )
}


def _program(member: RankContext) -> dict[str, str]:
    init()
    rank = current().topology.rank
    found = play({name: functools.partial(case, rank) for name, case in CASES.items()})
    shutdown()
    return found


@functools.cache
def _launch() -> list[dict[str, str]]:
    return run_job(_program, SIZE, environment={"FARANDOLE_STALL_SHUTDOWN_S": "30"})


@pytest.mark.parametrize("case", CASES)
def test_ends_are_the_same_on_all_ranks(case: str) -> None:
    require(_launch(), case)


# -- through the launcher ----------------------------------------------------------------------------------------------

PRELUDE = """
import os, signal, sys, threading, time
import numpy as np
from farandole.errors import CollectiveError
from farandole.runtime.session.init import current, init, shutdown
from workbench.jobs import NumpyCalls
from farandole.testing.leaks import no_leaks

init()
session, do = current(), NumpyCalls()
rank, size = session.topology.rank, session.topology.size

def log(times=10, name="loss"):
    for turn in range(times):
        x = np.array([rank + 1.0, turn])
        do.allreduce(name, x)
        assert x.tolist() == [size * (size + 1) / 2, size * turn], x

log()
"""


def test_the_controller_is_not_asked(launch: Launch) -> None:
    script = PRELUDE + (
        "if rank == 0:\n"
        "    os.kill(os.getppid(), signal.SIGSTOP)\n"
        "try:\n"
        "    log(200)\n"
        "finally:\n"
        "    if rank == 0:\n"
        "        os.kill(os.getppid(), signal.SIGCONT)\n"
        "log(name='another')\n"
        "print('done')\n"
        "shutdown()\n"
    )
    assert launch(3, script).ok().lines() == ["done"] * 3


def test_without_a_cache_it_is(launch: Launch) -> None:
    script = PRELUDE + "print(len(os.listdir('/proc/self/fd')))\nlog()\nprint(len(os.listdir('/proc/self/fd')))\n"
    done = launch(2, script, environment={"FARANDOLE_CACHE_CAPACITY": "0"}).ok()
    assert len(set(done.lines())) <= 2, "no connections have been made"


def test_nothing_is_left_behind(launch: Launch) -> None:
    script = PRELUDE + (
        "shutdown()\n"
        "for _ in range(3):\n"
        "    with no_leaks():\n"
        "        init()\n"
        "        log()\n"
        "        shutdown()\n"
        "print('done')\n"
    )
    assert launch(2, script).ok().lines() == ["done"] * 2


@pytest.mark.parametrize("end", ["os.kill(os.getpid(), 9)", "shutdown(); sys.exit()"], ids=["killed", "left"])
def test_who_waits_learns_of_an_end(launch: Launch, end: str) -> None:
    script = PRELUDE.removesuffix("log()\n") + (
        "try:\n"
        "    log()\n"
        "    if rank == 1:\n"
        f"        {end}\n"
        "    log()\n"
        "except CollectiveError as error:\n"
        "    print(type(error).__name__, error)\n"
        "shutdown()\n"
    )
    done = launch(3, script, options=["--on-failure", "continue"])
    expected = "was killed by SIGKILL" if "9" in end else r"has called shutdown\(\)"
    assert len(done.lines()) == 2, done.stdout + done.stderr
    assert all(re.match(rf"AbortError .*rank 1 on \S+ {expected}", line) for line in done.lines()), done.stdout


def test_who_does_not_come_is_named(launch: Launch) -> None:
    script = PRELUDE + (
        "try:\n"
        "    if rank == 1:\n"
        "        while not session.broken: pass\n"
        "    log()\n"
        "except CollectiveError as error:\n"
        "    print(type(error).__name__, error)\n"
    )
    limits = ["--stall-check-warning-time-seconds", "0.5", "--stall-check-shutdown-time-seconds", "5"]
    done = launch(2, script, options=limits).ok()
    assert re.search(r"stalled: allreduce 'loss' has waited \S+ s; missing: rank 1 on \S+", done.stderr), done.stderr
    assert len(done.lines()) == 2
    assert all(re.match(r"StallError allreduce 'loss' has waited .* rank 1 on", line) for line in done.lines())


def test_an_interrupt_in_the_middle_ends_the_generation_for_all(launch: Launch) -> None:
    script = PRELUDE + (
        "def interrupt(*_):\n"
        "    raise KeyboardInterrupt\n"
        "signal.signal(signal.SIGALRM, interrupt)\n"
        "try:\n"
        "    if rank == 1:\n"
        "        signal.setitimer(signal.ITIMER_REAL, 0.2)\n"
        "        log(10**6)\n"
        "    log(10**6)\n"
        "except KeyboardInterrupt:\n"
        "    print('interrupted')\n"
        "except CollectiveError as error:\n"
        "    print('told', error)\n"
        "shutdown()\n"
    )
    done = launch(2, script).ok()
    said = done.lines()
    assert said[0] == "interrupted"
    assert re.search(r"rank 1 on \S+ (gave up|could not go on|has called shutdown)", said[1]), done.stdout
