"""Pairing, where a signal comes in the middle of it."""

from __future__ import annotations

import itertools
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import FrameType, SimpleNamespace
from typing import cast, final

import pytest

from farandole.errors import AbortError, MismatchError, UsageError
from farandole.runtime.collectives.pairing import Pairing, Unpaired, pairing
from farandole.runtime.lanes.active_collectives import ActiveCollectives
from farandole.runtime.lanes.reentry import Reentry
from farandole.runtime.session.cell_state import CellState
from farandole.runtime.session.init import Session, current, global_process_set, init, shutdown
from farandole.runtime.session.planned_collective import PlannedCollectives
from farandole.testing.rank import RankContext
from tests.support.patience import PATIENCE_S
from workbench.jobs import run_job

PATIENT = {"FARANDOLE_STALL_SHUTDOWN_S": "60"}


def pair(label: str) -> str:
    session = current()
    return pairing(session, global_process_set).pair(session, Unpaired(label, ("w",)), lambda _: True).label


def _new_ones_in_a_handler(member: RankContext) -> list[str]:
    said: list[str] = []

    def handle(*_: object) -> None:
        with pytest.raises(UsageError, match=r"connecting b.0 .*in the middle of connecting a.0") as caught:
            pair("b.0")
        said.append(type(caught.value).__name__)

    signal.signal(signal.SIGUSR1, handle)
    init()
    if member.rank:  # it has not come yet, and waits until rank 0 has been interrupted
        member.exchange(b"")
    else:
        main, interrupted = threading.get_ident(), threading.Event()

        def interrupt() -> None:
            while not said:
                signal.pthread_kill(main, signal.SIGUSR1)
                interrupted.wait(0.05)
            member.exchange(b"")

        thread = threading.Thread(target=interrupt)
        pairing_begins(thread)
    said.append(pair("a.0"))
    if member.rank == 0:
        interrupted.set()
        thread.join()
    said.append(pair("b.0"))
    shutdown()
    return said[-2:] + said[:1]


def pairing_begins(thread: threading.Thread) -> None:
    """Start it when the session's first exchange does."""
    session = current()
    exchange = session.planned.exchange

    def begun(process_set: int, key: str, payload: bytes) -> list[bytes]:
        if not thread.ident:
            thread.start()
        return exchange(process_set, key, payload)

    session.planned.exchange = begun  # type: ignore[method-assign]


def test_a_handler_on_top_of_a_round_is_refused_and_the_round_goes_on() -> None:
    of_0, of_1 = run_job(_new_ones_in_a_handler, 2, environment=PATIENT, timeout_s=PATIENCE_S)
    assert of_0 == ["a.0", "b.0", "UsageError"]
    assert of_1[:2] == ["a.0", "b.0"]


def _interrupted(member: RankContext) -> str:
    """Rank 0 waits behind another thread of its own when a handler raises; then all connect what the other wants."""
    init()
    if member.rank == 0:
        one, over = pairing(current(), global_process_set), threading.Event()
        signal.signal(signal.SIGUSR1, raising_once())
        leading = threading.Thread(target=pair, args=("first.0",))
        looking = threading.Thread(target=_interrupt_when_wanted, args=(one, threading.get_ident(), over))
        pairing_begins(looking)
        leading.start()
        while not looking.ident:  # until the other thread leads
            leading.join(0.01)
        with pytest.raises(KeyboardInterrupt):
            pair("second.0")
        over.set()
        looking.join()
        assert "second.0" not in one._wanted
        member.exchange(b"")
        leading.join()
    else:
        member.exchange(b"")
        pair("first.0")
    shutdown()
    return "done"


def raising_once() -> Callable[[int, FrameType | None], None]:
    """Handler that raises once; the signal is sent again, as one that comes just before a sleep is heard late."""
    came: list[int] = []

    def stop(number: int, _: FrameType | None) -> None:
        came.append(number)
        if len(came) == 1:
            raise KeyboardInterrupt

    return stop


