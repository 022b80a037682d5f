"""Peer protocol: frames that a rank of the peer lane sends, and the orders that follow from the others'; without I/O.

    peer = PeerProtocol(rank=0, size=2, generation=1)
    peer.open(order)                       # grants the name; every rank receives the same orders in the same sequence
    peer.contribute(peer.find(key), b"mine", now)
    peer.outbox                            # the frames to send to every other rank, oldest first
    peer.receive_bytes(1, theirs)          # bytes received from rank 1, cut anywhere
    peer.made                              # the messages that the controller would have sent

A rank can send its join only when every round that it has contributed to is over. The others may reach those rounds
only after a collective in which they wait for that join. So the rank asks them to withdraw (``release``): then the
controller orders these collectives, with the rank's contribution. A rank may withdraw before it contributes in any
case, so the request does not change how a round ends. A rank that has contributed, or that is in a later round without
the asking rank, ignores it.

``grants`` has the rules of one name. The caller empties ``outbox``, ``ended`` and ``made``. Frames must reach each rank
in the order in which they were sent. Not thread-safe.
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
"""Length that stands for a withdrawal."""

RELEASE = 254
"""Length that stands for a request, no part of a round: a rank that has not contributed to this round withdraws."""

MOST_GRANTS = 256
"""Largest number of open grants, so that socket buffers have room for all unanswered frames."""


@final
class PeerProtocol:
    """One rank's side of the protocol with each other rank. Not thread-safe."""

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
        self._released: set[int] = set()  # numbers of grants not received yet
        self._has_left = False
        self.awaiting: dict[Grant, float] = {}
        """Unfinished rounds that this rank has contributed to, and since when; oldest first."""
        self.ended: list[Grant] = []
        """Grants of rounds that have ended."""
        self.outbox: list[bytes] = []
        self.made: list[Message] = []

    # -- frames of this rank ------------------------------------------------------------------------------------------

    def open(self, order: Order) -> None:
        """Accept the grant of an order: from now on the ranks may reduce under this name without the controller."""
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
        """Open grant of a name; ``None``: ask the controller."""
        return self._grants.find(key)

    def given(self) -> dict[int, int]:
        """Number of rounds that this rank has contributed to, by the number of each open grant."""
        return {grant.number: grant.round + (grant in self.awaiting) for grant in self._grants.all()}

    def contribute(self, grant: Grant, part: bytes, now: float) -> None:
        """Contribute to the next round, once; a contribution cannot be withdrawn."""
        self.awaiting[grant] = now
        grant.add_part(self._rank, part)
        self._send_part(grant, part)
        self._settle(grant)

    def withdraw(self, key: Key) -> None:
        """Close the grant of a name; the controller orders its next collective. A round in progress continues."""
        grant = self._grants.find(key)
        if grant is not None and grant not in self.awaiting:
            self._grants.close(grant)
            self._send_part(grant, WITHDRAWN)

    def withdraw_all(self) -> None:
        """Withdraw from every name because this rank joins: until ``come_back`` the others must not wait for it."""
        self._has_left = True
        for grant in self._grants.all():
            self.withdraw(grant.key)

    def release(self) -> None:
        """Leave, and ask the others to withdraw from open rounds of this rank that they have not contributed to."""
        if not self._has_left:
            self.withdraw_all()
            self.outbox += [HEAD.pack(grant.number, RELEASE) for grant in self.awaiting]

    def come_back(self) -> None:
        """Accept grants again: all ranks have joined."""
        self._has_left = False

    def _send_part(self, grant: Grant, said: Said) -> None:
        self.outbox.append(HEAD.pack(grant.number, NOTHING_FOLLOWS if said is None else len(said)) + (said or b""))

    # -- frames of the other ranks ------------------------------------------------------------------------------------

    def receive_bytes(self, rank: int, data: bytes) -> None:
        """Process bytes received from ``rank``."""
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
            if grant := self._grants.add_part(rank, number, said):
                self._settle(grant)

    def _release(self, number: int) -> None:
        """Withdraw from a grant on request of a rank that wants to join, unless this rank has contributed."""
        grant = self._grants.numbered(number)
        if grant is not None:
            self.withdraw(grant.key)
        elif self._grants.is_to_come(number):
            self._released.add(number)

    def lose(self, rank: int) -> None:
        """Record that the connection to ``rank`` has ended."""
        self._lost.add(rank)

    def missed(self) -> int:
        """A lost rank whose part is missing in an unfinished round; -1 for none."""
        return next((rank for rank in self._lost for grant in self.awaiting if grant.lacks(rank)), -1)

    def take_made(self) -> list[Message]:
        """Remove and return the messages made, to be executed in this order."""
        made, self.made = self.made, []
        return made

    def _settle(self, grant: Grant) -> None:
        """End the round of a grant if all parts are present, and the grant if a rank has withdrawn."""
        if parts := grant.next_round():
            self._end_round(grant)
            order = msgspec.structs.replace(grant.order, contributions=parts, direct=0)
            self.made.append(Orders(self._generation, [order]))
            if self._has_left:
                self.withdraw(grant.key)
                return
            grant.next_round()  # another rank may have withdrawn from the next round already
        if not grant.is_open:
            self._grants.close(grant)
            if grant in self.awaiting:
                self._end_round(grant)
                self.made.append(Resend(self._generation, grant.key[0], [grant.key[1]]))

    def _end_round(self, grant: Grant) -> None:
        del self.awaiting[grant]
        self.ended.append(grant)
