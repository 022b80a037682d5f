"""Overdue submissions: names that ranks must submit again in full, and joins that wait for that; without any I/O.

    pending = PendingResends()
    pending.expect(RankSet.of([1]), key)          # a Resend is on its way to rank 1
    pending.hold(RankSet.of([0, 1]), join)        # RankSet(1): its join has overtaken what it says again
    overdue.said(RankSet.of([1]), key)
    overdue.free()                                # [(RankSet(1), join)]

A rank may join as soon as it has announced everything. If it has named something by a number that is forgotten, it says
that again behind its join. Counted as it comes, that would be refused, or taken for what it does after the join.
"""

from __future__ import annotations

from typing import final

from farandole.control.messages import Entry
from farandole.runtime.coordination.cache import Key
from farandole.runtime.coordination.rank_set import NOBODY, RankSet


@final
class PendingResends:
    """Overdue submissions of one generation. A rank answers every ``Resend``, or its generation ends."""

    def __init__(self) -> None:
        self._names: dict[Key, RankSet] = {}
        self._joins: list[tuple[RankSet, Entry]] = []

    def expect(self, ranks: RankSet, key: Key) -> None:
        """Note that ``ranks`` are sent a ``Resend`` for ``key``."""
        self._names[key] = self._names.get(key, NOBODY) | ranks

    def said(self, ranks: RankSet, key: Key) -> None:
        """Note that ``ranks`` have submitted ``key`` in full."""
        if key in self._names:
            self._names[key] -= ranks
            if not self._names[key]:
                del self._names[key]

    def hold(self, ranks: RankSet, join: Entry) -> RankSet:
        """Keep the ``join`` of ranks with overdue names back; returns those ranks."""
        late = NOBODY
        for each in self._names.values():
            late |= ranks & each
        if late:
            self._joins.append((late, join))
        return late

    def free(self) -> list[tuple[RankSet, Entry]]:
        """Remove and return the joins that need not wait any more, each with the ranks that need not."""
        if not self._joins:
            return []
        joins, self._joins = self._joins, []
        return [(left, join) for ranks, join in joins if (left := ranks - self.hold(ranks, join))]

    def drop(self, rank: int) -> None:
        """Forget ``rank``, which takes part in nothing any more."""
        gone = RankSet.only(rank)
        for key in list(self._names):
            self.said(gone, key)
        self._joins = [(left, join) for ranks, join in self._joins if (left := ranks - gone)]
