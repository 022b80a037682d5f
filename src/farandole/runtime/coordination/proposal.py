"""A collective on its way from the first rank that is ready for it to its order.

    everybody = RankSet.span(0, 2)
    proposal = Proposal(0, "loss", members=everybody, missing=everybody, since_s=now)
    proposal.enter(RankSet.of([0]), signature, line=None)
    proposal.missing                                     # RankSet(1)

``Negotiation`` keeps them; nothing here decides.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import final

from farandole.control.messages import Signature
from farandole.runtime.coordination.agreement import title
from farandole.runtime.coordination.cache import CachedSignature, Key
from farandole.runtime.coordination.rank_set import NOBODY, RankSet
from farandole.runtime.coordination.signatures_by_rank import SignaturesByRank


@final
@dataclass(slots=True)
class Proposal:
    """Pending collective: the ranks that are ready, what they said, and the ``missing`` ones, since when.

    ``line`` is the cache line that the first ranks named by number, ``numbered`` all that named that one, ``said`` what
    the others said, and ``refused`` the ranks that cannot do it and do not wait; ``given`` is what ranks sent along;
    ``latest`` are the ranks that came last. ``error``, ``number`` and ``value`` are those of the order to come.
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
        """Process set and name, which no other open proposal shares."""
        return self.process_set, self.name

    @property
    def first(self) -> Signature:
        """Signature that the first ranks meant."""
        return self.line.plan.signature if self.line is not None else self.said.first

    @property
    def kind(self) -> int:
        """Kind, as the first ranks gave it."""
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
        """The members that have said nothing; once nobody is missing, these are the ones that joined."""
        return self.members - self.numbered - self.said.ranks

    def enter(
        self, ranks: RankSet, signature: Signature, line: CachedSignature | None, contribution: bytes = b""
    ) -> None:
        """Take in ranks that mean ``signature`` or, if they gave a number, what its ``line`` has of them.

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
        """Contributions in the order of the members (``b""`` if joined); ``[]`` unless all others sent ``nbytes``."""
        given = self.given
        if not given or len(given) != len(self.ready) or any(len(part) != nbytes for part in given.values()):
            return []
        return [given.get(rank, b"") for rank in self.members]

    def statements(self) -> SignaturesByRank:
        """Signatures of all ranks, also of those that gave a number."""
        if self.line is None:
            return self.said
        statements = SignaturesByRank()
        statements.update(self.line.statements, self.numbered)
        statements.update(self.said, self.said.ranks)
        return statements

    def crosses(self, other: Proposal, among: RankSet) -> bool:
        """True if a rank that is ready here is missing there, and the other way round, ``among`` these."""
        here, there = self.ready & among, other.ready & among
        return not self.missing.isdisjoint(there) and not other.missing.isdisjoint(here)
