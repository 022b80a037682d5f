"""One membership while it lasts: who its members are, what they wait for, who has left; without any I/O.

    generation = Generation(formed, settings)
    generation.rank_of(b"7f3a")                     # 0
    generation.leave(0)                             # whoever needs rank 0 from now on is told that it has gone

The controller holds the current one and turns what it says into messages.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import final

from farandole.control.messages import Abort, Exchanged
from farandole.runtime.coordination.acknowledgements import Acknowledgements
from farandole.runtime.coordination.blocked_reports import BlockedReports
from farandole.runtime.coordination.formation import Formed, Roster
from farandole.runtime.coordination.negotiation import Negotiation
from farandole.runtime.coordination.rank_names import list_some, name_rank
from farandole.runtime.coordination.rank_set import RankSet
from farandole.runtime.coordination.stall import Limits, StallInspector, Waiting
from farandole.settings import Settings

RENEWALS_PER_WARNING = 2
"""Ranks repeat that they are blocked at least this often within the warning time."""

_ExchangeKey = tuple[str, tuple[int, ...]]


@final
class Generation:
    """The state that begins and ends with one membership. ``over`` is set once, with the reason."""

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
        self.blockages = BlockedReports(self.negotiation.groups, 1.0 + limits.warning_s / RENEWALS_PER_WARNING)
        self._expected = expected
        self._roster = Roster([member.hello for member in formed.members], expected)
        self._ranks = {member.uid: rank for rank, member in enumerate(formed.members)}
        self._away: dict[int, str] = {}
        self._following: set[int] = set()
        self._farewells: dict[int, tuple[float, str]] = {}
        self._present = RankSet.span(0, len(formed.members))
        self._exchanges: dict[_ExchangeKey, dict[int, bytes]] = {}

    def rank_of(self, uid: bytes) -> int | None:
        """The rank of a worker's sockets, or ``None`` for one of another generation."""
        return self._ranks.get(uid)

    def rank_at(self, worker_id: int, pid: int) -> int | None:
        """The rank of the worker that was started for ``worker_id`` as process ``pid``."""
        return self._roster.find(worker_id, pid)

    def worker_ids(self, ranks: Iterable[int]) -> list[int]:
        """Where these ranks were started."""
        return [self.members[rank].hello.worker_id for rank in ranks]

    def present(self) -> RankSet:
        """The ranks that have neither left nor ended."""
        return self._present

    def has_left(self, rank: int) -> bool:
        """True once ``rank`` has left or ended."""
        return rank in self._away

    def left(self) -> list[int]:
        """The places of those that have left or ended, in that order, and of those that followed them at last."""
        order = sorted(self._away, key=self._following.__contains__)
        members = [self.members[rank] for rank in order]
        return [member.hello.worker_id for member in members if member.hello.expected == self._expected]

    def leave(self, rank: int, reason: str = "", following: bool = False) -> None:
        """``rank`` takes part in nothing any more, ``following`` others; only who needs it is told."""
        if rank not in self._away:
            if following:
                self._following.add(rank)
            self._away[rank] = reason or f"{self.name(rank)} has called shutdown(), or its script has ended"
            self._present -= RankSet.only(rank)
            self.negotiation.leave(rank, self._away[rank])
            self.timeline.gone(rank)

    def expect_farewell(self, rank: int, until_s: float, description: str) -> None:
        """``rank`` has ended, as ``description`` says; the news that it had called shutdown() may be on its way."""
        self._farewells[rank] = until_s, description

    @property
    def deadline_s(self) -> float | None:
        """When something of it is due; ``None`` if only a message can bring news."""
        if self.over is None and self.negotiation.undecided:
            return -math.inf
        moments = [until_s for until_s, _ in self._farewells.values()]
        if self.over is None:
            moments += [moment for moment in (self.negotiation.expiry_s, self.stall.deadline_s) if moment is not None]
        return min(moments, default=None)

    def unsaid(self, now: float) -> str:
        """Why ranks that ended have left all the same, if the news has not come in time; "" if none has."""
        if not self._farewells:
            return ""
        reasons = []
        for rank, (until_s, description) in list(self._farewells.items()):
            if until_s <= now:
                del self._farewells[rank]
                if rank not in self._away:
                    reasons.append(f"{description} without calling shutdown()")
                    self.leave(rank, reasons[-1])
        return list_some(reasons, "; ")

    def name(self, rank: int) -> str:
        """How texts call a member."""
        return name_rank(rank, self.hosts)

    def gone_among(self, ranks: Collection[int]) -> str:
        """Why these ranks cannot meet, or "" if they can."""
        return list_some([reason for rank, reason in self._away.items() if rank in ranks], "; ")

    def parted(self, rank: int, host: str) -> tuple[list[int], str]:
        """``rank`` hears nothing from ``host``: the ranks of the younger host, without which others may go on, and why.

        The controller may hear both, so that none counts as lost; but they cannot be in one generation.
        """
        here = self.hosts[rank]
        younger = max(here, host, key=self.hosts.index)
        reason = (
            f"hosts {here} and {host} do not hear each other: the network between them is cut, or one is down, says "
            f"{self.name(rank)}, which has waited for twice as long as a host may be silent (FARANDOLE_HOST_TIMEOUT_S)"
        )
        return [each for each, own in enumerate(self.hosts) if own == younger], reason

    def exchange(self, key: str, ranks: tuple[int, ...], parts: Mapping[int, bytes]) -> Exchanged | None:
        """Parts of an all-gather among ``ranks`` have come, by rank; all of them, once they are there."""
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
        """Why an exchange in progress can never be complete, or ""."""
        return next((reason for _, ranks in self._exchanges if (reason := self.gone_among(ranks))), "")

    def begin_timeline(self, number: int) -> RankSet:
        """Rank 0 asks something of the others' timelines, under this number; those that will answer."""
        ranks = self.present() - RankSet.only(0)
        self.timeline.begin(number, ranks)
        return ranks

    def stack_arrived(self, worker_id: int, text: str, now: float) -> None:
        """The stack of the worker of ``worker_id``, or why there is none."""
        for rank, member in enumerate(self.members):
            if member.hello.worker_id == worker_id:
                self.stall.stack(rank, text, now)

    def waiting(self, now: float) -> list[Waiting]:
        """What ranks wait for in both lanes."""
        return [*self.negotiation.waiting(), *self.blockages.waiting(now)]

    def statistics(self) -> dict[str, int]:
        """Counters since it began."""
        return {
            "generation": self.number,
            "size": len(self.members),
            "away": len(self._away),
            "stall_reports": self.stall.reports,
            **self.negotiation.statistics(),
        }
