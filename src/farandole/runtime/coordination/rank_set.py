"""Sets of ranks with one bit per rank: a union costs a microsecond, for two ranks as for 27,360.

>>> ready = RankSet.of([0, 1, 2, 6])
>>> ready | RankSet.span(3, 6), list(ready - RankSet.of([0, 2])), 6 in ready, len(ready)
(RankSet(0-6), [1, 6], True, 4)
>>> ready.spans(), RankSet.of_spans([0, 3, 6, 7], size=8) == ready
([0, 3, 6, 7], True)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import final


@final
class RankSet:
    """Immutable set of ranks; iterates in ascending order."""

    __slots__ = ("_bits",)

    def __init__(self, bits: int = 0) -> None:
        self._bits = bits

    @classmethod
    def of(cls, ranks: Iterable[int]) -> RankSet:
        """Set of these ranks; none may be negative."""
        bits = 0
        for rank in ranks:
            bits |= 1 << rank
        return cls(bits)

    @classmethod
    def only(cls, rank: int) -> RankSet:
        """Set of one rank, which may not be negative."""
        return cls(1 << rank)

    @classmethod
    def span(cls, first: int, stop: int) -> RankSet:
        """Ranks of ``range(first, stop)``."""
        return cls((1 << max(stop, first)) - (1 << first))

    @classmethod
    def of_spans(cls, spans: Sequence[int], size: int) -> RankSet:
        """Inverse of ``spans``; the empty set if the list is invalid in a job of this size."""
        bits, end = 0, 0
        for first, stop in zip(spans[::2], spans[1::2], strict=False):
            if not end <= first < stop <= size:
                return cls()
            bits |= (1 << stop) - (1 << first)
            end = stop
        return cls(bits)

    def spans(self) -> list[int]:
        """Half-open ranges, flattened: first rank and end of each run of ranks."""
        spans: list[int] = []
        if not self._bits:
            return spans
        digits = bin(self._bits)[:1:-1]
        first = digits.find("1")
        while first >= 0:
            stop = digits.find("0", first)
            stop = len(digits) if stop < 0 else stop
            spans += (first, stop)
            first = digits.find("1", stop)
        return spans

    def last(self) -> int:
        """Highest rank; -1 of the empty set."""
        return self._bits.bit_length() - 1

    def isdisjoint(self, other: RankSet) -> bool:
        """True if no rank is in both."""
        return not self._bits & other._bits

    def __contains__(self, rank: object) -> bool:
        return isinstance(rank, int) and rank >= 0 and bool(self._bits >> rank & 1)

    def __iter__(self) -> Iterator[int]:
        spans = self.spans()
        return chain.from_iterable(map(range, spans[::2], spans[1::2]))

    def __len__(self) -> int:
        return self._bits.bit_count()

    def __bool__(self) -> bool:
        return self._bits != 0

    def __or__(self, other: RankSet) -> RankSet:
        return RankSet(self._bits | other._bits)

    def __and__(self, other: RankSet) -> RankSet:
        return RankSet(self._bits & other._bits)

    def __sub__(self, other: RankSet) -> RankSet:
        return RankSet(self._bits & ~other._bits)

    def __le__(self, other: RankSet) -> bool:
        return not self._bits & ~other._bits

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RankSet) and self._bits == other._bits

    def __hash__(self) -> int:
        return hash(self._bits)

    def __repr__(self) -> str:
        spans = self.spans()
        runs = (str(a) if a + 1 == b else f"{a}-{b - 1}" for a, b in zip(spans[::2], spans[1::2], strict=True))
        return f"RankSet({', '.join(runs)})"


NOBODY = RankSet()


def alike(sets: Sequence[RankSet]) -> list[tuple[RankSet, list[int]]]:
    """Partition the ranks by their sets: groups of ranks that are in the same sets, with the indices of these sets.

    >>> alike([RankSet.span(0, 4), RankSet.span(2, 4)])
    [(RankSet(0-1), [0]), (RankSet(2-3), [0, 1])]
    """
    groups: list[tuple[RankSet, list[int]]] = []
    for i, own in enumerate(sets):
        rest = own
        split: list[tuple[RankSet, list[int]]] = []
        for ranks, which in groups:
            both = ranks & rest
            if not both:
                split.append((ranks, which))
                continue
            rest -= both
            if ranks != both:
                split.append((ranks - both, list(which)))
            which.append(i)
            split.append((both, which))
        groups = [*split, (rest, [i])] if rest else split
    return groups
