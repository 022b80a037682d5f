"""Execution of the controller's orders on the engine of a process set.

    outcomes = Executor(engine, ranks=(0, 1)).perform(order, [calls])

The order describes the collective that all members agreed on; the calls are this rank's tensors, or ``None`` for a
name that it never submitted because it has joined.

Reduction of many small arrays as one, through a buffer in engine memory.

    fusion = Fusion(engine, PhaseEvents())
    fusion.allreduce([a, b, c], Reduction(ReduceOp.SUM))      # in place, in each

Only the sizes decide which arrays are packed and which are reduced alone, so that every member does the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from math import prod
from typing import TypeAlias, final

from farandole.collective import Array, DType, Kind, ReduceOp, Reduction
from farandole.control.messages import Order, Signature
from farandole.engines.engine import Engine, Memory
from farandole.runtime.lanes import adasum, inline_payload
from farandole.runtime.lanes.call import Call, CallResult
from farandole.runtime.lanes.packing import batches, identity, pack, scratch, unpack
from farandole.runtime.lanes.phase_events import PhaseEvents

PACKED_BYTES = 128 * 2**10
"""Arrays up to this size are packed. For larger ones two copies cost more than the call they save."""

BUFFER_BYTES = 8 * 2**20
"""Largest size of the buffer; arrays that do not fit together are reduced in several batches."""

SMALLEST_BUFFER_BYTES = 64 * 2**10


@final
class Fusion:
    """Reducer of lists of arrays on one engine. Its buffer is allocated on first use, and doubled when too small."""

    def __init__(self, engine: Engine, phases: PhaseEvents) -> None:
        self._engine, self._phases = engine, phases
        self._buffer: Memory | None = None

    def allreduce(self, arrays: Sequence[Array], how: Reduction, on_host: bool = True) -> None:
        """Reduce each in place; all have one dtype. Collective: every member gives the same sizes.

        Only arrays that are ``on_host``, on every member, are packed.
        """
        small = [a for a in arrays if 0 < a.nbytes <= PACKED_BYTES and on_host]
        for array in arrays:
            if array.nbytes > PACKED_BYTES or not on_host or (len(small) == 1 and array is small[0]):
                begin = self._phases.begin()
                self._engine.allreduce(array, how)
                self._phases.end("reduce", begin, array.nbytes)
        if len(small) > 1:
            for batch in batches(small, BUFFER_BYTES):
                self._packed(batch, how)

    def _packed(self, batch: Sequence[Array], how: Reduction) -> None:
        nbytes = sum(a.nbytes for a in batch)
        memory = self._room(nbytes)
        begin = self._phases.begin()
        pack(batch, memory.address)
        begin = self._phases.end("copy", begin, nbytes)
        count = nbytes // batch[0].dtype.itemsize
        self._engine.allreduce(memory.array(batch[0].dtype, 0, count), how)
        begin = self._phases.end("reduce", begin, nbytes)
        unpack(memory.address, batch)
        self._phases.end("copy", begin, nbytes)

    def _room(self, nbytes: int) -> Memory:
        if self._buffer is None or self._buffer.nbytes < nbytes:
            size = SMALLEST_BUFFER_BYTES
            while size < nbytes:
                size *= 2
            self._buffer = self._engine.allocate(size)
        return self._buffer


Mine: TypeAlias = Sequence[Sequence[Call] | None]
"""Per name of an order: this rank's calls, or ``None`` if it has joined."""


