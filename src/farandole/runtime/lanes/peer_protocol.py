"""Peer protocol: what one rank says to the others in the peer lane, and what follows from their words; without I/O.

    peer = PeerProtocol(rank=0, size=2, generation=1)
    peer.open(order)                       # which grants the name; the same orders in one sequence at every rank
    peer.give(peer.find(key), b"mine", now)
    peer.outbox                            # the frames to send to every other rank, oldest first
    peer.hear(1, theirs)                   # bytes that have come from rank 1, however they were cut
    peer.made                              # what the controller would have said, had it been asked

``grants`` has the rules of one name. Whoever drives this empties ``outbox``, ``ended`` and ``made``. Frames must reach
each rank in the order in which they left. Not for several threads.
"""

from __future__ import annotations

import struct
from typing import final

import msgspec

from farandole.control.message import Message
from farandole.control.messages import Order, Orders, Resend
from farandole.runtime.lanes.announcement import Key
from farandole.runtime.lanes.grants import WITHDRAWN, Grant, Grants, Said

HEAD = struct.Struct("!IB")
"""Number of the grant, and number of the bytes that follow."""

NOTHING_FOLLOWS = 255

MOST_GRANTS = 256
"""The most grants that are open, so that every kernel has room for all that is sent before it is answered."""


@final
class PeerProtocol:
    """One rank's side of the protocol with each other rank. Not for several threads."""

    __slots__ = (
        "_generation",
        "_grants",
        "_has_left",
        "_lost",
        "_rank",
        "_unread",
        "awaiting",
        "ended",
        "made",
        "outbox",
    )

    def __init__(self, rank: int, size: int, generation: int) -> None:
        self._rank, self._generation = rank, generation
        self._grants = Grants(size)
        self._unread: dict[int, bytearray] = {}
        self._lost: set[int] = set()
        self._has_left = False
        self.awaiting: dict[Grant, float] = {}
        """The rounds to which this rank has given something and not all have, and since when; oldest first."""
        self.ended: list[Grant] = []
        """The grants whose rounds are over."""
        self.outbox: list[bytes] = []
        self.made: list[Message] = []

    # -- what this rank says ------------------------------------------------------------------------------------------

    def open(self, order: Order) -> None:
        """Take up the grant that an order brings: all ranks may reduce under this name among themselves from now on."""
        grant = self._grants.open(order)
        if self._has_left:
            self.withdraw(grant.key)
        else:
            self._settle(grant)
        for old in self._grants.oldest_beyond(MOST_GRANTS):
            self.withdraw(old.key)

    def find(self, key: Key) -> Grant | None:
        """The open grant of a name; ``None`` where the controller has to be asked."""
        return self._grants.find(key)

    def give(self, grant: Grant, part: bytes, now: float) -> None:
        """Contribute to the next round, once; it cannot be taken back."""
        self.awaiting[grant] = now
        grant.hear(self._rank, part)
        self._say(grant, part)
        self._settle(grant)

    def withdraw(self, key: Key) -> None:
        """Close the grant of a name, for the controller to order what comes next; a round in progress goes on."""
        grant = self._grants.find(key)
        if grant is not None and grant not in self.awaiting:
            self._grants.close(grant)
            self._say(grant, WITHDRAWN)

    def leave(self) -> None:
        """Withdraw from every name, as this rank is joining: the others must not wait for it until it has come back."""
        self._has_left = True
        for grant in self._grants.all():
            self.withdraw(grant.key)

    def come_back(self) -> None:
        """Take up grants again: all ranks have joined."""
        self._has_left = False

    def _say(self, grant: Grant, said: Said) -> None:
        self.outbox.append(HEAD.pack(grant.number, NOTHING_FOLLOWS if said is None else len(said)) + (said or b""))

    # -- what the others say ------------------------------------------------------------------------------------------

    def hear(self, rank: int, data: bytes) -> None:
        """Take in bytes that have come from ``rank``."""
        unread = self._unread.get(rank)
        if unread is None:
            unread = self._unread[rank] = bytearray()
        unread += data
        while len(unread) >= HEAD.size:
            number, length = HEAD.unpack_from(unread)
            end = HEAD.size + (0 if length == NOTHING_FOLLOWS else length)
            if len(unread) < end:
                break
            said = WITHDRAWN if length == NOTHING_FOLLOWS else bytes(unread[HEAD.size : end])
            del unread[:end]
            if grant := self._grants.hear(rank, number, said):
                self._settle(grant)

    def lose(self, rank: int) -> None:
        """Note that nothing more can come from ``rank``."""
        self._lost.add(rank)

    def missed(self) -> int:
        """A lost rank whose part of some round is awaited; -1 for none."""
        return next((rank for rank in self._lost for grant in self.awaiting if grant.lacks(rank)), -1)

    def take_made(self) -> list[Message]:
        """Take the messages made, to be executed in this order."""
        made, self.made = self.made, []
        return made

    def _settle(self, grant: Grant) -> None:
        """End the round of a grant if all have spoken, and the grant if one has withdrawn."""
        if parts := grant.next_round():
            self._end_round(grant)
            order = msgspec.structs.replace(grant.order, contributions=parts, direct=0)
            self.made.append(Orders(self._generation, [order]))
            if self._has_left:
                self.withdraw(grant.key)
                return
            grant.next_round()  # somebody may have withdrawn from that already
        if not grant.is_open:
            self._grants.close(grant)
            if grant in self.awaiting:
                self._end_round(grant)
                self.made.append(Resend(self._generation, grant.key[0], [grant.key[1]]))

    def _end_round(self, grant: Grant) -> None:
        del self.awaiting[grant]
        self.ended.append(grant)
