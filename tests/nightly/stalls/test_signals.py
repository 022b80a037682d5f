"""Shutting down in a signal handler: whatever call the signal interrupts raises, and everything is given back."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable

import numpy as np
import pytest

from farandole import events
from farandole.errors import AbortError
from farandole.runtime.session import session as sessions
from farandole.runtime.session.init import current, init, is_initialized, shutdown
from farandole.testing.rank import RankContext
from tests.support.patience import PATIENCE_S
from workbench.jobs import NumpyCalls, run_job

DEADLINE_S = PATIENCE_S
ROUNDS = 5


def _wait_for_the_others() -> None:
    NumpyCalls().allreduce("never", np.ones(1))


def _wait_behind_another_thread() -> None:
    def lead() -> None:
        with pytest.raises(AbortError):
            NumpyCalls().allreduce("also never", np.ones(1))

    other = threading.Thread(target=lead)
    other.start()
    try:
        _wait_for_the_others()
    finally:
        other.join(DEADLINE_S)
        assert not other.is_alive()


def _wait_in_the_engine() -> None:
    NumpyCalls().allreduce("held up elsewhere", np.ones(100))  # less would need no engine


def _wait_in_a_planned_lane() -> None:
    session = current()
    engine = session.planned.engine(0, "p")
    with session.planned.lane(0, "p", "p: ").next("bucket 0"):
        engine.barrier()


def _do_something_else() -> None:
    NumpyCalls().allreduce("other", np.ones(1))


def _only_make_the_lane() -> None:
    engine = current().planned.engine(0, "p")
    _do_something_else()
    engine.close()


_ABSENCES: dict[Callable[[], None], Callable[[], None]] = {
    _wait_for_the_others: _do_something_else,
    _wait_behind_another_thread: _do_something_else,
    _wait_in_the_engine: _wait_in_the_engine,
    _wait_in_a_planned_lane: _only_make_the_lane,
}
"""What rank 0 does when the signal comes, and what rank 1 does instead."""


def _be_interrupted(wait: Callable[[], None], member: RankContext) -> None:
    """Rank 0: a signal comes at any moment from just before the wait on, and its handler shuts down."""
    main, asked, ended = threading.get_ident(), threading.Event(), threading.Event()

    def interrupt() -> None:
        asked.wait(DEADLINE_S)
        time.sleep(random.choice((0, 0.0001, 0.001, 0.01)))
        signal.pthread_kill(main, signal.SIGUSR1)
        while not ended.wait(0.1):  # one that comes just before the call sleeps is heard by Python when it wakes
            signal.pthread_kill(main, signal.SIGUSR1)

    thread = threading.Thread(target=interrupt)
    thread.start()
    asked.set()
    with pytest.raises((AbortError, ValueError), match=r"rank [01] on|call init\(\) first"):
        wait()
    ended.set()
    thread.join(DEADLINE_S)
    assert not is_initialized()
    member.exchange(b"")


def _stand_by(wait: Callable[[], None], member: RankContext) -> None:
    """Rank 1 never comes to where rank 0 waits, and is told when rank 0 has gone."""
    held_up: list[str] = []

    def hold_up(event: events.Event) -> None:
        if isinstance(event, events.Phase) and event.phase == "queue" and not held_up:
            held_up.append(event.name)
            member.exchange(b"")

    cancel = events.subscribe(hold_up) if wait is _wait_in_the_engine else lambda: None
    with pytest.raises(AbortError, match="rank 0"):
        _ABSENCES[wait]()
    cancel()
    if not held_up:
        member.exchange(b"")
    shutdown()


def _program(member: RankContext) -> tuple[int, int]:
    signal.signal(signal.SIGUSR1, lambda *_: shutdown())
    held = []
    for _ in range(ROUNDS):
        for wait in _ABSENCES:
            init()
            (_stand_by if member.rank else _be_interrupted)(wait, member)
            for thread in threading.enumerate():
                if thread.name.startswith("farandole"):
                    thread.join(DEADLINE_S)
        held.append((len(os.listdir("/proc/self/fd")), threading.active_count()))
    assert held[0] == held[-1]
    return held[0][1], held[-1][1]


def test_a_handler_may_shut_down_wherever_the_signal_comes() -> None:
    assert run_job(_program, 2, timeout_s=4 * PATIENCE_S) == [(1, 1), (1, 1)]


def _long_handler(member: RankContext) -> list[str]:
    """Rank 0: another thread shuts down while a handler runs on top of a collective, for longer than that waits.

    And for longer than the other rank takes to hear of it, and to go on.
    """
    sessions.LEAVE_S = 0.1
    init()
    session, said = current(), list[str]()

    def leave() -> None:
        shutdown()
        said.append("left")

    def handle(*_: object) -> None:
        thread = threading.Thread(target=leave)
        thread.start()
        thread.join(DEADLINE_S)
        assert session._link is not None
        said.append("closed" if session._link.up._closed else "open")
        member.exchange(b"")  # goes on until the other rank has been told

    if member.rank == 0:
        signal.signal(signal.SIGUSR1, handle)
        main = threading.get_ident()

        def interrupt(event: events.Event) -> None:
            if isinstance(event, events.Phase) and event.phase == "queue":
                signal.pthread_kill(main, signal.SIGUSR1)

        cancel = events.subscribe(interrupt)
    with pytest.raises(AbortError, match="rank 0"):
        NumpyCalls().allreduce("x", np.ones(100))
    if member.rank == 0:
        cancel()
    else:
        member.exchange(b"")
    for thread in threading.enumerate():
        if thread.name == "farandole-shutdown":
            thread.join(DEADLINE_S)
    shutdown()
    assert session._link is not None
    return [*said, "closed" if session._link.up._closed else "open"]


def test_nothing_is_freed_below_a_handler_that_outlasts_a_shutdown() -> None:
    assert run_job(_long_handler, 2) == [["left", "open", "closed"], ["closed"]]
