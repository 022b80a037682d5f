"""Test bench of the engine contract: buffers with guards, fresh engines, findings."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeAlias, final

import numpy as np
import numpy.typing as npt

from farandole.collective import Array, DType, Kind, ReduceOp, Reduction
from farandole.engines.engine import Engine, Group, Memory, Rendezvous
from farandole.testing import reference
from farandole.testing.rank import RankContext
from farandole.testing.reference import Values

Create: TypeAlias = Callable[[Group, Rendezvous], Engine]

MEMORY_BYTES = 12 * 2**20
_GUARD_BYTES = 64
_GUARD = 0xA5


@final
@dataclass(frozen=True, slots=True)
class Buffer:
    """An array for an engine, the same memory for NumPy, and the bytes around it that must not change."""

    array: Array
    values: Values
    before: npt.NDArray[np.uint8]
    after: npt.NDArray[np.uint8]

    def intact(self) -> bool:
        """False if something was written outside the array."""
        return bool((self.before == _GUARD).all() and (self.after == _GUARD).all())


@final
@dataclass(slots=True)
class Bench:
    """One engine under test and the findings so far.

    Findings are collected instead of raised, so that ranks that disagree about a result stay at the same call.
    """

    create: Create
    member: RankContext
    engine: Engine
    memory: Memory
    findings: list[str] = field(default_factory=list)
    _engines: int = 0

    @property
    def rank(self) -> int:
        """Rank of this member."""
        return self.member.rank

    @property
    def size(self) -> int:
        """Number of members."""
        return self.member.size

    def expect(self, true: bool, text: str) -> None:
        """Note ``text`` unless ``true``."""
        if not true:
            self.findings.append(text)

    def buffer(self, values: Values, dtype: DType, inside: bool = False, shift: int | None = None) -> Buffer:
        """Memory holding ``values``, ``shift`` elements (default: the rank) beyond a 64-byte boundary.

        ``inside`` puts it at the start of the engine's own memory, which has room for one buffer at a time.
        """
        skip = _GUARD_BYTES + (self.rank if shift is None else shift) * dtype.itemsize
        if inside:
            room = reference.view(self.memory.array(DType.UINT8))
        else:
            plain = np.empty(values.nbytes + skip + 2 * _GUARD_BYTES, np.uint8)
            room = plain[-plain.ctypes.data % _GUARD_BYTES :]
        body = room[skip : skip + values.nbytes]
        before, after = room[skip - _GUARD_BYTES : skip], room[skip + values.nbytes :][:_GUARD_BYTES]
        before[:], after[:] = _GUARD, _GUARD
        view = body.view(values.dtype)
        view[:] = values
        address = room.ctypes.data + skip
        return Buffer(Array(address, values.size, dtype, self.memory.owner if inside else room), view, before, after)

    @contextmanager
    def fresh(self, ranks: tuple[int, ...] | None = None, deadline_s: float = 20.0) -> Iterator[Engine]:
        """Another engine among ``ranks``, closed at the end; all of ``ranks`` must make the same number of engines."""
        self._engines += 1
        members = tuple(range(self.size)) if ranks is None else ranks
        label = f"fresh-{'.'.join(map(str, members))}-{self._engines}"
        group = self.member.group(label, members, deadline_s)
        engine = self.create(group, self.member.exchange_among(label, members))
        try:
            yield engine
        finally:
            engine.close()

    def allreduce(
        self, dtype: DType, op: ReduceOp, count: int, scales: tuple[float, float] = (1.0, 1.0), seed: int = 0,
        inside: bool = False, whole_range: bool = False,
    ) -> Values:  # fmt: skip
        """All-reduce samples (or integers of the whole range), compare with the reference, and return the result."""
        make = reference.sample_range if whole_range else reference.sample
        said = [make(dtype, count, seed * 64 + r) for r in range(self.size)]
        buffer = self.buffer(said[self.rank], dtype, inside)
        self.engine.allreduce(buffer.array, Reduction(op, *scales))
        where = "engine memory" if inside else "ordinary memory"
        text = f"allreduce {op.label} of {count} {dtype.label} in {where}, scales {scales}"
        expected = reference.reduce(dtype, op, said, *scales)
        self.compare(text, dtype, buffer, expected, self._slack(dtype, op, said, scales))
        return buffer.values.copy()

    def compare(self, text: str, dtype: DType, buffer: Buffer, expected: Values, slack: Values | float = 0.0) -> None:
        """Note differences from ``expected``, and writes outside the array."""
        self.expect(buffer.intact(), f"{text}: wrote outside the array")
        if not reference.same(dtype, buffer.values, expected, slack):
            found, wanted = reference.decode(dtype, buffer.values), reference.decode(dtype, expected)
            wrong = np.flatnonzero(~np.isclose(found, wanted, rtol=1e-3))
            at = int(wrong[0]) if wrong.size else 0
            self.findings.append(
                f"{text}: {wrong.size} of {found.size} far off; at {at} found {found[at]}, expected {wanted[at]}"
            )

    def allgather(self, dtype: DType, counts: Sequence[int], seed: int = 0) -> None:
        """All-gather ``counts[i]`` samples from each member."""
        said = [reference.sample(dtype, c, seed * 64 + r) for r, c in enumerate(counts)]
        expected = np.concatenate(said)
        send = self.buffer(said[self.rank], dtype)
        recv = self.buffer(np.zeros_like(expected), dtype, shift=3)
        self.engine.allgather(send.array, recv.array, counts)
        self._moved(Kind.ALLGATHER, dtype, counts, send, said[self.rank], recv, expected)

    def broadcast(self, dtype: DType, count: int, root: int, seed: int = 0, inside: bool = False) -> None:
        """Broadcast ``count`` samples of ``root``."""
        said = [reference.sample(dtype, count, seed * 64 + r) for r in range(self.size)]
        buffer = self.buffer(said[self.rank], dtype, inside)
        self.engine.broadcast(buffer.array, root)
        text = f"broadcast of {count} {dtype.label} from {root}"
        self.expect(np.array_equal(buffer.values.view(np.uint8), said[root].view(np.uint8)), f"{text}: wrong bytes")
        self.expect(buffer.intact(), f"{text}: wrote outside the array")

    def alltoall(self, dtype: DType, matrix: Sequence[Sequence[int]], seed: int = 0) -> None:
        """Send ``matrix[i][j]`` samples from member ``i`` to member ``j``."""
        said = [reference.sample(dtype, sum(row), seed * 64 + r) for r, row in enumerate(matrix)]
        pieces = [np.split(values, np.cumsum(row)[:-1])[self.rank] for values, row in zip(said, matrix, strict=True)]
        expected = np.concatenate(pieces)
        send = self.buffer(said[self.rank], dtype)
        recv = self.buffer(np.zeros_like(expected), dtype, shift=2)
        received = [row[self.rank] for row in matrix]
        self.engine.alltoall(send.array, matrix[self.rank], recv.array, received)
        self._moved(Kind.ALLTOALL, dtype, matrix, send, said[self.rank], recv, expected)

    def reducescatter(
        self, dtype: DType, op: ReduceOp, counts: Sequence[int], scales: tuple[float, float] = (1.0, 1.0), seed: int = 0
    ) -> None:
        """Reduce samples and keep ``counts[rank]`` of them."""
        said = [reference.sample(dtype, sum(counts), seed * 64 + r) for r in range(self.size)]
        total = reference.reduce(dtype, op, said, *scales)
        send = self.buffer(said[self.rank], dtype)
        recv = self.buffer(np.zeros(counts[self.rank], total.dtype), dtype, shift=1)
        self.engine.reducescatter(send.array, recv.array, counts, Reduction(op, *scales))
        text = f"reducescatter {op.label} of {list(counts)} {dtype.label}, scales {scales}"
        mine = slice(sum(counts[: self.rank]), sum(counts[: self.rank + 1]))
        self.compare(text, dtype, recv, total[mine], self._slack(dtype, op, [s[mine] for s in said], scales))
        self.expect(np.array_equal(_bytes(send.values), _bytes(said[self.rank])), f"{text}: changed what was sent")

    def _slack(self, dtype: DType, op: ReduceOp, said: Sequence[Values], scales: tuple[float, float]) -> Values | float:
        """Tolerance of a comparison: between hosts, partial results may be sent in the dtype of the array."""
        several = len(set(self.engine.group.hosts)) > 1
        return reference.partial_rounding(dtype, op, said, *scales) if several else 0.0

    def _moved(
        self, kind: Kind, dtype: DType, counts: object, send: Buffer, said: Values, recv: Buffer, expected: Values
    ) -> None:
        text = f"{kind.label} of {counts} {dtype.label}"
        self.expect(np.array_equal(_bytes(recv.values), _bytes(expected)), f"{text}: wrong bytes")
        self.expect(np.array_equal(_bytes(send.values), _bytes(said)), f"{text}: changed what was sent")
        self.expect(send.intact() and recv.intact(), f"{text}: wrote outside the arrays")


def _bytes(values: Values) -> npt.NDArray[np.uint8]:
    return np.ascontiguousarray(values).view(np.uint8)
