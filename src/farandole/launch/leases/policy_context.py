"""Working state of one call of ``decide``, the policy of leases, and helpers for the texts of its reasons.

    turn = PolicyContext(limits, plan, seen)    # orders, target size, shrinking and growing work on it, in this order
    turn.plan, turn.decisions

Leases are sorted by what was decided about them, and not by what the queue shows: a lease that was told to leave counts
as gone from then on, and a released lease counts as requested.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from datetime import datetime, timezone
from operator import attrgetter
from typing import Any, final

import msgspec

from farandole.launch.leases.actions import (
    AnyLeaseAction,
    CancelPending,
    EndLease,
    LeaseDecision,
    Release,
    Say,
)
from farandole.launch.leases.lease import Lease, LeasePhase
from farandole.launch.leases.limits import LeaseLimits
from farandole.launch.leases.observation import LeaseObservation
from farandole.launch.leases.policy_state import LeaseNote, LeasePlan

RELEASED, ENDED, CANCELLED = Release.__name__, EndLease.__name__, CancelPending.__name__
UNNOTED = LeaseNote()
HOUR_S = 3600.0


@final
class PolicyContext:
    """Leases of one call by kind, a copy of the plan to change, and the decisions so far.

    ``held`` leases can be released, ``pending`` leases were released, ``young`` ones run without training, ``members``
    train, and ``leaving`` ones were told to end or were cancelled. ``barred``: held by a user or an administrator.
    """

    def __init__(self, limits: LeaseLimits, plan: LeasePlan, seen: LeaseObservation) -> None:
        self.limits, self.seen = limits, seen
        self.plan = copy.copy(plan)
        self.plan.notes, self.plan.pauses, self.plan.said = dict(plan.notes), dict(plan.pauses), dict(plan.said)
        self.decisions: list[LeaseDecision] = []
        self.now_s = seen.now_s
        # Sorted, so that sums of floats and ties do not depend on the order of the list.
        self.leases = sorted(seen.leases, key=attrgetter("job"))
        self.held: list[Lease] = []
        self.barred: list[Lease] = []
        self.pending: list[Lease] = []
        self.young: list[Lease] = []
        self.members: list[Lease] = []
        self.leaving: list[Lease] = []
        self.volunteers = 0
        self.expiring = {job for job, note in plan.notes.items() if note.expiring}
        """Jobs whose successor is due."""
        self.closes_s = limits.closes_s(seen.now_s, seen.utc_offset_s)

    def sort(self) -> None:
        """Sort the leases into the lists, by phase and by the last decision about each."""
        member, held = LeasePhase.MEMBER, LeasePhase.HELD  # members of an Enum cost a look-up each time
        members, get = self.members.append, self.plan.notes.get
        others = {
            LeasePhase.ASKED: self.pending,
            LeasePhase.PENDING: self.pending,
            LeasePhase.STARTING: self.young,
            LeasePhase.WARMING: self.young,
            LeasePhase.LEAVING: self.leaving,
            LeasePhase.GONE: [],
        }
        for lease in self.leases:
            phase = lease.phase
            note = get(lease.job, UNNOTED)
            if note.told and self._was_told(lease, note):
                continue
            if phase is member:
                members(lease)
            elif phase is held:
                (self.barred if note.barred else self.held).append(lease)
            else:
                others[phase].append(lease)

    def _was_told(self, lease: Lease, note: LeaseNote) -> bool:
        if lease.phase is LeasePhase.GONE:
            return False
        if note.told in (ENDED, CANCELLED):
            self.leaving.append(lease)
            return True
        if lease.phase is LeasePhase.HELD and lease.since_s <= note.told_s:
            self.pending.append(lease)  # unless a look after the order has found it held
            return True
        return False

    # -- counts --------------------------------------------------------------------------------------------------------

    @property
    def training(self) -> int:
        """Workers that train and were not told to leave."""
        return min(self.seen.have, self.seen.own + workers(self.members))

    @property
    def running(self) -> list[Lease]:
        """Leases that run and were not told to leave."""
        return self.young + self.members

    @property
    def lasting(self) -> int:
        """Workers present or requested, without those of leases whose successor is due."""
        stay = [lease.workers for lease in self.running if lease.job not in self.expiring]
        return self.seen.own + workers(self.pending) + sum(stay)

    @property
    def alive(self) -> list[Lease]:
        """Leases that were released and may not have ended yet; all count against the bounds."""
        return self.pending + self.running + [lease for lease in self.leaving if lease.phase is not LeasePhase.HELD]

    @property
    def waiting(self) -> list[Lease]:
        """Leases in the queue, including those that are being cancelled."""
        cancelled = [lease for lease in self.leaving if lease.phase in (LeasePhase.ASKED, LeasePhase.PENDING)]
        return self.pending + cancelled

    @property
    def margin_s(self) -> float:
        """Time before the end of a lease at which it leaves."""
        return self.limits.leave_steps * self.seen.progress.step_s + self.limits.leave_s

    def length_s(self, lease: Lease) -> float:
        """Time limit of a lease; a limit that was set counts even before a look shows it."""
        minutes = self.note(lease.job).minutes
        length_s = lease.length_s or self.limits.longest_s
        return min(length_s, minutes * 60.0) if minutes else length_s

    def left_s(self, lease: Lease) -> float:
        """Time for which a lease can still use its nodes."""
        if lease.ends_s:
            return max(0.0, lease.ends_s - self.now_s)
        if lease.phase in (LeasePhase.STARTING, LeasePhase.WARMING, LeasePhase.MEMBER) and lease.since_s:
            return max(0.0, min(lease.since_s, self.now_s) + self.length_s(lease) - self.now_s)
        return self.length_s(lease)

    def nodes(self, lease: Lease) -> int:
        """Nodes of a lease."""
        return lease.nodes or self.limits.lease_nodes

    def unspent_node_hours(self, leases: Iterable[Lease]) -> float:
        """Node-hours of the budget that are not used and cannot be used by these leases."""
        seen = self.seen
        committed = sum([self.nodes(lease) * self.left_s(lease) for lease in leases]) / HOUR_S
        return self.limits.budget_node_hours - seen.node_hours - seen.node_hours_committed - committed

    # -- notes and decisions -------------------------------------------------------------------------------------------

    def note(self, job: str, **changes: Any) -> LeaseNote:
        """The note on a lease, after applying ``changes``."""
        note = self.plan.notes.get(job, UNNOTED)
        if changes:
            note = self.plan.notes[job] = msgspec.structs.replace(note, **changes)
        return note

    def decide(self, action: AnyLeaseAction, reason: str) -> None:
        """Add a decision."""
        self.decisions.append(LeaseDecision(action, reason))

    def print_once(self, topic: str, text: str) -> None:
        """Print ``text``, unless it was the last text printed about the topic."""
        if self.plan.said.get(topic) != text:
            self.plan.said[topic] = text
            self.decide(Say(), text)

    def release(self, lease: Lease, reason: str) -> None:
        """Release a held lease."""
        self.held.remove(lease)
        self.pending.append(lease)
        self.note(lease.job, told=RELEASED, told_s=self.now_s, asked_s=self.now_s)
        self.decide(Release(lease.job), reason)

    def end(self, lease: Lease, reason: str) -> None:
        """End a running lease."""
        (self.members if lease in self.members else self.young).remove(lease)
        self.leaving.append(lease)
        self.note(lease.job, told=ENDED, told_s=self.now_s)
        self.decide(EndLease(lease.job), reason)

    def cancel(self, lease: Lease, reason: str) -> None:
        """Cancel a waiting or held lease."""
        if self.is_paused("cancel"):
            return
        next(kind for kind in (self.pending, self.held, self.barred) if lease in kind).remove(lease)
        self.leaving.append(lease)
        self.note(lease.job, told=CANCELLED, told_s=self.now_s)
        self.decide(CancelPending(lease.job), reason)

    def is_paused(self, call: str) -> bool:
        """Whether a call to the scheduler is paused after a refusal."""
        return call in self.plan.pauses and self.now_s < self.plan.pauses[call].until_s

    def clock(self, at_s: float) -> str:
        """Local time of day, for texts."""
        return datetime.fromtimestamp(at_s + self.seen.utc_offset_s, timezone.utc).strftime("%H:%M")


def workers(leases: Iterable[Lease]) -> int:
    """Workers of leases."""
    return sum([lease.workers for lease in leases])


def newest_first(lease: Lease) -> tuple[float, int, str]:
    """Sort key: the newest lease first; of two from the same time, the one with the higher number."""
    return -lease.since_s, -len(lease.job), "".join(chr(0x10FFFF - ord(letter)) for letter in lease.job)


def soonest_first(lease: Lease) -> tuple[float, float, int, str]:
    """Sort key: the lease whose job ends soonest first, then the newest."""
    return lease.ends_s or float("inf"), *newest_first(lease)


def idle_first(lease: Lease) -> tuple[bool, float, float, int, str]:
    """Sort key: idle leases first, and then as ``soonest_first``."""
    return not lease.idle, *soonest_first(lease)


def by_number(lease: Lease) -> tuple[int, str]:
    """Sort key: numeric order, 812_9 before 812_10."""
    return len(lease.job), lease.job


def count(number: int, thing: str = "worker") -> str:
    """A number of things in words."""
    return f"{number} {thing}{'s' * (number != 1)}"
