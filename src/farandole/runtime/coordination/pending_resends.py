"""Pending resends: names that ranks must submit again in full, and joins that wait for that; without any I/O.

    pending = PendingResends()
    pending.expect(RankSet.of([1]), key)          # a Resend is on its way to rank 1
    pending.hold(RankSet.of([0, 1]), join)        # RankSet(1): its join has overtaken the second submission
    pending.said(RankSet.of([1]), key)
    pending.free()                                # [(RankSet(1), join)]

A rank may join as soon as it has announced everything. After announcing a name by a number that the controller has
dropped, it submits the name again behind its join; in order of arrival that would be refused, or count as a later call.
"""

from __future__ import annotations

from typing import final

from farandole.control.messages import Entry
from farandole.runtime.coordination.cache import Key
from farandole.runtime.coordination.rank_set import NOBODY, RankSet


@final
class PendingResends:
    """Pending resends of one generation. A rank answers every ``Resend``, or its generation ends."""

    def __init__(self) -> None:
        self._names: dict[Key, RankSet] = {}
        self._joins: list[tuple[RankSet, Entry]] = []

    def expect(self, ranks: RankSet, key: Key) -> None:
        """Record that a ``Resend`` for ``key`` is sent to ``ranks``."""
        self._names[key] = self._names.get(key, NOBODY) | ranks

    def said(self, ranks: RankSet, key: Key) -> None:
        """Record that ``ranks`` have submitted ``key`` in full."""
        if key in self._names:
            self._names[key] -= ranks
            if not self._names[key]:
                del self._names[key]

    def hold(self, ranks: RankSet, join: Entry) -> RankSet:
        """Hold back the ``join`` of ranks with pending resends; returns these ranks."""
        late = NOBODY
        for each in self._names.values():
            late |= ranks & each
        if late:
            self._joins.append((late, join))
        return late

    def free(self) -> list[tuple[RankSet, Entry]]:
        """Remove and return the joins without pending resends, each with its ranks."""
        if not self._joins:
            return []
        joins, self._joins = self._joins, []
        return [(left, join) for ranks, join in joins if (left := ranks - self.hold(ranks, join))]

    def drop(self, rank: int) -> None:
        """Forget ``rank``, which has left."""
        gone = RankSet.only(rank)
        for key in list(self._names):
            self.said(gone, key)
        self._joins = [(left, join) for ranks, join in self._joins if (left := ranks - gone)]
