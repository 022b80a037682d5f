"""Signatures the controller has seen before, by the number a rank may send instead of them.

    cache = SignatureCache(capacity=1024)
    cache.remember(key, statements, plan)     # -1: the first sighting only leaves a trace
    cache.remember(key, statements, plan)     # 0: from now on a rank may say 0 for its part of this

The second sighting earns the number, so names that come once cost no more than their line.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias, final

from farandole.runtime.coordination.agreement import Plan
from farandole.runtime.coordination.signatures_by_rank import SignaturesByRank

Key: TypeAlias = tuple[int, str]
"""Process set and name."""


@final
@dataclass(slots=True)
class CachedSignature:
    """Cache line: the signatures of all ranks under one name, and their plan; ``number`` is -1 until seen twice."""

    key: Key
    statements: SignaturesByRank
    plan: Plan
    number: int = -1


@final
class SignatureCache:
    """LRU cache of ``capacity`` lines. Numbers are never given twice, so a forgotten one cannot be mistaken."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._lines: dict[Key, CachedSignature] = {}  # oldest first
        self._numbered: dict[int, CachedSignature] = {}
        self._next_number = 0

    def find(self, number: int, key: Key) -> CachedSignature | None:
        """Line that this number stands for, unless it is forgotten or was never given for this ``key``."""
        line = self._numbered.get(number)
        return line if line is not None and line.key == key else None

    def touch(self, line: CachedSignature) -> bool:
        """Make ``line`` the last to be forgotten, as it was used; False if it is forgotten already."""
        if self._lines.get(line.key) is not line:
            return False
        del self._lines[line.key]
        self._lines[line.key] = line
        return True

    def remember(self, key: Key, statements: SignaturesByRank, plan: Plan) -> int:
        """Store the signatures of all ranks; returns the number that stands for them, -1 for none yet."""
        if self._capacity <= 0:
            return -1
        line = self._lines.pop(key, None)
        if line is None or line.statements != statements:
            if line is not None:
                self._numbered.pop(line.number, None)
            line = CachedSignature(key, statements, plan)
        elif line.number < 0:
            line.number = self._next_number
            self._next_number += 1
            self._numbered[line.number] = line
        self._lines[key] = line
        if len(self._lines) > self._capacity:
            oldest = self._lines.pop(next(iter(self._lines)))
            self._numbered.pop(oldest.number, None)
        return line.number

    def forget_set(self, process_set: int) -> None:
        """Forget all names of a process set that was removed."""
        for key in [key for key in self._lines if key[0] == process_set]:
            self._numbered.pop(self._lines.pop(key).number, None)

    def statistics(self) -> dict[str, int]:
        """Counters: lines held, and numbers ever given."""
        return {"cache_lines": len(self._lines), "cache_numbers": self._next_number}
