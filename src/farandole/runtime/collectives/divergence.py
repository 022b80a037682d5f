"""Detection of ranks that step with different numbers, for any cause.

    snapshot = StepDigests(7, ("fc.weight", "gradient of fc.weight"), [0x1f, 0x83], kind="Xeon, 4 threads")
    lane.meet("step 8", "ready", snapshot)      # a DivergenceError on every member unless all have the same

The mark of a snapshot, eight characters, is sent in a meeting that takes place anyway. Only if marks differ, the
members gather the digests, and all members find the same first difference.

Bits are compared, not values: reduced gradients have the same bits on every member, and so has everything computed from
them on the same kind of processor. Between kinds (another processor, another number of threads) the rounding of a norm
may differ; this causes one warning, and from then on only members of the same kind are compared.
"""

from __future__ import annotations

import hashlib
import struct
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple, TypeAlias, final

from farandole.errors import DivergenceError

Gather: TypeAlias = Callable[[bytes], list[bytes]]
"""An all-gather of up to 64 bytes: ``Engine.gather_small``."""

OF_GRADIENT = "gradient of "
"""Prefix of the name of a gradient, before the name of its parameter."""

_ROWS = struct.Struct("<8Q")
_LONGEST_NAME = 60


@final
@dataclass(frozen=True)
class StepDigests:
    """Digests of the tensors with which a rank takes ``step``, by name; ``kind``: kind of its processor."""

    step: int
    names: tuple[str, ...]
    digests: Sequence[int]
    kind: str

    @cached_property
    def mark(self) -> str:
        """The digest of all digests and of the order of the names."""
        packed = struct.pack(f"<{len(self.digests)}Q", *self.digests)
        return hashlib.blake2b(packed, digest_size=4, key=_key(self.names)).hexdigest()


class _Difference(NamedTuple):
    """The tensor in ``row`` is not the same on the members ``one`` and ``other``."""

    row: int
    one: int
    other: int


@final
class Broadcasts:
    """Numbers of broadcasts that this process has begun, by process set.

    No lock: it only matters whether there was any broadcast, and numbers only grow, even if two threads count at once.
    """

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()

    def begin(self, process_set: int) -> None:
        """Count one broadcast."""
        self._counts[process_set] += 1

    def over(self, process_set: int) -> int:
        """Number of broadcasts that included all ranks of the set: it changes on all of these ranks."""
        return self._counts[0] + self._counts[process_set]


broadcasts = Broadcasts()


@final
class Comparison:
    """Comparison of the members' snapshots in the meetings of one lane; ``titles``: names of members in errors."""

    def __init__(self, label: str, titles: Sequence[str]) -> None:
        self._label, self._titles = label, titles
        self._kinds: Sequence[str] = [""] * len(titles)  # all equal, until ``explain`` gathers them

    def is_suspect(self, marks: Sequence[str]) -> bool:
        """True if members of one kind have sent different ``marks``; "" means no mark. The same on all members."""
        said: dict[str, str] = {}
        return any(said.setdefault(kind, mark) != mark for kind, mark in zip(self._kinds, marks, strict=True) if mark)

    def explain(self, gather: Gather, snapshot: StepDigests | None) -> None:
        """Raise ``DivergenceError`` on every member if two members of one kind differ, or warn that two kinds do.

        Collective; a member without a snapshot (it has joined) takes part nevertheless.
        """
        mine = b"" if snapshot is None else f"{len(snapshot.digests)} {_short(snapshot.kind)}".encode()
        said = [answer.decode().partition(" ")[::2] for answer in gather(mine)]
        self._kinds = [kind for _, kind in said]
        found = self._find(gather, snapshot, [int(count or 0) for count, _ in said])
        if found is not None:
            names = gather(b"" if snapshot is None else _shortened(snapshot.names, found.row).encode())
            raise DivergenceError(self._describe(found, [name.decode(errors="replace") for name in names], snapshot))
        if snapshot is not None:
            self._warn(snapshot)

    def _find(self, gather: Gather, snapshot: StepDigests | None, counts: Sequence[int]) -> _Difference | None:
        """The first difference between members of one kind."""
        rows = [] if snapshot is None else _rows(snapshot)
        width = _ROWS.size // 8
        for start in range(0, max(counts), width):
            block = [*rows[start : start + width], *[0] * width][:width]
            answers = gather(_ROWS.pack(*block))
            blocks = [_ROWS.unpack(answer.ljust(_ROWS.size, b"\0")) for answer in answers]
            for row in range(width):
                for one, other in self._pairs(counts):
                    if blocks[one][row] != blocks[other][row]:
                        return _Difference(start + row, one, other)
        return None

    def _pairs(self, counts: Sequence[int]) -> Iterator[tuple[int, int]]:
        """Each member that has a snapshot, with the first member of its kind."""
        first: dict[str, int] = {}
        for member, (kind, count) in enumerate(zip(self._kinds, counts, strict=True)):
            if count and first.setdefault(kind, member) != member:
                yield first[kind], member

    def _describe(self, found: _Difference, names: Sequence[str], snapshot: StepDigests | None) -> str:
        one, other = names[found.one], names[found.other]
        who = f"{self._titles[found.one]} and {self._titles[found.other]} do not step with the same numbers"
        at = "" if snapshot is None else f" at step {snapshot.step}"
        if one != other:
            return (
                f"{who}: {self._label}{at} has {one!r} on the first where it has {other!r} on the other. Give the "
                "optimizer the same parameters in the same order on every rank"
            )
        if at == " at step 0" and not one.startswith(OF_GRADIENT):
            return (
                f"{who}: {one!r} differs before the first step ({self._label}). Call "
                "broadcast_parameters(model.state_dict(), root_rank=0), or broadcast_variables(variables, 0), "
                "before the second step; after a join(), from the rank it returned, as ranks that join early miss the "
                "steps of the others"
            )
        return (
            f"{who}: {one!r} differs{at} ({self._label}). Something has changed it on one rank alone, as a random "
            "number, a file or a branch of the script can do. Run with --check-divergence every-step to find the first "
            "such step, or with off to go on regardless"
        )

    def _warn(self, snapshot: StepDigests) -> None:
        kinds = ", ".join(dict.fromkeys(self._titles[self._kinds.index(kind)] for kind in self._kinds if kind))
        warnings.warn(
            f"{self._label} at step {snapshot.step}: the numbers of {kinds} differ, and so do their processors or "
            "numbers of threads: rounding may explain that. From now on only ranks of one kind are compared",
            RuntimeWarning,
            stacklevel=2,
        )


@lru_cache(maxsize=64)
def _key(names: tuple[str, ...]) -> bytes:
    return hashlib.blake2b("\n".join(names).encode(errors="replace"), digest_size=16).digest()


def _rows(snapshot: StepDigests) -> list[int]:
    """A number for each tensor, computed from its name and its digest; never 0."""
    titles = (f"{name} {digest}" for name, digest in zip(snapshot.names, snapshot.digests, strict=True))
    return [int(_short(title), 16) | 1 for title in titles]


def _short(text: str) -> str:
    return hashlib.blake2b(text.encode(errors="replace"), digest_size=8).hexdigest()


def _shortened(names: Sequence[str], row: int) -> str:
    """The end of a name, which is more specific than its beginning; "nothing" for a row beyond the last."""
    name = names[row] if row < len(names) else "nothing"
    encoded = name.encode(errors="replace")
    return encoded[-_LONGEST_NAME:].decode(errors="ignore")
