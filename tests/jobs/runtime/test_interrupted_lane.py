"""An exception of a signal handler at every moment in a lane: no order is lost, no name stays in flight."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from farandole.collective import Kind
from farandole.control.channel import Dealer, Router
from farandole.control.keys import JobKeys, new_secret
from farandole.control.message import Message
from farandole.control.messages import Order, Orders, Signature, Submit
from farandole.errors import AbortError, FarandoleError
from farandole.runtime.lanes.active_collectives import ActiveCollectives
from farandole.runtime.lanes.announcement import Announcement
from farandole.runtime.lanes.call import Call, CallResult
from farandole.runtime.lanes.failure import Failure
from farandole.runtime.lanes.negotiated import NegotiatedLane
from farandole.runtime.lanes.peer_lane import PeerLane
from farandole.runtime.lanes.reentry import Reentry
from farandole.runtime.lanes.single_process import SingleProcessLane
from farandole.topology import Topology
from tests.support.runtime.interruptions import DEADLINE_S, at_every_call, within_deadline

OURS = (
    "runtime/lanes/lead.py",
    "runtime/lanes/negotiated.py",
    "runtime/lanes/peer_lane.py",
    "runtime/lanes/submissions.py",
    "control/channel.py",
)
IDENTITY = b"worker-o"
BARRIER = Signature(int(Kind.BARRIER), [], [])


def stop() -> None:
    raise KeyboardInterrupt


def perform(order: Order, mine: Sequence[Sequence[Call] | None]) -> list[list[CallResult]]:
    return [[CallResult(value=7)] for _ in mine]


class Worker:
    """One rank of two: its lane, and the controller's socket."""

    def __init__(self, router: Router, dealer: Dealer) -> None:
        self.sent: list[Message] = []
        self.torn: list[Failure] = []
        self._router = router
        topology = Topology.of(0, ("a", "a"), 1)
        direct = PeerLane(topology, None, dealer, ActiveCollectives(), lambda: None)
        self.lane = NegotiatedLane(direct, self.sent.append, 1, perform, self._tear, Reentry(), 16, eager=False)

    def _tear(self, failure: Failure) -> None:
        self.torn.append(failure)
        self.lane.end(failure)

    def order(self, name: str) -> None:
        self._router.send(IDENTITY, Orders(1, [Order(0, 1, int(Kind.BARRIER), [name], [BARRIER])]))


@contextlib.contextmanager
def worker() -> Iterator[Worker]:
    keys = JobKeys.from_secret(new_secret())
    with Router(keys) as router, ThreadPoolExecutor(1) as other_thread:
        made = other_thread.submit(Dealer, router.address, IDENTITY, keys)
        while not made.done():
            router.wait(0.01)
            router.recv()
        with made.result() as dealer:
            one = Worker(router, dealer)
            yield one
            one.lane.close()


def barrier(name: str) -> Announcement:
    return Announcement(0, name, Kind.BARRIER, ())


def test_an_order_is_never_lost() -> None:
    """It is executed, or the generation ends; and who is interrupted in its sleep may go on."""
    spared: list[bool] = []

    def wait() -> None:
        for interruption in at_every_call(stop, OURS):
            with worker() as rank:
                handle = rank.lane.submit(barrier("x"), background=False)
                rank.order("x")
                with contextlib.suppress(KeyboardInterrupt):
                    interruption.run(handle.wait)
                spared.append(interruption.has_come and not rank.torn)
                with contextlib.suppress(FarandoleError):
                    assert handle.wait()[0].value == 7

    within_deadline(wait, 240.0)
    assert sum(spared) > 10


@pytest.mark.parametrize("background", [False, True])
def test_a_name_that_was_not_announced_is_free_again(background: bool) -> None:
    """The name is free, or what has been announced goes on, or the generation ends."""

    def submit() -> None:
        for interruption in at_every_call(stop, OURS):
            with worker() as rank:
                with contextlib.suppress(KeyboardInterrupt):
                    interruption.run(partial(rank.lane.submit, barrier("x"), background))
                if not rank.torn:
                    is_announced = any(isinstance(each, Submit) for each in rank.sent)
                    assert is_announced != interruption.has_come
                    handle = rank.lane.submit(barrier("y" if is_announced else "x"), background=False)
                    rank.order("x")
                    rank.order("y")
                    assert handle.wait()[0].value == 7
                    rank.lane.end(Failure(AbortError, "over"))

    within_deadline(submit, 240.0)


def test_nothing_is_freed_below_a_handler_that_runs_for_long() -> None:
    """Another thread shuts down while the leader is in the middle of an order."""
    with worker() as rank, ThreadPoolExecutor(1) as leading:
        inside, may_go = threading.Event(), threading.Event()

        def hold_up(order: Order, mine: Sequence[Sequence[Call] | None]) -> list[list[CallResult]]:
            inside.set()
            assert may_go.wait(DEADLINE_S)
            return perform(order, mine)

        rank.lane._perform = hold_up
        handle = rank.lane.submit(barrier("x"), background=False)
        rank.order("x")
        led = leading.submit(handle.wait)
        assert inside.wait(DEADLINE_S)
        rank.lane.end(Failure(AbortError, "over"))
        assert not rank.lane.await_exit(0.05)
        may_go.set()
        assert rank.lane.await_exit(None)
        assert isinstance(led.exception(DEADLINE_S), AbortError)


def test_alone_what_was_interrupted_does_not_come_with_the_next_one() -> None:
    files = ("lanes/single_process.py", "lanes/reentry.py", "coordination/negotiation.py", "proposal.py")
    for interruption in at_every_call(stop, files):
        lane = SingleProcessLane(perform, "a", [], True, Reentry())
        with contextlib.suppress(KeyboardInterrupt):
            interruption.run(partial(lane.submit, barrier("x"), False))
        for name in ("x", "y", "x"):
            assert lane.submit(barrier(name), False).wait()[0].value == 7
