"""Two ranks' peer lanes in one process, over real sockets: wake-ups, joins in between, connections that break."""

from __future__ import annotations

import ctypes
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from typing import final

import pytest

from farandole.collective import Array, DType, Kind
from farandole.control.channel import Dealer, Router
from farandole.control.keys import JobKeys, new_secret
from farandole.control.message import Message
from farandole.control.messages import Order, Orders, Signature
from farandole.engines.silence_monitor import SilenceMonitor
from farandole.errors import EngineError
from farandole.runtime.lanes.active_collectives import ActiveCollectives
from farandole.runtime.lanes.announcement import Announcement
from farandole.runtime.lanes.call import Call
from farandole.runtime.lanes.peer_lane import PeerLane
from farandole.runtime.lanes.peer_protocol import MOST_GRANTS
from farandole.topology import Topology


def granting(number: int, name: str = "loss") -> Order:
    return Order(0, number, Kind.ALLREDUCE, [name], [Signature(Kind.ALLREDUCE, [8], [[1]])], direct=number)


def announcement(text: bytes, name: str = "loss") -> Announcement:
    memory = ctypes.create_string_buffer(text, len(text))
    array = Array(ctypes.addressof(memory), len(text), DType.UINT8, memory)
    return Announcement(0, name, Kind.ALLREDUCE, [Call(Kind.ALLREDUCE, name, array, (len(text),))])


@final
class Pair:
    """The lanes of ranks 0 and 1. Connecting is done."""

    def __init__(self, stack: ExitStack) -> None:
        keys = JobKeys.from_secret(new_secret())
        router = stack.enter_context(Router(keys))
        self.sockets = socket.socketpair()
        self.explained: list[str] = []
        self.lanes = []
        for rank, end in enumerate(self.sockets):
            end.setblocking(False)
            orders = stack.enter_context(Dealer(router.address, b"%do" % rank, keys, None))
            connections = {1 - rank: end}
            lane = PeerLane(
                Topology.of(rank, ("a", "b"), 1),
                lambda connections=connections: (connections, SilenceMonitor({}, 0.0, lambda _: None), None),  # type: ignore[misc]
                orders,
                ActiveCollectives(),
                self.explain,
            )
            stack.callback(lane.close)
            lane.open(granting(1))
            self.lanes.append(lane)

    def explain(self) -> None:
        self.explained.append("why")

    def heard(self, rank: int) -> list[list[bytes] | str]:
        """What comes of what is on its way to ``rank``."""
        lane, found = self.lanes[rank], list[Message]()
        for _ in range(3):  # the controller's bell, the descriptors, what follows
            lane.recv()
            found += lane.receive()
            if found:
                break
        return [each.orders[0].contributions if isinstance(each, Orders) else "ask" for each in found]


@pytest.fixture
def pair() -> Iterator[Pair]:
    with ExitStack() as stack:
        yield Pair(stack)


def test_both_have_what_both_give(pair: Pair) -> None:
    first, last = pair.lanes
    assert first.contribute(announcement(b"0"))
    assert first._active.now() == "allreduce 'loss'"
    assert last.contribute(announcement(b"1"))
    for rank in (0, 1):
        assert pair.heard(rank) == [[b"0", b"1"]]
    assert not any(lane._active.now() for lane in pair.lanes)
    assert not first.contribute(announcement(b"0", "another"))


def test_what_has_come_is_not_slept_over_whoever_was_woken_for_it(pair: Pair) -> None:
    first, last = pair.lanes
    first.contribute(announcement(b"0"))
    while last.recv() is not None or not last._ready:  # it has heard of it, and then its thread is interrupted
        pass
    last.receive()
    last.contribute(announcement(b"1"))
    assert last.recv() is None, "nobody rings for what lies there, and nobody has to"
    [made] = last.receive()
    assert isinstance(made, Orders)


def test_who_joins_in_the_middle_withdraws_at_the_end(pair: Pair) -> None:
    first, last = pair.lanes
    first.contribute(announcement(b"0"))
    first.withdraw_all()
    last.contribute(announcement(b"1"))
    for rank in (0, 1):
        assert pair.heard(rank) == [[b"0", b"1"]]
    assert not last.contribute(announcement(b"2"))
    assert not first.contribute(announcement(b"3"))
    for lane in pair.lanes:
        lane.open(granting(2))
    assert not first.contribute(announcement(b"4")), "it is still away"
    first.come_back()
    first.open(granting(3))
    assert first.contribute(announcement(b"5"))


def test_a_lost_connection_is_an_error_for_who_needs_it(pair: Pair) -> None:
    first, last = pair.lanes
    last.contribute(announcement(b"1"))
    pair.sockets[1].shutdown(socket.SHUT_RDWR)
    first.contribute(announcement(b"0"))
    assert pair.heard(0) == [[b"0", b"1"]], "this one had come"
    assert pair.explained == []
    first.contribute(announcement(b"0"))
    with pytest.raises(EngineError, match=r"connection to rank 1 on b .* was lost"):
        pair.heard(0)
    assert len(pair.explained) == 1


def test_no_more_is_granted_than_there_is_room_for(pair: Pair) -> None:
    first, last = pair.lanes
    for number in range(2, MOST_GRANTS + 2):
        for lane in pair.lanes:
            lane.open(granting(number, f"loss {number}"))
    assert not first.contribute(announcement(b"0"))
    assert not last.contribute(announcement(b"1"))
    assert first.contribute(announcement(b"0", "loss 2"))