@final
class Executor:
    """Executor of one process set, for one thread at a time. Raises the errors of the engine and ``Call.allocate``."""

    def __init__(self, engine: Engine, ranks: Sequence[int]) -> None:
        self.engine = engine
        self.phases = PhaseEvents()
        self._ranks = tuple(ranks)
        self._member = engine.group.rank
        self._fusion = Fusion(engine, self.phases)

    def perform(self, order: Order, mine: Mine) -> list[list[CallResult]]:
        """Execute an order on the engine; returns one list of results per name. Collective."""
        kind = Kind(order.kind)
        self.phases.of(order.names, kind)
        if kind is Kind.ALLREDUCE:
            return self._allreduce(order, mine)
        outcomes = []
        for i, signature in enumerate(order.signatures):
            calls = mine[i]
            done = []
            for j in range(len(signature.dtypes)):
                begin = self.phases.begin()
                call = None if calls is None else calls[j]
                done.append(self._one(kind, order, i, j, call))
                self.phases.end("reduce", begin, 0 if call is None else call.array.nbytes)
            outcomes.append(done or [CallResult(value=order.value)])
        return outcomes

    def _one(self, kind: Kind, order: Order, i: int, j: int, call: Call | None) -> CallResult:
        signature = order.signatures[i]
        if kind is Kind.BROADCAST:
            return self._broadcast(signature, j, call)
        if kind is Kind.REDUCESCATTER:
            return self._reducescatter(signature, j, call)
        if kind is Kind.ALLGATHER:
            return self._allgather(signature, j, call, order.dims[i][j :: len(signature.dtypes)])
        assert kind is Kind.ALLTOALL, kind
        return self._alltoall(signature, j, call, order.splits[i])

    def _allreduce(self, order: Order, mine: Mine) -> list[list[CallResult]]:
        if order.contributions:
            begin = self.phases.begin()
            inline_payload.reduce(order.signatures[0], order.contributions, mine[0] or ())
            self.phases.end("reduce", begin, sum(map(len, order.contributions)))
        else:
            self._reduce(order, mine)
        return [[CallResult(c.array, c.shape) for c in calls or ()] for calls in mine]

    def _reduce(self, order: Order, mine: Mine) -> None:
        for (dtype, how, on_host), items in groupby(_contributions(order, mine), _way):
            arrays = [array for array, _ in items]
            if how.op != ReduceOp.ADASUM:
                self._fusion.allreduce(arrays, how, on_host)
            elif len(self._ranks) == 1:
                self._fusion.allreduce(arrays, replace(how, op=ReduceOp.SUM))
            else:
                begin = self.phases.begin()
                adasum.allreduce(self.engine, arrays, dtype, how.prescale * how.postscale)
                self.phases.end("reduce", begin, sum(a.nbytes for a in arrays))

    def _broadcast(self, signature: Signature, j: int, call: Call | None) -> CallResult:
        array = call.array if call else scratch(DType(signature.dtypes[j]), prod(signature.shapes[j]))
        self.engine.broadcast(array, self._ranks.index(signature.root))
        return CallResult(array, tuple(signature.shapes[j]))

    def _allgather(self, signature: Signature, j: int, call: Call | None, rows: Sequence[int]) -> CallResult:
        dtype, row_shape = DType(signature.dtypes[j]), tuple(signature.shapes[j][1:])
        shape = (sum(rows), *row_shape)
        counts = [r * prod(row_shape) for r in rows]
        recv = _output(call, dtype, shape)
        self.engine.allgather(call.array if call else scratch(dtype, 0), recv, counts)
        return CallResult(recv, shape, received_splits=tuple(rows))

    def _alltoall(self, signature: Signature, j: int, call: Call | None, matrix: Sequence[int]) -> CallResult:
        dtype, row_shape = DType(signature.dtypes[j]), tuple(signature.shapes[j][1:])
        size, per_row = len(self._ranks), prod(row_shape)
        sent = matrix[self._member * size : (self._member + 1) * size]
        received = matrix[self._member :: size]
        shape = (sum(received), *row_shape)
        recv = _output(call, dtype, shape)
        send = call.array if call else scratch(dtype, 0)
        self.engine.alltoall(send, [s * per_row for s in sent], recv, [r * per_row for r in received])
        return CallResult(recv, shape, received_splits=tuple(received))

    def _reducescatter(self, signature: Signature, j: int, call: Call | None) -> CallResult:
        dtype, (first, *row_shape) = DType(signature.dtypes[j]), signature.shapes[j]
        how, size = signature.how, len(self._ranks)
        rows = [first // size + (member < first % size) for member in range(size)]
        counts = [r * prod(row_shape) for r in rows]
        shape = (rows[self._member], *row_shape)
        send = call.array if call else identity(dtype, sum(counts), how)
        recv = _output(call, dtype, shape)
        self.engine.reducescatter(send, recv, counts, how)
        return CallResult(recv, shape)


def _contributions(order: Order, mine: Mine) -> Iterator[tuple[Array, Signature]]:
    for signature, calls in zip(order.signatures, mine, strict=True):
        if calls is not None:
            for call in calls:
                yield call.array, signature
        else:
            for dtype, shape in zip(signature.dtypes, signature.shapes, strict=True):
                yield identity(DType(dtype), prod(shape), signature.how), signature


def _way(item: tuple[Array, Signature]) -> tuple[DType, Reduction, bool]:
    """Key of arrays that can be reduced as one: dtype, reduction, and true for tensors in the memory of the host.

    The signature says where the tensors are, because the placeholders of a joined rank are always on the host.
    """
    array, signature = item
    return array.dtype, signature.how, signature.device == "cpu"


def _output(call: Call | None, dtype: DType, shape: tuple[int, ...]) -> Array:
    """The caller's memory for a result; on a joined rank, which only helps the others, scratch memory."""
    if call is None:
        return scratch(dtype, prod(shape))
    assert call.allocate is not None, call.kind
    return call.allocate(shape)
