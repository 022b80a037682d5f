"""Submissions of one rank, and how to announce each: in full, by number, or to its peers; without I/O or locks.

    submissions = Submissions(capacity=1024)
    known = submissions.enter(pending)                   # the cached entry of the name, if its meaning is unchanged
    if not offer(peers, pending.announcement, known):    # on the peer lane
        announce(known or pending.announcement.entry())  # to the controller

    submissions.finish(pending)                          # its order has been executed
    submissions.remember(pending.announcement, number)   # the order has assigned a number

``NegotiatedLane`` calls all methods that modify it with its lock held, and ``find`` and ``may_join`` without: these two
iterate over a copy of ``inflight``, because other threads submit meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar, final

from farandole.collective import Kind
from farandole.control.messages import Entry, Order
from farandole.errors import DuplicateNameError
from farandole.runtime.coordination.process_groups import GLOBAL
from farandole.runtime.lanes.announcement import Announcement, Key


class InFlight(Protocol):
    """A collective in flight. ``to_announce``: not announced to the controller yet, but it may have to be."""

    announcement: Announcement
    to_announce: bool


class Peers(Protocol):
    """Interface of the peer lane that submissions use."""

    def contribute(self, announcement: Announcement) -> int:
        """Contribute to an open grant and return its number; 0 if there is none: announce it to the controller."""

    def withdraw(self, key: Key) -> None:
        """Close the grant of a name on all ranks; the controller orders its next collective."""

    def withdraw_all(self) -> None:
        """Withdraw from all names: this rank is joining."""


P = TypeVar("P", bound=InFlight)


@dataclass(slots=True)
class _Known:
    """A cached name: the fingerprint of its last submission here, and the entry that announces it by number."""

    fingerprint: object
    entry: Entry


@final
class Submissions(Generic[P]):
    """Submissions of one rank in flight, and the cached numbers of up to ``capacity`` names."""

    __slots__ = ("_capacity", "_known", "_refused", "inflight")

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._known: dict[Key, _Known] = {}
        self._refused: set[Key] = set()
        self.inflight: dict[Key, P] = {}

    def enter(self, pending: P) -> Entry | None:
        """Put it in flight. Returns the entry that announces it by number; ``None``: it must be announced in full."""
        announcement = pending.announcement
        if self._refused:
            announcement.key = self.current(announcement.name)
        if announcement.key in self.inflight:
            raise DuplicateNameError(
                f"{announcement.key[1]!r} was submitted while the one before it is still in flight on this rank: "
                "wait for that one first, or give each its own name"
            )
        self.inflight[announcement.key] = pending
        pending.to_announce = True
        known = self._known.get(announcement.key)
        return known.entry if known is not None and known.fingerprint == announcement.fingerprint else None

    def current(self, name: Key) -> Key:
        """Name on the wire for the caller's ``name``.

        A rank that refuses does not wait for the others. So that its next collective of this name matches their next
        one, every member, joined ones too, records the refusals and counts them in the name on the wire.
        """
        key, times = name, 0
        while key in self._refused:
            times += 1
            key = (name[0], f"{name[1]} (after {times} refused)")
        return key

    def refuse(self, announcement: Announcement) -> bool:
        """Record that this rank cannot take part; False if it has already submitted this collective."""
        announcement.key = self.current(announcement.name)
        if announcement.key in self.inflight:
            return False
        self._refused.add(announcement.key)
        return True

    def find(self, order: Order, name: str) -> P | None:
        """Find the submission that an order executes; ``None`` if this rank has joined, or has refused."""
        if order.kind != Kind.JOIN:
            return self.inflight.get((order.process_set, name))
        return next((p for p in list(self.inflight.values()) if p.announcement.kind is Kind.JOIN), None)

    def finish(self, pending: P) -> None:
        """Remove it from the collectives in flight, successful or not."""
        self.inflight.pop(pending.announcement.key, None)
        pending.to_announce = False

    def note_refusal(self, order: Order) -> None:
        """Record the names of an order with an error as refused or, if ``order.refused`` is false, as not refused."""
        for name in order.names:
            if order.refused:
                self._refused.add((order.process_set, name))
            else:
                self._refused.discard((order.process_set, name))

    def remember(self, announcement: Announcement, number: int) -> None:
        """Record the number by which ranks may announce this name from now on; evicts the oldest name if full."""
        known = self._known.get(announcement.key)
        if known is not None and known.entry.cached == number:
            return
        self._known[announcement.key] = _Known(
            announcement.fingerprint, Entry(announcement.key[0], announcement.key[1], number)
        )
        if len(self._known) > self._capacity:
            del self._known[next(iter(self._known))]

    def forget(self, key: Key) -> P | None:
        """Forget the number of a name; returns its collective in flight, which must be announced again, in full."""
        self._known.pop(key, None)
        return self.inflight.get(key)

    def may_join(self) -> bool:
        """False while a collective may still need an announcement, which the controller refuses after a join."""
        return not any(pending.to_announce for pending in list(self.inflight.values()))


def offer(direct: Peers, announcement: Announcement, known: Entry | None) -> int:
    """Contribute on the peer lane, if all ranks know the name; returns the grant, 0: announce it to the controller."""
    if announcement.kind is Kind.JOIN:
        direct.withdraw_all()
    if known is None:
        direct.withdraw(announcement.key)
    if announcement.key[0] != GLOBAL:  # other ranks may use the same name in the global set, and wait for this rank
        direct.withdraw((GLOBAL, announcement.key[1]))
    return 0 if known is None else direct.contribute(announcement)
