"""What one rank has submitted and how it announces it: in full, by number, or to its peers alone; without I/O or locks.

    submissions = Submissions(capacity=1024)
    known = submissions.enter(pending)                   # what all know of the name, if it is meant as before
    if not offer(direct, pending.ask, known):            # from rank to rank
        announce(known or pending.ask.entry())           # to the controller

    submissions.finish(pending)                          # its order has been executed
    submissions.remember(pending.ask, number)            # and brought a number

``NegotiatedLane`` guards it with its lock.
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
    """A collective on its way. ``to_announce`` while the controller does not know of it, and may yet have to."""

    announcement: Announcement
    to_announce: bool


class Peers(Protocol):
    """The direct lane, as far as a submission concerns it."""

    def give(self, announcement: Announcement) -> bool:
        """Contribute; False if the controller is to be asked."""

    def withdraw(self, key: Key) -> None:
        """The controller is to be asked for what comes next under this name."""

    def leave(self) -> None:
        """This rank is joining."""


P = TypeVar("P", bound=InFlight)


@dataclass(slots=True)
class _Known:
    """How a name was last meant here, and how it is announced by number."""

    fingerprint: object
    entry: Entry


@final
class Submissions(Generic[P]):
    """Those of one rank; it knows the numbers of ``capacity`` names."""

    __slots__ = ("_capacity", "_known", "_refused", "inflight")

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._known: dict[Key, _Known] = {}
        self._refused: set[Key] = set()
        self.inflight: dict[Key, P] = {}

    def enter(self, pending: P) -> Entry | None:
        """It is in flight from now on. Returns how to say it by number; ``None`` if it must be said in full."""
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
        """What a name is called on the wire now.

        A rank that refuses does not wait for the others. So that what it does next under this name meets what they do
        next, every member keeps what was refused, those that have joined too.
        """
        key, times = name, 0
        while key in self._refused:
            times += 1
            key = (name[0], f"{name[1]} (after {times} refused)")
        return key

    def refuse(self, announcement: Announcement) -> bool:
        """This rank cannot do it; False if it is doing it already."""
        announcement.key = self.current(announcement.name)
        if announcement.key in self.inflight:
            return False
        self._refused.add(announcement.key)
        return True

    def find(self, order: Order, name: str) -> P | None:
        """What an order is for; ``None`` if this rank has joined, or has refused."""
        if order.kind != Kind.JOIN:
            return self.inflight.get((order.process_set, name))
        return next((p for p in list(self.inflight.values()) if p.announcement.kind is Kind.JOIN), None)

    def finish(self, pending: P) -> None:
        """It is over."""
        self.inflight.pop(pending.announcement.key, None)
        pending.to_announce = False

    def note_refusal(self, order: Order) -> None:
        """An order holds an error: perhaps as some rank cannot do it, perhaps as our refusal meant nothing."""
        for name in order.names:
            if order.refused:
                self._refused.add((order.process_set, name))
            else:
                self._refused.discard((order.process_set, name))

    def remember(self, announcement: Announcement, number: int) -> None:
        """All know what this name means, and may say so by number."""
        known = self._known.get(announcement.key)
        if known is not None and known.entry.cached == number:
            return
        self._known[announcement.key] = _Known(
            announcement.fingerprint, Entry(announcement.key[0], announcement.key[1], number)
        )
        if len(self._known) > self._capacity:
            del self._known[next(iter(self._known))]

    def forget(self, key: Key) -> P | None:
        """The name must be said in full again; what is in flight under it, too."""
        self._known.pop(key, None)
        return self.inflight.get(key)

    def may_join(self) -> bool:
        """False while something may yet have to be announced: not after a join, as the controller refuses it then."""
        return not any(pending.to_announce for pending in list(self.inflight.values()))


def offer(direct: Peers, announcement: Announcement, known: Entry | None) -> bool:
    """Contribute to what all know; False: the controller is to be asked."""
    if announcement.kind is Kind.JOIN:
        direct.leave()
    if known is None:
        direct.withdraw(announcement.key)
    if announcement.key[0] != GLOBAL:  # others may mean the other one, and wait for it
        direct.withdraw((GLOBAL, announcement.key[1]))
    return known is not None and direct.give(announcement)