def _interrupt_when_wanted(one: Pairing, main: int, over: threading.Event) -> None:
    with one._changed:
        assert one._changed.wait_for(lambda: "second.0" in one._wanted, 60.0)
    while not over.wait(0.1):
        signal.pthread_kill(main, signal.SIGUSR1)


def test_an_interrupt_in_the_wait_leaves_no_label_behind() -> None:
    assert run_job(_interrupted, 2, environment=PATIENT, timeout_s=PATIENCE_S) == ["done", "done"]


def _interrupted_leader(member: RankContext) -> str:
    init()
    if member.rank == 0:
        main, over = threading.get_ident(), threading.Event()
        signal.signal(signal.SIGUSR1, raising_once())

        def interrupt() -> None:
            while not over.wait(0.1):
                signal.pthread_kill(main, signal.SIGUSR1)

        thread = threading.Thread(target=interrupt)
        pairing_begins(thread)
        with pytest.raises(KeyboardInterrupt):
            pair("a.0")
        over.set()
        thread.join()
    member.exchange(b"")
    with pytest.raises(AbortError, match="was interrupted by KeyboardInterrupt") as caught:
        # Rank 0 had said the first, and the controller may hear of the interrupt after that.
        list(map(pair, ("a.0", "a.1")))
    shutdown()
    return str(caught.value)


def test_an_interrupt_in_a_round_is_told_to_all() -> None:
    for text in run_job(_interrupted_leader, 2, environment=PATIENT, timeout_s=PATIENCE_S):
        assert "connecting a.0" in text


@final
class Meeting:
    """What a pairing needs of the session of each of two ranks, which are threads."""

    def __init__(self) -> None:
        self.settings = SimpleNamespace(stall_warning_s=60.0)
        self.topology = SimpleNamespace(hosts=["a", "b"])
        self._both, self._said = threading.Barrier(2, timeout=PATIENCE_S), dict[str, dict[int, bytes]]()
        self._rank = threading.local()

    @property
    def planned(self) -> Meeting:
        return self

    def lane(self, process_set: int, lane: str, sequence: int) -> PlannedCollectives:
        active = ActiveCollectives()
        return PlannedCollectives(active, Reentry(), lambda: None, CellState(active), process_set, lane, "", sequence)

    def exchange(self, _: int, key: str, payload: bytes) -> list[bytes]:
        self._said.setdefault(key, {})[self._rank.value] = payload
        self._both.wait()
        return [self._said[key][rank] for rank in range(2)]

    def pair(self, rank: int, label: str, clock: Iterator[float], is_known: bool) -> str:
        """The error of a rank that wants what no other does; one whose clock ends has looked at it too often."""
        self._rank.value = rank
        one = Pairing(0, [0, 1], partial(next, clock))
        with pytest.raises(MismatchError) as caught:
            one.pair(cast("Session", self), Unpaired(label, ("w",)), lambda _: is_known)
        return str(caught.value)


@pytest.mark.parametrize(("is_known", "seconds"), [(False, (0.0, 4.0, 4.9, 5.1)), (True, (0.0, 5.1, 59.0, 60.1))])
def test_ranks_give_up_by_the_clock_of_the_first_one_alone(is_known: bool, seconds: Iterable[float]) -> None:
    """What both may come with yet is waited for until a stall is warned of, and what only one has for five seconds."""
    meeting = Meeting()
    clocks = _looked_at(seconds), itertools.repeat(1000.0)
    with ThreadPoolExecutor(2) as ranks:
        wanted = [
            ranks.submit(meeting.pair, rank, f"{label}.0", clock, is_known)
            for rank, (label, clock) in enumerate(zip(("critic", "generator"), clocks, strict=True))
        ]
        texts = {each.result() for each in wanted}
    assert len(texts) == 1
    assert "rank 0 on a with critic.0; rank 1 on b with generator.0" in texts.pop()
    assert list(clocks[0]) == [], "not sooner"


def _looked_at(seconds: Iterable[float]) -> Iterator[float]:
    """A clock that shows these, one in each round: at its beginning, but in the first, and at its end."""
    first, *others = seconds
    yield first
    for each in others:
        yield each
        yield each
