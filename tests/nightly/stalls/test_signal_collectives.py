"""Collectives in a signal handler: refused where they interrupt one, and told to the others; never a hang."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from farandole import events
from farandole.collective import Kind, ReduceOp, Reduction
from farandole.errors import MismatchError, NotInitializedError, UsageError
from farandole.runtime.collectives.planned import PlannedLane
from farandole.runtime.session import init as sessions
from farandole.runtime.session.init import current, global_process_set, init, shutdown
from farandole.testing.rank import RankContext
from tests.support.patience import PATIENCE_S
from workbench.jobs import NumpyCalls, run_job

DEADLINE_S = PATIENCE_S
ROUNDS = 3


def reduce(name: str, elements: int = 1) -> None:
    values = np.ones(elements, np.float32)
    NumpyCalls().allreduce(name, values)
    assert values.tolist() == [2.0] * elements


def wait_for_the_controller() -> None:
    reduce("new every time")
    reduce("new every time", 2)


def wait_for_the_peers() -> None:
    for _ in range(4):
        reduce("granted")


def wait_behind_another_thread() -> None:
    other = threading.Thread(target=reduce, args=("other",))
    other.start()
    reduce("mine")
    other.join(DEADLINE_S)
    assert not other.is_alive()


def wait_in_the_engine() -> None:
    reduce("moved", 100)


def wait_in_a_barrier() -> None:
    current().barrier()


MOMENTS: tuple[Callable[[], None], ...] = (
    wait_for_the_controller,
    wait_for_the_peers,
    wait_behind_another_thread,
    wait_in_the_engine,
    wait_in_a_barrier,
)


def ask_in_the_handler(said: list[str]) -> None:
    """As the verbs do: what keeps this rank from a collective is told to the others."""
    try:
        reduce("in the handler")
    except UsageError as error:
        current().refuse(0, "allreduce.in the handler", Kind.ALLREDUCE, error)
        said.append(str(error))
    else:
        said.append("done")


@contextmanager
def interrupting(
    member: RankContext,
    inside: Callable[[], bool],
    said: list[str],
    answered: bool,
    ask: Callable[[list[str]], None] = ask_in_the_handler,
) -> Iterator[None]:
    """A signal comes as soon as this thread is inside; when its handler has been refused, rank 1 may come."""
    main, begun = threading.get_ident(), threading.Event()

    def handle(*_: object) -> None:
        if not begun.is_set():
            begun.set()
            ask(said)

    def interrupt() -> None:
        until = time.monotonic() + DEADLINE_S
        while not inside() and time.monotonic() < until:
            pass
        while not begun.wait(0.05) and time.monotonic() < until:  # one just before the thread sleeps is heard late
            signal.pthread_kill(main, signal.SIGUSR1)
        while answered and not said and time.monotonic() < until:
            pass
        member.exchange(b"")

    signal.signal(signal.SIGUSR1, handle)
    thread = threading.Thread(target=interrupt)
    thread.start()
    yield
    thread.join(DEADLINE_S)
    assert not thread.is_alive()


def hold_up(member: RankContext) -> Callable[[], None]:
    """Rank 1 stops before the engine, until rank 0 has been interrupted in it."""
    held: list[str] = []

    def on_event(event: events.Event) -> None:
        if isinstance(event, events.Phase) and event.phase == "queue" and not held:
            held.append(event.name)
            member.exchange(b"")

    return events.subscribe(on_event)


def in_the_lane(member: RankContext) -> list[str]:
    said: list[str] = []
    for _ in range(ROUNDS):
        for wait in MOMENTS:
            init()
            session, main = current(), threading.get_ident()
            if member.rank == 0:
                with interrupting(member, lambda: main in dict(session._in_lane.entries), said, answered=True):  # noqa: B023
                    wait()
                reduce("the next one")
            else:
                be_late(wait, member)
                reduce("the next one")
            shutdown()
    return said


def be_late(wait: Callable[[], None], member: RankContext) -> None:
    """Rank 1: who waits for what was asked for in the handler is told while rank 0 still waits, but for an engine."""
    if wait is wait_in_the_engine:
        cancel = hold_up(member)
        wait()
        cancel()
        refused()
    else:
        member.exchange(b"")
        refused()
        wait()


def refused() -> None:
    with pytest.raises(MismatchError, match=r"rank 0 on \S+ said it cannot: .*in a signal handler"):
        reduce("in the handler")


def test_it_is_refused_and_the_others_are_told() -> None:
    said, _ = run_job(in_the_lane, 2, timeout_s=6.66667 * PATIENCE_S)
    assert len(said) == ROUNDS * len(MOMENTS)
    assert all("'in the handler' was asked for in a signal handler" in text for text in said)
    assert all("set a flag in the handler" in text for text in said)


def in_a_planned_lane(member: RankContext) -> list[str]:
    said: list[str] = []
    for _ in range(ROUNDS):
        init()
        session, main = current(), threading.get_ident()
        engine = session.planned.engine(0, "p")
        if member.rank == 0:
            with (
                interrupting(member, lambda: main in dict(session._reentry.entries), said, answered=False),  # noqa: B023
                session.planned.lane(0, "p", "p: ").next("bucket 0"),
            ):
                engine.barrier()
        else:
            member.exchange(b"")
            reduce("in the handler")
            with session.planned.lane(0, "p", "p: ").next("bucket 0"):
                engine.barrier()
        shutdown()
    return said


def test_it_is_done_where_only_the_planned_lane_is_interrupted() -> None:
    said, _ = run_job(in_a_planned_lane, 2, timeout_s=4 * PATIENCE_S)
    assert said == ["done"] * ROUNDS


def in_the_same_planned_lane(member: RankContext) -> list[str]:
    """Two collectives at once in one engine would be a hang, or a sum of both."""
    said: list[str] = []
    init()
    main, how = threading.get_ident(), Reduction(ReduceOp.SUM)
    for number in range(ROUNDS):
        session, lane = current(), PlannedLane(current(), global_process_set, f"p.{number}")

        def ask(said: list[str], lane: PlannedLane = lane) -> None:
            try:
                lane.allreduce("in the handler", NumpyCalls().array(np.ones(1000, np.float32)), how)
            except UsageError as error:
                said.append(str(error))

        values = np.full(1000, 1.0 + member.rank, np.float32)
        if member.rank == 0:
            inside = lambda: main in dict(session._reentry.entries)  # noqa: E731, B023
            with interrupting(member, inside, said, answered=True, ask=ask):
                lane.allreduce("bucket 0", NumpyCalls().array(values), how)
        else:
            member.exchange(b"")
            lane.allreduce("bucket 0", NumpyCalls().array(values), how)
        assert set(values.tolist()) == {3.0}
        lane.close()
    shutdown()
    return said


def test_it_is_refused_in_the_middle_of_the_same_planned_lane() -> None:
    said, _ = run_job(in_the_same_planned_lane, 2, timeout_s=4 * PATIENCE_S)
    assert len(said) == ROUNDS
    assert all("in the handler was asked for in a signal handler" in text for text in said)
    assert all("the middle of another collective of the same lane" in text for text in said)


def ask_for_a_session(said: list[str]) -> None:
    if current_work():  # else it is too late, and this would be a new session
        with pytest.raises(
            UsageError, match=r"init\(\) was asked for in a signal handler .* in the middle of "
        ) as told:
            init()
        said.append(str(told.value))


def current_work() -> str:
    return sessions._here._doing


def init_in_the_handler(member: RankContext) -> list[str]:
    said: list[str] = []
    signal.signal(signal.SIGUSR1, lambda *_: ask_for_a_session(said))
    for _ in range(ROUNDS):
        if member.rank == 0:
            with interrupting(member, lambda: bool(current_work()), said, answered=True, ask=ask_for_a_session):
                init()
        else:
            member.exchange(b"")
            init()
        signal.signal(signal.SIGUSR1, lambda *_: ask_for_a_session(said))
        reduce("between")
        with under_fire(member.rank == 0):
            shutdown()
    return said


def test_a_handler_makes_no_session_while_one_is_made_or_left() -> None:
    said, _ = run_job(init_in_the_handler, 2, timeout_s=4 * PATIENCE_S)
    assert sum("the middle of init()" in text for text in said) == ROUNDS


def during_init_and_shutdown(member: RankContext) -> int:
    """Rank 0 gets signals all the time while its session is made, and while it is left."""
    told: list[str] = []

    def handle(*_: object) -> None:
        try:
            current("the handler")
        except NotInitializedError as error:
            told.append(str(error))

    signal.signal(signal.SIGUSR1, handle)
    for _ in range(ROUNDS):
        with under_fire(member.rank == 0):
            init()
        reduce("between")
        with under_fire(member.rank == 0):
            shutdown()
    return len(told)


@contextmanager
def under_fire(on: bool) -> Iterator[None]:
    main, over = threading.get_ident(), threading.Event()

    def fire() -> None:
        while not over.wait(0.001):
            signal.pthread_kill(main, signal.SIGUSR1)

    thread = threading.Thread(target=fire)
    if on:
        thread.start()
    yield
    over.set()
    if on:
        thread.join(DEADLINE_S)


def test_it_is_refused_while_a_session_is_made_and_left() -> None:
    told, none = run_job(during_init_and_shutdown, 2, timeout_s=4 * PATIENCE_S)
    assert told > 0
    assert none == 0


def alone(_: RankContext) -> list[str]:
    """In a job of one there is nobody to wait for but oneself."""
    said: list[str] = []
    init()
    lane = current()._lane
    right = lane._perform  # type: ignore[attr-defined]

    def perform(*order: object) -> object:
        signal.raise_signal(signal.SIGUSR1)
        return right(*order)

    def handle(*_: object) -> None:
        ask_in_the_handler(said)

    signal.signal(signal.SIGUSR1, handle)
    lane._perform = perform  # type: ignore[attr-defined]
    values = np.ones(1, np.float32)
    NumpyCalls().allreduce("alone", values)
    assert values.tolist() == [1.0]
    shutdown()
    return said


def test_it_is_refused_in_a_job_of_one() -> None:
    [[said]] = run_job(alone, 1)
    assert "set a flag in the handler" in said


def before_and_after(_: RankContext) -> list[str]:
    said: list[str] = []

    def handle(*_: object) -> None:
        with pytest.raises(NotInitializedError):
            NumpyCalls().allreduce("in the handler", np.ones(1))
        said.append("told")

    signal.signal(signal.SIGUSR1, handle)
    signal.raise_signal(signal.SIGUSR1)
    init()
    shutdown()
    signal.raise_signal(signal.SIGUSR1)
    return said


def test_it_is_refused_without_a_session() -> None:
    assert run_job(before_and_after, 2) == [["told"] * 2] * 2
