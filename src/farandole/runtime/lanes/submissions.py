"""Submissions of one rank, and the way to announce each: in full, by number, or to its peers; without I/O or locks.

    submissions = Submissions(capacity=1024)
    known = submissions.enter(pending)                   # what all know of the name, if it is meant as before
    if not offer(peers, pending.announcement, known):    # from rank to rank
        announce(known or pending.announcement.entry())  # to the controller

    submissions.finish(pending)                          # its order has been executed
    submissions.remember(pending.announcement, number)   # and brought a number

``NegotiatedLane`` calls what changes it with its lock held, and ``find`` and ``may_join`` without: these two go through
a copy of ``inflight``, as other threads submit meanwhile.
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
    """A collective in flight. ``to_announce`` while the controller does not know of it, and may yet have to."""

    announcement: Announcement
    to_announce: bool


class Peers(Protocol):
    """The peer lane, as far as a submission concerns it."""

    def give(self, announcement: Announcement) -> int:
        """Contribute to an open grant, whose number it returns; 0 if there is none: the controller has to be asked."""

    def withdraw(self, key: Key) -> None:
        """Leave what comes next under this name to the controller, on all ranks."""

    def leave(self) -> None:
        """Withdraw from everything: this rank is joining."""


P = TypeVar("P", bound=InFlight)


@dataclass(slots=True)
class _Known:
    """A name that all ranks know: its meaning when last submitted here, and the entry that announces it by number."""

    fingerprint: object
    entry: Entry


@final
class Submissions(Generic[P]):
    """Submissions of one rank in flight, and the numbers of up to ``capacity`` names."""

    __slots__ = ("_capacity", "_known", "_refused", "inflight")

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._known: dict[Key, _Known] = {}
        self._refused: set[Key] = set()
        self.inflight: dict[Key, P] = {}

    def enter(self, pending: P) -> Entry | None:
        """Put it in flight. Returns the entry that announces it by number; ``None`` if it must be announced in full."""
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
        """The name on the wire of what a caller calls ``name``.

        A rank that refuses does not wait for the others. So that what it does next under this name meets what they do
        next, every member keeps what was refused, those that have joined too.
        """
        key, times = name, 0
        while key in self._refused:
            times += 1
            key = (name[0], f"{name[1]} (after {times} refused)")
        return key

    def refuse(self, announcement: Announcement) -> bool:
        """Note that this rank cannot take part; False if it has submitted that already."""
        announcement.key = self.current(announcement.name)
        if announcement.key in self.inflight:
            return False
        self._refused.add(announcement.key)
        return True

    def find(self, order: Order, name: str) -> P | None:
        """The submission that an order executes; ``None`` if this rank has joined, or has refused."""
        if order.kind != Kind.JOIN:
            return self.inflight.get((order.process_set, name))
        return next((p for p in list(self.inflight.values()) if p.announcement.kind is Kind.JOIN), None)

    def finish(self, pending: P) -> None:
        """Take it out of flight, whatever came of it."""
        self.inflight.pop(pending.announcement.key, None)
        pending.to_announce = False

    def note_refusal(self, order: Order) -> None:
        """Note the names of an order with an error as refused or, where no refusal counted, as not refused."""
        for name in order.names:
            if order.refused:
                self._refused.add((order.process_set, name))
            else:
                self._refused.discard((order.process_set, name))

    def remember(self, announcement: Announcement, number: int) -> None:
        """Note the number by which all ranks may announce this name from now on; the oldest name gives way."""
        known = self._known.get(announcement.key)
        if known is not None and known.entry.cached == number:
            return
        self._known[announcement.key] = _Known(
            announcement.fingerprint, Entry(announcement.key[0], announcement.key[1], number)
        )
        if len(self._known) > self._capacity:
            del self._known[next(iter(self._known))]

    def forget(self, key: Key) -> P | None:
        """Forget the number of a name; returns what is in flight under it and must be announced again, in full."""
        self._known.pop(key, None)
        return self.inflight.get(key)

    def may_join(self) -> bool:
        """False while something may yet have to be announced: not after a join, as the controller refuses it then."""
        return not any(pending.to_announce for pending in list(self.inflight.values()))


def offer(direct: Peers, announcement: Announcement, known: Entry | None) -> int:
    """Contribute by way of the peers, where all ranks know the name; returns the grant, 0: ask the controller."""
    if announcement.kind is Kind.JOIN:
        direct.leave()
    if known is None:
        direct.withdraw(announcement.key)
    if announcement.key[0] != GLOBAL:  # others may mean the other one, and wait for it
        direct.withdraw((GLOBAL, announcement.key[1]))
    return 0 if known is None else direct.give(announcement)
