"""Gathering of parts of exchanges on their way up: one message for all ranks below; without any I/O.

    gathering = Gathering(downlink)
    gathering.submit("shm.0", (4, 5, 9), {4: b"..."}, now)
    gathering.submit("shm.0", (4, 5, 9), {5: b"..."}, now)       # now all of these ranks below
    gathering.pop_due(now)                                       # [GatheredParts("shm.0", ...)]

Like ``Combining`` for collectives, but a rank has only one part of each exchange.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias, final

from farandole.control.messages import GatheredParts
from farandole.runtime.coordination.downlink import Downlink
from farandole.runtime.coordination.process_groups import GLOBAL
from farandole.runtime.coordination.rank_set import RankSet
from farandole.runtime.relay.combining import HOLD_S

_Key: TypeAlias = tuple[str, tuple[int, ...]]


@final
@dataclass(slots=True)
class _Held:
    """Exchange on its way up: the ranks below whose parts are missing, and the parts not passed on yet."""

    missing: RankSet
    due_s: float
    parts: dict[int, bytes] = field(default_factory=dict)


@final
class Gathering:
    """Exchanges that a relay holds; ``downlink`` knows the ranks below."""

    def __init__(self, downlink: Downlink, hold_s: float = HOLD_S) -> None:
        self._downlink, self._hold_s = downlink, hold_s
        self._held: dict[_Key, _Held] = {}

    def begin(self) -> None:
        """Drop all exchanges: a generation begins or ends."""
        self._held = {}

    def accepts(self, ranks: Sequence[int]) -> bool:
        """True if an exchange among ``ranks`` is possible in this generation."""
        everybody = self._downlink.sets.get(GLOBAL, RankSet())
        return bool(ranks) and min(ranks) >= 0 and max(ranks) <= everybody.last()

    def submit(self, key: str, ranks: tuple[int, ...], parts: Mapping[int, bytes], now: float) -> None:
        """Record ``parts``, by rank, of an exchange among ``ranks``."""
        held = self._held.get((key, ranks))
        if held is None:
            held = _Held(RankSet.of(ranks) & self._downlink.ranks, now + self._hold_s)
            self._held[key, ranks] = held
        elif not held.parts:
            held.due_s = now + self._hold_s
        held.parts.update(parts)
        held.missing -= RankSet.of(parts)

    @property
    def deadline_s(self) -> float | None:
        """Time at which ``pop_due`` has incomplete exchanges to pass on."""
        return min((held.due_s for held in self._held.values() if held.parts), default=None)

    def pop_due(self, now: float) -> list[GatheredParts]:
        """Remove and return the parts to pass on now."""
        taken: list[GatheredParts] = []
        for (key, ranks), held in list(self._held.items()):
            if held.parts and (not held.missing or held.due_s <= now):
                taken.append(GatheredParts(self._downlink.generation, key, list(ranks), list(held.parts.items())))
                held.parts = {}
            if not held.missing:
                del self._held[key, ranks]
        return taken
