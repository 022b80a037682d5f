"""Cache of signatures, by the number that a rank may send instead of its signature.

    cache = SignatureCache(capacity=1024)
    cache.remember(key, statements, plan)     # -1: the first time only adds a cache line
    cache.remember(key, statements, plan)     # 0: from now on a rank may send 0 instead of its signature

A signature gets a number the second time, so a name that is used once costs only a cache line.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias, final

from farandole.runtime.coordination.agreement import Plan, SignaturesByRank

Key: TypeAlias = tuple[int, str]
"""Process set and name."""


@final
@dataclass(slots=True)
class CachedSignature:
    """Cache line: the signatures of all ranks under one name, and their plan; ``number`` is -1 after the first use."""

    key: Key
    statements: SignaturesByRank
    plan: Plan
    number: int = -1


@final
class SignatureCache:
    """LRU cache of ``capacity`` lines. Numbers are never reused, so the number of an evicted line stays invalid."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._lines: dict[Key, CachedSignature] = {}  # oldest first
        self._numbered: dict[int, CachedSignature] = {}
        self._next_number = 0

    def find(self, number: int, key: Key) -> CachedSignature | None:
        """Line with this number; ``None`` if it was evicted or the number was never assigned for this ``key``."""
        line = self._numbered.get(number)
        return line if line is not None and line.key == key else None

    def touch(self, line: CachedSignature) -> bool:
        """Mark ``line`` as most recently used; False if it was evicted."""
        if self._lines.get(line.key) is not line:
            return False
        del self._lines[line.key]
        self._lines[line.key] = line
        return True

    def remember(self, key: Key, statements: SignaturesByRank, plan: Plan) -> int:
        """Store the signatures of all ranks; returns their number, -1 for none yet."""
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
        """Counters: lines held, and numbers assigned so far."""
        return {"cache_lines": len(self._lines), "cache_numbers": self._next_number}
