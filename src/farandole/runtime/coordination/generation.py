"""Generation: one fixed membership, with its members, their waits, and the ranks that have left; without any I/O.

    generation = Generation(formed, settings)
    generation.rank_of(b"7f3a")                     # 0
    generation.remove_rank(0)                       # ranks that need rank 0 from now on get an error

The controller holds the current generation and sends the messages that follow from it.

Acknowledgements of a request to several ranks, until all have answered; without any I/O.

    >>> answers = Acknowledgements()
    >>> answers.begin(7, [1, 2])
    >>> answers.answered(1, 7)
    >>> answers.finished(), answers.gone(2), answers.finished(), answers.finished()
    (None, None, 7, None)

One request at a time: the next request replaces the previous one.

Planned lanes that some ranks have closed and others still use: some ranks dropped or replaced an optimizer.

    closed = ClosedLanes(hosts, groups)
    closed.add(0, LaneClosed(1, 0, "optimizer.0", 7))
    closed.refusal(1, Blocked(1, 0, "optimizer.0", 8, "optimizer.0: step 8", 0.1))      # why that can never end

The engine of such a lane sees at most a lost connection, and some engines not even that.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import final

from farandole.control.messages import Abort, Blocked, Exchanged, LaneClosed
from farandole.runtime.coordination.blocked_reports import BlockedReports
from farandole.runtime.coordination.deadlock import DeadlockDetector
from farandole.runtime.coordination.formation import Formed, Roster
from farandole.runtime.coordination.negotiation import Negotiation
from farandole.runtime.coordination.process_groups import ProcessGroups
from farandole.runtime.coordination.rank_names import list_some, name_rank, name_ranks
from farandole.runtime.coordination.rank_set import RankSet
from farandole.runtime.coordination.stall import Limits, StallInspector, Waiting
from farandole.settings import Settings


@final
class ClosedLanes:
    """Lanes of one generation that some, but not all, members of their process set have closed."""

    def __init__(self, hosts: Sequence[str], groups: ProcessGroups) -> None:
        self._hosts, self._groups = hosts, groups
        self._closed: dict[tuple[int, str], dict[int, int]] = {}

    def add(self, rank: int, closed: LaneClosed) -> bool:
        """Record that ``rank`` has closed a lane; False if the message is invalid."""
        members = self._groups.get(closed.process_set)
        if members is None or rank not in members:
            return False
        ranks = self._closed.setdefault((closed.process_set, closed.lane), {})
        ranks[rank] = closed.sequence
        if len(ranks) == len(members):
            del self._closed[closed.process_set, closed.lane]
        return True

    def refusal(self, rank: int, blocked: Blocked) -> str:
        """Reason why the collective in which ``rank`` is blocked can never complete; "" if none is known."""
        closed = self._closed.get((blocked.process_set, blocked.lane), {})
        absent = [other for other, sequence in closed.items() if other != rank and sequence < blocked.sequence]
        if not absent:
            return ""
        who, them = name_rank(rank, self._hosts), name_ranks(absent, self._hosts)
        return (
            f"{who} is in {blocked.what}, but the script of {them} has dropped that optimizer, or made another one in "
            "its place: make, replace and drop optimizers at the same line on every rank"
        )


@final
class Acknowledgements:
    """Ranks acknowledge by the number of the request; ranks that have left are not waited for."""

    def __init__(self) -> None:
        self._number: int | None = None
        self._missing: set[int] = set()

    def begin(self, number: int, ranks: Iterable[int]) -> None:
        """Wait for ``ranks`` to acknowledge the request ``number``, and for no earlier request."""
        self._number, self._missing = number, set(ranks)

    def answered(self, rank: int, number: int) -> None:
        """Record that ``rank`` has done request ``number``; ignored if that is an earlier request."""
        if number == self._number:
            self._missing.discard(rank)

    def gone(self, rank: int) -> None:
        """Stop waiting for ``rank``, which has left or exited."""
        self._missing.discard(rank)

    def finished(self) -> int | None:
        """Return the number of the request, once, when all ranks have acknowledged it; otherwise ``None``."""
        if self._number is None or self._missing:
            return None
        number, self._number = self._number, None
        return number


RENEWALS_PER_WARNING = 2
"""Number of times that a blocked rank repeats its report within the warning time, at least."""

_ExchangeKey = tuple[str, tuple[int, ...]]


@final
class Generation:
    """State of one generation. ``over`` is set once, when it ends, with the reason."""

    def __init__(self, formed: Formed, settings: Settings, expected: int) -> None:
        self.number = formed.generation
        self.members = formed.members
        self.hosts = formed.hosts
        self.over: Abort | None = None
        self.rejected: Counter[str] = Counter()
        self.negotiation = Negotiation(
            formed.hosts,
            formed.static_sets,
            settings.fusion_threshold_bytes,
            settings.cache_capacity,
            settings.dynamic_process_sets,
        )
        limits = Limits.of(settings)
        self.stall = StallInspector(limits, formed.hosts)
        self.timeline = Acknowledgements()
        renewal_s = 1.0 + limits.warning_s / RENEWALS_PER_WARNING
        self.blockages = BlockedReports(self.negotiation.groups, renewal_s, limits.warning_s)
        self.closed_lanes = ClosedLanes(formed.hosts, self.negotiation.groups)
        self.deadlocks = DeadlockDetector(formed.hosts, self.negotiation.groups, self.negotiation.awaited)
        self._expected = expected
        self._roster = Roster([member.hello for member in formed.members], expected)
        self._ranks = {member.uid: rank for rank, member in enumerate(formed.members)}
        self._away: dict[int, str] = {}
        self._following: set[int] = set()
        self._farewells: dict[int, tuple[float, str]] = {}
        self._present = RankSet.span(0, len(formed.members))
        self._exchanges: dict[_ExchangeKey, dict[int, bytes]] = {}

    def rank_of(self, uid: bytes) -> int | None:
        """Rank of a worker by the identity prefix of its sockets; ``None`` for a worker of another generation."""
        return self._ranks.get(uid)

    def rank_at(self, worker_id: int, pid: int) -> int | None:
        """Rank of the worker that was started for ``worker_id`` as process ``pid``, or ``None``."""
        return self._roster.find(worker_id, pid)

    def worker_ids(self, ranks: Iterable[int]) -> list[int]:
        """``worker_id`` of each of these ranks."""
        return [self.members[rank].hello.worker_id for rank in ranks]

    def present(self) -> RankSet:
        """Ranks that have neither left nor exited."""
        return self._present

    def has_left(self, rank: int) -> bool:
        """True once ``rank`` has left or exited."""
        return rank in self._away

    def left(self) -> list[int]:
        """``worker_id`` of each member that has left or exited, in that order; ranks that followed others are last."""
        order = sorted(self._away, key=self._following.__contains__)
        members = [self.members[rank] for rank in order]
        return [member.hello.worker_id for member in members if member.hello.expected == self._expected]

    def remove_rank(self, rank: int, reason: str = "", following: bool = False) -> None:
        """Remove ``rank``, which left by itself or ``following`` others; only ranks that need it get an error."""
        if rank not in self._away:
            if following:
                self._following.add(rank)
            self._farewells.pop(rank, None)
            self._away[rank] = reason or f"{self.name(rank)} has called shutdown(), or its script has ended"
            self._present -= RankSet.only(rank)
            self.negotiation.remove_rank(rank, self._away[rank])
            self.timeline.gone(rank)
            self.deadlocks.forget_rank(rank)

    def expect_farewell(self, rank: int, until_s: float, description: str) -> None:
        """Wait until ``until_s`` for the ``Leave`` of ``rank``, whose exit ``description`` describes."""
        self._farewells[rank] = until_s, description

    @property
    def farewell_s(self) -> float | None:
        """Deadline of the first expected ``Leave`` of an exited rank; ``None`` if none is expected."""
        return min((until_s for until_s, _ in self._farewells.values()), default=None)

    @property
    def deadline_s(self) -> float | None:
        """Time of the next action that needs no message; ``None`` if there is none."""
        if self.over is None and self.negotiation.undecided:
            return -math.inf
        moments = [] if self.farewell_s is None else [self.farewell_s]
        if self.over is None:
            due = (self.stall.deadline_s, self.deadlocks.due_s)
            moments += [moment for moment in due if moment is not None]
        return min(moments, default=None)

    def unsaid(self, now: float) -> str:
        """Reason to abort: exited ranks whose ``Leave`` did not arrive in time; "" if there is none."""
        reasons = []
        for rank, (until_s, description) in list(self._farewells.items()):
            if until_s <= now:
                reasons.append(f"{description} without calling shutdown()")
                self.remove_rank(rank, reasons[-1])
        return list_some(reasons, "; ")

    def name(self, rank: int) -> str:
        """Name of a member in texts: its rank and host."""
        return name_rank(rank, self.hosts)

    def gone_among(self, ranks: Collection[int]) -> str:
        """Reason why these ranks cannot run a collective, because some have left; "" if they can."""
        return list_some([reason for rank, reason in self._away.items() if rank in ranks], "; ")

    def parted(self, rank: int, host: str) -> tuple[list[int], str]:
        """Ranks to give up, and the reason, when ``rank`` reports that its host and ``host`` cannot communicate.

        The controller may reach both hosts, so that neither counts as lost; but they cannot be in one generation. The
        ranks of the host that comes later in rank order are given up, and the others may continue.
        """
        here = self.hosts[rank]
        younger = max(here, host, key=self.hosts.index)
        reason = (
            f"hosts {here} and {host} do not reach each other: the network between them is cut, or one is down: "
            f"{self.name(rank)} has waited for twice as long as a host may be silent (FARANDOLE_HOST_TIMEOUT_S)"
        )
        return [each for each, own in enumerate(self.hosts) if own == younger], reason

    def exchange(self, key: str, ranks: tuple[int, ...], parts: Mapping[int, bytes]) -> Exchanged | None:
        """Add parts, by rank, of an all-gather among ``ranks``; returns the result once all parts are present."""
        members = set(ranks)
        possible = len(members) == len(ranks) and all(0 <= rank < len(self.members) for rank in ranks)
        if not possible or not members.issuperset(parts):
            self.rejected["exchanges among impossible ranks"] += 1
            return None
        came = self._exchanges.setdefault((key, ranks), {})
        came.update(parts)
        if len(came) < len(ranks):
            return None
        del self._exchanges[key, ranks]
        return Exchanged(self.number, key, [came[rank] for rank in ranks])

    def exchange_without(self) -> str:
        """Reason why an exchange in progress can never complete; "" if all can."""
        return next((reason for _, ranks in self._exchanges if (reason := self.gone_among(ranks))), "")

    def begin_timeline(self, number: int) -> RankSet:
        """Begin request ``number`` of rank 0 to set all timelines; returns the ranks that must acknowledge it."""
        ranks = self.present() - RankSet.only(0)
        self.timeline.begin(number, ranks)
        return ranks

    def stack_arrived(self, worker_id: int, text: str, now: float) -> None:
        """Record the stack of the worker of ``worker_id``, or the reason why there is none."""
        for rank, member in enumerate(self.members):
            if member.hello.worker_id == worker_id:
                self.stall.stack(rank, text, now)

    def crossed(self, now: float) -> str:
        """Reason why ranks that wait for each other, some in the pairing of optimizers, wait forever; or ""."""
        found = self.blockages.crossed(now)
        if not found:
            return ""
        who = list_some([f"{self.name(rank)} in {what}" for rank, what in found.items()], "; ")
        return (
            f"ranks have waited for each other for long: {who}. Every rank must give the same gradients in each step, "
            "by structure, names and shapes, and use its optimizers in the same order"
        )

    def waiting(self, now: float, renewal_s: float = math.inf) -> list[Waiting]:
        """Collectives that ranks wait for: pending in the negotiated lane, or reported by blocked ranks.

        Reports of blocked ranks count for ``renewal_s``, if that is shorter than the renewal time.
        """
        return [*self.negotiation.waiting(), *self.blockages.waiting(now, renewal_s)]

    def statistics(self) -> dict[str, int]:
        """Counters since the start of the generation."""
        return {
            "generation": self.number,
            "size": len(self.members),
            "away": len(self._away),
            "stall_reports": self.stall.reports,
            **self.negotiation.statistics(),
        }
