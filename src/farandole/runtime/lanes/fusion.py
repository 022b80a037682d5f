"""Reduction of many small arrays as one, through a buffer in engine memory.

    fusion = Fusion(engine, PhaseEvents())
    fusion.allreduce([a, b, c], Reduction(ReduceOp.SUM))      # in place, in each

Only the sizes decide which arrays are packed and which are reduced alone, so that every member does the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from farandole.collective import Array, Reduction
from farandole.engines.engine import Engine, Memory
from farandole.runtime.lanes.packing import batches, pack, unpack
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
