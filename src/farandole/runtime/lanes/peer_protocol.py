"""Peer protocol: what one rank says to the others in the peer lane, and what follows from their words; without I/O.

    peer = PeerProtocol(rank=0, size=2, generation=1)
    peer.open(order)                       # which grants the name; the same orders in one sequence at every rank
    peer.give(peer.find(key), b"mine", now)
    peer.outbox                            # the frames to send to every other rank, oldest first
    peer.hear(1, theirs)                   # bytes that have come from rank 1, however they were cut
    peer.made                              # what the controller would have said, had it been asked

A rank that is to join can send its join only when no round is open to which it has contributed. The others may come to
those rounds after something else, for which they wait for the join. So it asks them to withdraw (``release``): the
controller orders these collectives then, with what it has contributed. That a rank withdraws before it contributes is
nothing new, so the request changes nothing in how a round ends; whoever has contributed, or is in a later round that
the asking rank takes no part in, need not mind it.

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
"""Stands for a withdrawal."""

RELEASE = 254
"""Stands for no word of a round, but for a request: whoever has not contributed to this one should withdraw."""

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
        "_released",
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
        self._released: set[int] = set()  # grants to come
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
            if grant.number in self._released:
                self.withdraw(grant.key)
        self._released = {number for number in self._released if number > grant.number}
        for old in self._grants.oldest_beyond(MOST_GRANTS):
            self.withdraw(old.key)

    def find(self, key: Key) -> Grant | None:
        """The open grant of a name; ``None`` where the controller has to be asked."""
        return self._grants.find(key)

    def given(self) -> dict[int, int]:
        """Number of rounds that this rank has contributed to, by the number of each open grant."""
        return {grant.number: grant.round + (grant in self.awaiting) for grant in self._grants.all()}

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

    def release(self) -> None:
        """Leave, and ask the others to end the rounds to which they have not contributed, as this rank waits for it."""
        if not self._has_left:
            self.leave()
            self.outbox += [HEAD.pack(grant.number, RELEASE) for grant in self.awaiting]

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
            end = HEAD.size + (0 if length >= RELEASE else length)
            if len(unread) < end:
                break
            if length == RELEASE:
                del unread[:end]
                self._release(number)
                continue
            said = WITHDRAWN if length == NOTHING_FOLLOWS else bytes(unread[HEAD.size : end])
            del unread[:end]
            if grant := self._grants.hear(rank, number, said):
                self._settle(grant)

    def _release(self, number: int) -> None:
        """Withdraw from a grant that another rank waits for in order to join, unless this one has contributed."""
        grant = self._grants.numbered(number)
        if grant is not None:
            self.withdraw(grant.key)
        elif self._grants.is_to_come(number):
            self._released.add(number)

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
