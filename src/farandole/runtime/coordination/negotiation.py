"""Coordinator of the negotiated lane: which ranks are ready for which collectives, and their order; without any I/O.

    >>> from farandole.collective import DType
    >>> negotiation = Negotiation(["a", "a"])
    >>> entry = Entry(0, "loss", signature=Signature(Kind.ALLREDUCE, [DType.FLOAT32], [[3]]))
    >>> negotiation.submit(RankSet.of([0]), entry, now=0.0), negotiation.undecided
    (RankSet(), False)
    >>> negotiation.submit(RankSet.of([1]), entry, now=0.1), negotiation.undecided
    (RankSet(), True)
    >>> [(delivery.ranks, delivery.order.names) for delivery in negotiation.decide(now=0.1)]
    [(RankSet(0-1), ['loss'])]

A collective is ready when every member of its process set has submitted it or joined, or when it is certain to fail.
Ready collectives of all sets wait in one queue until ``decide`` puts them in one global order, of which every rank
receives its part; collectives that are in the queue together may be fused. No message of a rank can raise here: invalid
submissions are counted in ``rejected`` or answered by an order with an error for that rank alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, final

from farandole.collective import Kind
from farandole.control.messages import Entry, Order, Signature
from farandole.runtime.coordination.agreement import Plan, malformed, settle, title
from farandole.runtime.coordination.cache import CachedSignature, Key, SignatureCache
from farandole.runtime.coordination.pending_resends import PendingResends
from farandole.runtime.coordination.process_groups import GLOBAL, ProcessGroups
from farandole.runtime.coordination.proposal import Proposal
from farandole.runtime.coordination.rank_names import by_saying, list_some
from farandole.runtime.coordination.rank_set import NOBODY, RankSet
from farandole.runtime.coordination.stall import Waiting

_NONSENSE = Signature(Kind.BARRIER, [], [])
_UNCACHED = frozenset({Kind.JOIN, Kind.ADD_SET, Kind.REMOVE_SET})


@final
class Delivery(NamedTuple):
    """An order and its receivers."""

    ranks: RankSet
    order: Order


@final
@dataclass(slots=True)
class _Batch:
    """Proposals that become one order; with ``contributions``, no engine moves any data."""

    proposals: list[Proposal]
    plans: list[Plan]
    nbytes: int
    contributions: list[bytes]


@final
class Negotiation:
    """Coordinator of one generation. ``hosts`` are by rank; ``static_sets`` get the ids 1, 2, ... in their order.

    ``submit``, ``remove_rank`` and ``end_crossed`` process events; call ``decide`` when ``undecided`` is true and no
    other event is waiting. Not thread-safe. Times are seconds of any one clock.
    """

    def __init__(
        self,
        hosts: Sequence[str],
        static_sets: Sequence[Sequence[int]] = (),
        fusion_threshold_bytes: int = 0,
        cache_capacity: int = 0,
        dynamic_sets: bool = True,
    ) -> None:
        self.groups = ProcessGroups(len(hosts), static_sets, dynamic_sets)
        self.rejected: Counter[str] = Counter()
        self._hosts = hosts
        self._fusion_threshold_bytes = fusion_threshold_bytes
        self._cache = SignatureCache(cache_capacity)
        self._proposals: dict[Key, Proposal] = {}
        self._queue: list[Proposal] = []
        self._join: Proposal | None = None
        self._overdue = PendingResends()
        self._left: dict[int, str] = {}
        self._gone = NOBODY
        self._last: dict[int, Order] = {}
        self._ordered_s = 0.0
        self._orders = self._collectives = self._grants = 0

    # -- events -------------------------------------------------------------------------------------------------------

    def submit(self, ranks: RankSet, entry: Entry, now: float, contribution: bytes = b"") -> RankSet:
        """Record that ``ranks`` are ready for ``entry``; returns the ranks that must submit it again in full.

        A single rank may send its ``contribution`` along.
        """
        key = (entry.process_set, entry.name)
        if entry.cached >= 0:
            line = self._cache.find(entry.cached, key)
            known = NOBODY if line is None else ranks & line.statements.ranks
            if line is not None and known:
                self._enter(known, key, line.plan.signature, line, now, contribution)
            if unknown := ranks - known:
                self._overdue.expect(unknown, key)
            return unknown
        if reason := malformed(entry.signature):
            self._refuse(ranks, key, _NONSENSE, lambda rank: f"rank {rank} submitted what no rank can mean: {reason}")
        elif entry.signature is not None:
            if entry.signature.kind == Kind.JOIN:
                ranks -= self._overdue.hold(ranks, entry)
            if ranks:
                self._enter(ranks, key, entry.signature, None, now, contribution)
        self._overdue.said(ranks, key)
        for late, join in self._overdue.free():
            self.submit(late, join, now)
        return NOBODY

    def remove_rank(self, rank: int, reason: str) -> None:
        """Remove ``rank`` for good; ranks that need it get an ``AbortError`` with ``reason``."""
        self._left[rank] = reason
        self._gone |= RankSet.only(rank)
        self._overdue.drop(rank)
        for proposal in self._open():
            self._fail_if_left(proposal)
        for proposal in self._queue:  # maybe submitted by ``rank``, which will not execute it
            self._blame_left(proposal)

    def reset(self) -> None:
        """Forget all collectives in flight, as if no rank had submitted them."""
        self._proposals, self._queue, self._join = {}, [], None

    def crossed(self, ranks: RankSet) -> list[Proposal]:
        """Collectives with the same name in several process sets, in which some of ``ranks`` wait for each other."""
        by_name: dict[str, list[Proposal]] = {}
        for proposal in self._proposals.values():
            by_name.setdefault(proposal.name, []).append(proposal)
        return [
            one for together in by_name.values() for one in together if any(one.crosses(it, ranks) for it in together)
        ]

    def end_crossed(self, ranks: RankSet) -> bool:
        """Fail the collectives that ``crossed`` finds among ``ranks``, which wait for each other; False if none.

        The ranks mean the same collective, and can continue after a ``MismatchError``, as after any other difference.
        """
        crossed = self.crossed(ranks)
        for one in crossed:
            alike = [each for each in crossed if each.name == one.name]
            said = {rank: f"process set {each.process_set}" for each in alike for rank in each.ready}
            differ = f"the ranks differ in the process set: {by_saying(said, self._hosts)}"
            self._fail(one, f"{one.title}: {differ}", "MismatchError")
        return bool(crossed)

    def _enter(
        self,
        ranks: RankSet,
        key: Key,
        signature: Signature,
        line: CachedSignature | None,
        now: float,
        contribution: bytes,
    ) -> None:
        if self._join is not None and (idle := ranks & self._join.ready):
            self._refuse(
                idle, key, signature, lambda rank: f"rank {rank} has called join(), which has not returned yet"
            )
            ranks -= idle
        joining = signature.kind == Kind.JOIN
        proposal = self._join if joining else self._proposals.get(key)
        if proposal is None or not ranks <= proposal.missing or signature.kind in _UNCACHED:
            ranks = self._admitted(ranks, key, signature, proposal)
            if not ranks:
                return
        if proposal is None:
            proposal = self._propose(key, joining, line, now)
        proposal.enter(ranks, signature, line, contribution)
        if joining:
            self._do_without(ranks)
        if self._gone and self._fail_if_left(proposal):
            return
        if not proposal.missing:
            self._make_ready(proposal)

    def _admitted(self, ranks: RankSet, key: Key, signature: Signature, proposal: Proposal | None) -> RankSet:
        """Ranks that may submit this; the other ranks get an error with the reason."""
        if proposal is not None:
            if again := ranks & proposal.ready:
                self.rejected["names already in flight"] += len(again)
                ranks -= again
            members = proposal.members
        else:
            members = self.groups.get(key[0]) or NOBODY
        if aliens := ranks - members:
            self._refuse(aliens, key, signature, lambda rank: self._not_a_member(rank, key[0]))
            ranks -= aliens
        if ranks and signature.kind in _UNCACHED and key[0] != GLOBAL:
            reason = f"{Kind(signature.kind).label} is a matter of all ranks: process set 0"
            self._refuse(ranks, key, signature, lambda _: reason)
            return NOBODY
        return ranks

    def _propose(self, key: Key, joining: bool, line: CachedSignature | None, now: float) -> Proposal:
        members = self.groups.get(key[0]) or NOBODY
        missing = members if self._join is None else members - self._join.ready
        proposal = Proposal(key[0], key[1], members, missing, now, line)
        if joining:
            self._join = proposal
        else:
            self._proposals[key] = proposal
        return proposal

    def _not_a_member(self, rank: int, process_set: int) -> str:
        members, own = self.groups.get(process_set), self.groups.of(rank)
        if members is None:
            return f"there is no process set {process_set}; rank {rank} is in {own}"
        return f"rank {rank} is not in process set {process_set}, which is {list(members)}; it is in {own}"

    def _do_without(self, ranks: RankSet) -> None:
        """Stop waiting for ranks that have joined."""
        for proposal in list(self._proposals.values()):
            proposal.missing -= ranks
            if not proposal.missing:
                self._make_ready(proposal)

    def _make_ready(self, proposal: Proposal) -> None:
        if proposal is self._join:
            self._join = None
            proposal.value = proposal.latest.last()
            for other in self._proposals.values():  # empty unless the join failed
                other.missing |= other.silent & proposal.ready
        else:
            del self._proposals[proposal.key]
        self._queue.append(proposal)

    def _fail(self, proposal: Proposal, error: str, error_kind: str) -> None:
        proposal.error, proposal.error_kind = error, error_kind
        self._make_ready(proposal)

    def _fail_if_left(self, proposal: Proposal) -> bool:
        """Fail a proposal that needs a rank that has left; True if it did."""
        hopeless = self._blame_left(proposal)
        if hopeless:
            self._make_ready(proposal)
        return hopeless

    def _blame_left(self, proposal: Proposal) -> bool:
        if proposal.members.isdisjoint(self._gone):
            return False
        reasons = list_some([reason for rank, reason in self._left.items() if rank in proposal.members], "; ")
        proposal.error = f"{proposal.title} cannot happen: {reasons}"
        proposal.error_kind = "AbortError"
        return True

    def _refuse(self, ranks: RankSet, key: Key, signature: Signature, reason: Callable[[int], str]) -> None:
        """Queue a separate error for each of these ranks."""
        for rank in ranks:
            self.rejected["submissions that cannot be meant"] += 1
            refused = Proposal(*key, members=NOBODY, missing=NOBODY, since_s=0.0)
            refused.enter(RankSet.only(rank), signature, None)
            refused.error, refused.error_kind = f"{refused.title}: {reason(rank)}", "UsageError"
            self._queue.append(refused)

    def _open(self) -> list[Proposal]:
        return [*self._proposals.values(), *([self._join] if self._join else [])]

    # -- decisions ----------------------------------------------------------------------------------------------------

    @property
    def undecided(self) -> bool:
        """True if ``decide`` has something to order."""
        return bool(self._queue)

    def decide(self, now: float) -> list[Delivery]:
        """Order all ready collectives, and fuse those that fit together."""
        batches: list[_Batch] = []
        filling: dict[object, _Batch] = {}
        for proposal in self._queue:  # may grow meanwhile: the removal of a process set fails its pending collectives
            plan = self._settle(proposal)
            contributions = proposal.contributions(plan.nbytes) if plan.fusion else []
            fusible = plan.fusion and self._fusion_threshold_bytes and not contributions
            fusion = (plan.fusion, proposal.silent) if fusible else None
            batch = filling.get(fusion)
            if batch is not None and batch.nbytes + plan.nbytes <= self._fusion_threshold_bytes:
                batch.proposals.append(proposal)
                batch.plans.append(plan)
                batch.nbytes += plan.nbytes
                continue
            batches.append(_Batch([proposal], [plan], plan.nbytes, contributions))
            if fusion is not None:
                filling[fusion] = batches[-1]
        self._collectives += len(self._queue)
        self._queue = []
        self._ordered_s = now
        return [self._order(batch.proposals, batch.plans, batch.contributions) for batch in batches]

    def _settle(self, proposal: Proposal) -> Plan:
        """Plan with the members' work, or with the error that they raise."""
        if proposal.error:
            return Plan(proposal.first, error=proposal.error, error_kind=proposal.error_kind)
        line = proposal.line
        if self.groups.get(proposal.process_set) is None:
            error = f"{proposal.title}: the process set was removed"
            return Plan(proposal.first, error=error, error_kind="UsageError")
        if line is not None and proposal.numbered == proposal.members and self._cache.touch(line):
            proposal.number = line.number
            return line.plan
        statements = proposal.statements()
        plan = settle(proposal.name, proposal.process_set, proposal.members, statements, self._hosts)
        if plan.error:
            return plan
        if proposal.kind in _UNCACHED:
            return self._change_groups(proposal, plan)
        if statements.ranks == proposal.members:
            proposal.number = self._cache.remember(proposal.key, statements, plan)
        return plan

    def _change_groups(self, proposal: Proposal, plan: Plan) -> Plan:
        """Make or remove a process set that the ranks have agreed on."""
        splits, error = plan.signature.splits, ""
        if proposal.kind == Kind.ADD_SET:
            proposal.value, error = self.groups.add(splits)
        elif proposal.kind == Kind.REMOVE_SET:
            proposal.value = splits[0] if splits else -1
            error = self.groups.remove(proposal.value)
        if error:
            error = f"{proposal.title}: {error}"
            return Plan(plan.signature, error=error, error_kind="UsageError")
        if proposal.kind == Kind.REMOVE_SET:
            self._cache.forget_set(proposal.value)
            for orphan in [p for p in self._proposals.values() if p.process_set == proposal.value]:
                self._fail(orphan, f"{orphan.title}: the process set was removed", "UsageError")
        return plan

    def _order(self, proposals: list[Proposal], plans: list[Plan], contributions: list[bytes]) -> Delivery:
        first, plan = proposals[0], plans[0]
        self._orders += 1
        if plan.error:
            # All members count refusals, joined ones too; but not if a member is missing, which would not count it.
            refused = bool(first.refused) and bool(first.members) and not first.missing
            order = Order(
                first.process_set, self._orders, first.kind, [first.name], [plan.signature],
                error=plan.error, error_kind=plan.error_kind, refused=refused,
            )  # fmt: skip
            return Delivery(first.members if refused else first.ready, order)
        order = Order(
            first.process_set,
            self._orders,
            first.kind,
            [proposal.name for proposal in proposals],
            [plan.signature for plan in plans],
            dims=[plan.dims] if plan.dims else [],
            splits=[plan.splits] if plan.splits else [],
            cached=[proposal.number for proposal in proposals],
            joined=list(first.silent),
            value=first.value,
            contributions=contributions,
            direct=self._grant(first) if contributions else 0,
        )
        self._last[first.process_set] = order
        return Delivery(first.members, order)

    def _grant(self, proposal: Proposal) -> int:
        """Number of the grant to execute this name on the peer lane from now on; 0 for none."""
        if proposal.number < 0 or proposal.silent or proposal.process_set != GLOBAL:
            return 0
        self._grants += 1
        return self._grants

    # -- queries ------------------------------------------------------------------------------------------------------

    def waiting(self) -> Iterator[Waiting]:
        """Collectives that some ranks are ready for and others are not, oldest first.

        A join always waits for the other ranks; its wait counts from the last order, after which no rank progressed.
        """
        for proposal in self._open():
            if ready := tuple(proposal.ready - proposal.refused):
                yield Waiting(
                    (*proposal.key, proposal.since_s),
                    proposal.title,
                    max(proposal.since_s, self._ordered_s) if proposal is self._join else proposal.since_s,
                    ready,
                    tuple(proposal.missing),
                )

    def awaited(self, key: Key) -> tuple[RankSet, RankSet]:
        """Ranks that are ready for a name, and the missing ranks; two empty sets if it is not pending."""
        proposal = self._proposals.get(key)
        return (NOBODY, NOBODY) if proposal is None else (proposal.ready, proposal.missing)

    def last(self, rank: int) -> str:
        """Last collective that ``rank`` was ordered to execute; "" for none."""
        orders = [self._last[process_set] for process_set in self.groups.of(rank) if process_set in self._last]
        if not orders:
            return ""
        latest = max(orders, key=lambda order: order.sequence)
        return title(latest.kind, latest.names[-1], latest.process_set)

    def statistics(self) -> dict[str, int]:
        """Counters since the start of the generation."""
        return {
            "collectives": self._collectives,
            "orders": self._orders,
            "pending": len(self._open()),
            "rejected": self.rejected.total(),
            **self._cache.statistics(),
        }
