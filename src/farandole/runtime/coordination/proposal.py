"""Pending collective, from its first submission until its order.

    everybody = RankSet.span(0, 2)
    proposal = Proposal(0, "loss", members=everybody, missing=everybody, since_s=now)
    proposal.enter(RankSet.of([0]), signature, line=None)
    proposal.missing                                     # RankSet(1)

``Negotiation`` holds the proposals and makes all decisions.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import final

from farandole.control.messages import Signature
from farandole.runtime.coordination.agreement import SignaturesByRank, title
from farandole.runtime.coordination.cache import CachedSignature, Key
from farandole.runtime.coordination.rank_set import NOBODY, RankSet


@final
@dataclass(slots=True)
class Proposal:
    """Pending collective: the ready ranks, their signatures, the ``missing`` ranks, and the time of first submission.

    ``line`` is the cache line that the first ranks submitted by number, ``numbered`` are all that did so, ``said``
    has the signatures of the others, ``refused`` are ranks that cannot take part and do not wait; ``given`` are
    contributions, ``latest`` the ranks of the last submission. ``error``, ``number`` and ``value`` go into the order.
    """

    process_set: int
    name: str
    members: RankSet
    missing: RankSet
    since_s: float
    line: CachedSignature | None = None
    numbered: RankSet = NOBODY
    said: SignaturesByRank = field(default_factory=SignaturesByRank)
    refused: RankSet = NOBODY
    given: dict[int, bytes] = field(default_factory=dict)
    latest: RankSet = NOBODY
    error: str = ""
    error_kind: str = ""
    number: int = -1
    value: int = -1

    @property
    def key(self) -> Key:
        """Process set and name, unique among open proposals."""
        return self.process_set, self.name

    @property
    def first(self) -> Signature:
        """Signature of the first submission."""
        return self.line.plan.signature if self.line is not None else self.said.first

    @property
    def kind(self) -> int:
        """Kind of the first submission."""
        return self.first.kind

    @property
    def title(self) -> str:
        """Name in texts: verb, name and process set."""
        return title(self.kind, self.name, self.process_set)

    @property
    def ready(self) -> RankSet:
        """Ranks that have submitted."""
        return self.numbered | self.said.ranks

    @property
    def silent(self) -> RankSet:
        """Members that have not submitted; once no rank is missing, these are the joined ranks."""
        return self.members - self.numbered - self.said.ranks

    def enter(
        self, ranks: RankSet, signature: Signature, line: CachedSignature | None, contribution: bytes = b""
    ) -> None:
        """Add ranks that submitted ``signature`` or, by number, their signatures in ``line``.

        A single rank may send its ``contribution`` along.
        """
        if line is None:
            self.said.add(ranks, signature)
        elif line is self.line:
            self.numbered |= ranks
        else:
            self.said.update(line.statements, ranks)
        if contribution:
            self.given[ranks.last()] = contribution
        if signature.refusal:
            self.refused |= ranks
        self.missing -= ranks
        self.latest = ranks

    def contributions(self, nbytes: int) -> list[bytes]:
        """Contributions in member order (``b""`` for joined ranks); ``[]`` unless every ready rank sent ``nbytes``."""
        given = self.given
        if not given or len(given) != len(self.ready) or any(len(part) != nbytes for part in given.values()):
            return []
        return [given.get(rank, b"") for rank in self.members]

    def statements(self) -> SignaturesByRank:
        """Signatures of all ranks, also of those that submitted a number."""
        if self.line is None:
            return self.said
        statements = SignaturesByRank()
        statements.update(self.line.statements, self.numbered)
        statements.update(self.said, self.said.ranks)
        return statements

    def crosses(self, other: Proposal, among: RankSet) -> bool:
        """True if, ``among`` these, a rank ready for one of the two is missing in the other, and vice versa."""
        here, there = self.ready & among, other.ready & among
        return not self.missing.isdisjoint(there) and not other.missing.isdisjoint(here)
