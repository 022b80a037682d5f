"""Slots in which workers may be started, by host, and which of them rest after failures; without any I/O.

    >>> slots = Slots(Policy(cooldown_range_s=(2.0, 60.0)))
    >>> slots.found({"a": 1})
    >>> slots.occupy(slots.free(now=0.0), worker_id=0)
    >>> slots.fail(HostSlot("a", 0), now=10.0).reason
    'a worker in slot 0 of a has failed: it gets another one in 2 s at the earliest'
    >>> slots.free(now=11.0), slots.free(now=12.0)
    (None, HostSlot(host='a', index=0))

A slot rests after a failure, and longer after each further failure in a row. A whole host rests if it is lost, or if
several of its slots have failed repeatedly. No rest is permanent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

from farandole.elastic.membership.actions import Decision, Rest
from farandole.elastic.membership.policy import Policy

FIRST_REST_S = 1.0
"""Shortest rest after the second failure in a row, even if the shortest cool-down is 0."""


@final
@dataclass(frozen=True, slots=True)
class HostSlot:
    """One slot of a host."""

    host: str
    index: int

    def __str__(self) -> str:
        """Text for logs and errors."""
        return f"slot {self.index} of {self.host}"


@final
@dataclass(slots=True)
class _Record:
    """Number of failures in a row of a slot, or of a whole host, and the end of its rest."""

    failures: int = 0
    rests_until_s: float = 0.0


@final
class Slots:
    """Slots by host. Failures are remembered while a host is not in the list of hosts."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._capacity: dict[str, int] = {}
        self._taken: dict[HostSlot, int] = {}  # to worker ids
        self._slots: dict[HostSlot, _Record] = {}
        self._hosts: dict[str, _Record] = {}

    def found(self, hosts: dict[str, int]) -> None:
        """Replace the hosts and the number of slots of each."""
        self._capacity = dict(hosts)

    @property
    def by_host(self) -> Mapping[str, int]:
        """Number of slots of each host."""
        return self._capacity

    def exists(self, slot: HostSlot) -> bool:
        """True if the host is in the list and still has this slot."""
        return slot.index < self._capacity.get(slot.host, 0)

    def occupy(self, slot: HostSlot, worker_id: int) -> None:
        """Mark ``slot`` as taken by this worker."""
        self._taken[slot] = worker_id

    def give_back(self, slot: HostSlot) -> None:
        """Free a slot whose worker has ended without a failure of the slot."""
        self._taken.pop(slot, None)

    def fail(self, slot: HostSlot, now: float, lasted_s: float = 0.0) -> Decision | None:
        """Free a slot whose worker failed after ``lasted_s`` as a member; returns the rest of the slot or host.

        If the worker lasted longer than the longest cool-down, the slot is sound, and its count of failures restarts.
        """
        self._taken.pop(slot, None)
        record = self._slots.setdefault(slot, _Record())
        longest_s = self._policy.cooldown_range_s[1]
        record.failures = 1 if lasted_s > longest_s else record.failures + 1
        if not self._is_excluded(slot):
            record.rests_until_s = now + self._rest_s(record.failures)
            return _rest(slot.host, slot.index, self._rest_s(record.failures), f"a worker in {slot} has failed")
        record.rests_until_s = now + longest_s
        often = f"{slot} has failed {record.failures} times in a row"
        if not self._is_suspect(slot.host):
            return _rest(slot.host, slot.index, longest_s, often)
        self._hosts.setdefault(slot.host, _Record()).rests_until_s = now + longest_s
        return _rest(
            slot.host, -1, longest_s, f"{slot} has failed {record.failures} times in a row, like others of {slot.host}"
        )

    def lose(self, host: str, now: float) -> Decision | None:
        """Free all slots of a lost host; returns the rest of the host."""
        for slot in [slot for slot in self._taken if slot.host == host]:
            del self._taken[slot]
        record = self._hosts.setdefault(host, _Record())
        record.failures += 1
        rest_s = self._rest_s(record.failures)
        record.rests_until_s = max(record.rests_until_s, now + rest_s)
        return _rest(host, -1, rest_s, f"host {host} was lost")

    def proved(self, slot: HostSlot) -> None:
        """Reset the count of losses of the slot's host, because a worker on it became a member."""
        if slot.host in self._hosts:
            self._hosts[slot.host].failures = 0

    def free(self, now: float) -> HostSlot | None:
        """The first slot in which a worker may be started; ``None`` if there is none now."""
        return next((slot for slot in self._open() if self._rests_until_s(slot) <= now), None)

    @property
    def next_free_s(self) -> float | None:
        """Time at which ``free`` will find a slot; in the past if there is one now, ``None`` if all are taken."""
        return min((self._rests_until_s(slot) for slot in self._open()), default=None)

    @property
    def all_excluded(self) -> bool:
        """True if every slot has failed ``slot_failures`` times in a row or more, and none is in use."""
        all_slots = self._all()
        return bool(all_slots) and not self._taken and all(self._is_excluded(slot) for slot in all_slots)

    def _all(self) -> list[HostSlot]:
        return [HostSlot(host, index) for host, number in self._capacity.items() for index in range(number)]

    def _open(self) -> list[HostSlot]:
        return [slot for slot in self._all() if slot not in self._taken]

    def _is_excluded(self, slot: HostSlot) -> bool:
        record = self._slots.get(slot)
        return record is not None and record.failures >= self._policy.slot_failures

    def _is_suspect(self, host: str) -> bool:
        excluded = sum(self._is_excluded(slot) for slot in self._slots if slot.host == host)
        return excluded >= self._policy.host_failures

    def _rests_until_s(self, slot: HostSlot) -> float:
        records = (self._slots.get(slot), self._hosts.get(slot.host))
        return max((record.rests_until_s for record in records if record is not None), default=0.0)

    def _rest_s(self, failures: int) -> float:
        """The shortest cool-down, then twice as long each time, up to the longest."""
        shortest_s, longest_s = self._policy.cooldown_range_s
        if failures == 1:
            return min(shortest_s, longest_s)
        return float(min(longest_s, max(FIRST_REST_S, 2 * shortest_s) * 2.0 ** (failures - 2)))


def _rest(host: str, slot: int, rest_s: float, why: str) -> Decision | None:
    if not rest_s:
        return None
    return Decision(Rest(host, slot, rest_s), f"{why}: it gets another one in {rest_s:g} s at the earliest")
