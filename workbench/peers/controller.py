"""Controller of the model: the product's ``Negotiation``, and the part of its loop that passes messages on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias, final

from farandole.control import messages
from farandole.control.messages import Order, Orders, Resend, Submit
from farandole.runtime.coordination.negotiation import Negotiation
from farandole.runtime.coordination.rank_set import RankSet
from workbench.peers.rank import Event

Told: TypeAlias = tuple[int, str, bytes]
"""Message to a rank: the rank, which of its sockets, and the bytes."""

ORDERS, CONTROL = "orders", "control"


@final
class Coordinator:
    """Controller of one job. ``over``: why its generation ended; the next one begins when all ranks have sent hello."""

    def __init__(self, size: int, sets: Sequence[Sequence[int]], capacity: int, fusion_bytes: int) -> None:
        self.size, self.sets, self.capacity, self.fusion_bytes = size, sets, capacity, fusion_bytes
        self.generation = 1
        self.over = ""
        self.came: frozenset[int] = frozenset()
        self.negotiation = self._negotiate()

    def _negotiate(self) -> Negotiation:
        return Negotiation(["a"] * self.size, self.sets, self.fusion_bytes, self.capacity)

    @property
    def undecided(self) -> bool:
        """True if there is something to order."""
        return not self.over and self.negotiation.undecided

    @property
    def may_expire(self) -> bool:
        """True if ranks may wait for each other under one name."""
        return not self.over and bool(self.negotiation.crossed(RankSet.span(0, self.size)))

    def turn(self, event: Event) -> list[Told]:
        """Process a message or the passing of time, or decide; returns the messages to send."""
        kind, *rest = event
        if kind == "decide":
            return self._decide()
        if kind == "expire":
            self.negotiation.end_crossed(RankSet.span(0, self.size))
            return []
        rank, frame = rest
        assert isinstance(rank, int)
        assert isinstance(frame, bytes)
        return self._hear(rank, frame)

    def _decide(self) -> list[Told]:
        own: list[list[Order]] = [[] for _ in range(self.size)]
        for delivery in self.negotiation.decide(0.0):
            for rank in delivery.ranks:
                own[rank].append(delivery.order)
        frames = [messages.encode(Orders(self.generation, orders)) if orders else b"" for orders in own]
        return [(rank, ORDERS, frame) for rank, frame in enumerate(frames) if frame]

    def _hear(self, rank: int, frame: bytes) -> list[Told]:
        word, _, number = frame.partition(b" ")
        if word == b"hello":
            self.came |= {rank}
            return self._form() if len(self.came) == self.size else []
        if word in (b"leave", b"torn"):
            return self._leave(rank, word == b"torn") if int(number) == self.generation else []
        message = messages.decode(frame)
        assert isinstance(message, Submit)
        if self.over or message.generation != self.generation:
            return []
        forgotten = self.negotiation.submit(RankSet.only(rank), message.entry, 0.0, message.contribution)
        resend = Resend(self.generation, message.entry.process_set, [message.entry.name])
        return [(each, ORDERS, messages.encode(resend)) for each in forgotten]

    def _leave(self, rank: int, torn: bool) -> list[Told]:
        self.negotiation.remove_rank(rank, f"rank {rank} is gone")
        if not torn or self.over:
            return []
        self.over = f"rank {rank} is gone"
        return [(each, CONTROL, b"abort %d" % self.generation) for each in range(self.size)]

    def _form(self) -> list[Told]:
        self.generation += 1
        self.over, self.came = "", frozenset()
        self.negotiation = self._negotiate()
        return [(each, CONTROL, b"welcome %d" % self.generation) for each in range(self.size)]
