"""Signatures that ranks submitted under one name: each signature once, with all its ranks.

    >>> three, four = Signature(1, [8], [[3]]), Signature(1, [8], [[4]])
    >>> said = SignaturesByRank.of({0: three, 1: four, 2: three})
    >>> [(signature.shapes, list(ranks)) for signature, ranks in said]
    [([[3]], [0, 2]), ([[4]], [1])]

Ranks mostly submit the same signature, so the work on signatures takes no longer for many ranks than for two.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import final

import msgspec

from farandole.control.messages import Signature
from farandole.runtime.coordination.rank_set import NOBODY, RankSet


@final
class SignaturesByRank:
    """Signatures with their ranks, in the order in which each was first submitted."""

    __slots__ = ("_said", "ranks")

    def __init__(self) -> None:
        self.ranks = NOBODY
        """All ranks that have submitted."""
        self._said: dict[bytes, tuple[Signature, RankSet]] = {}

    @classmethod
    def of(cls, by_rank: Mapping[int, Signature]) -> SignaturesByRank:
        """Build it from the signature of each rank."""
        statements = cls()
        for rank, signature in by_rank.items():
            statements.add(RankSet.only(rank), signature)
        return statements

    def add(self, ranks: RankSet, signature: Signature) -> None:
        """Add ranks that submitted ``signature``; none of them may have submitted before."""
        key = msgspec.msgpack.encode(signature)
        known, before = self._said.get(key, (signature, NOBODY))
        self._said[key] = known, before | ranks
        self.ranks |= ranks

    def update(self, others: SignaturesByRank, ranks: RankSet) -> None:
        """Add the signatures of ``ranks`` in ``others``."""
        for signature, whose in others:
            if both := whose & ranks:
                self.add(both, signature)

    @property
    def first(self) -> Signature:
        """Signature that was submitted first; there must be one."""
        return next(iter(self))[0]

    def by_rank(self) -> dict[int, Signature]:
        """Signature of each rank, in ascending order of the ranks."""
        return dict(sorted((rank, signature) for signature, ranks in self for rank in ranks))

    def __iter__(self) -> Iterator[tuple[Signature, RankSet]]:
        return iter(self._said.values())

    def __len__(self) -> int:
        return len(self._said)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SignaturesByRank) and self._said == other._said

    __hash__ = None  # type: ignore[assignment]
