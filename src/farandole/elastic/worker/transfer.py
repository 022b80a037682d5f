"""Transfer of state to the ranks that need it, over the data plane, from all ranks that have it at once.

    memory = FlatState([array, ...])                # the same lengths on every rank
    transfer(memory, sources=[0, 2], receives=rank not in (0, 2), label="state")

The state is cut into rounds, and every round into one stripe per source. Each stripe is sent with its checksum, and
receivers write it in place. All ranks of the job call this.
"""

from __future__ import annotations

import ctypes
import struct
import zlib
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, pairwise
from typing import final

from farandole.collective import Array, DType, Kind
from farandole.errors import EngineError
from farandole.runtime.lanes.call import Call
from farandole.runtime.session.init import current

ROUND_BYTES = 32 * 2**20
"""Bytes per round, which are held in memory beside the state meanwhile."""

_CHECK = struct.Struct("<I")


@final
class FlatState:
    """Pieces of host memory as one sequence of bytes."""

    def __init__(self, arrays: Sequence[Array]) -> None:
        self._arrays = [array for array in arrays if array.nbytes]
        self._ends = list(accumulate(array.nbytes for array in self._arrays))

    @property
    def nbytes(self) -> int:
        """Size of all pieces together."""
        return self._ends[-1] if self._ends else 0

    def checksum(self) -> int:
        """CRC-32 of all bytes in their order."""
        value = 0
        for array in self._arrays:
            value = zlib.crc32(_view(array.address, array.nbytes), value)
        return value

    def read(self, part: range, target: int) -> None:
        """Copy ``part`` to the address ``target``."""
        for address, offset, count in self._pieces(part):
            ctypes.memmove(target + offset, address, count)

    def write(self, part: range, source: int) -> None:
        """Copy ``part`` from the address ``source``."""
        for address, offset, count in self._pieces(part):
            ctypes.memmove(address, source + offset, count)

    def _pieces(self, part: range) -> Iterator[tuple[int, int, int]]:
        """Address, offset in ``part`` and length of each piece of memory that it touches."""
        at, index = part.start, bisect_right(self._ends, part.start)
        while at < part.stop:
            array = self._arrays[index]
            inside = at - (self._ends[index] - array.nbytes)
            count = min(array.nbytes - inside, part.stop - at)
            yield array.address + inside, at - part.start, count
            at, index = at + count, index + 1


def stripes(nbytes: int, sources: int, round_bytes: int = ROUND_BYTES) -> list[list[range]]:
    """Plan of a transfer: for each round, one part per source; together they are all bytes, once.

    >>> stripes(10, sources=2, round_bytes=8)
    [[range(0, 4), range(4, 8)], [range(8, 9), range(9, 10)]]
    """
    rounds = []
    for start in range(0, nbytes, round_bytes):
        length = min(round_bytes, nbytes - start)
        cuts = [start + length * i // sources for i in range(sources + 1)]
        rounds.append([range(a, b) for a, b in pairwise(cuts)])
    return rounds


def transfer(memory: FlatState, sources: Sequence[int], receives: bool, label: str) -> int:
    """Copy ``memory`` of the ``sources`` to every rank that ``receives``; returns the number of bytes.

    Collective among all ranks; ``sources`` ascend. Raises ``EngineError`` on a rank that got a stripe with a wrong
    checksum; the generation then ends for all ranks, and none goes on with a damaged state.
    """
    session = current("the transfer of state")
    rank = session.topology.rank
    # Two buffers, because the all-gather reads one while it writes the other. Each serves all rounds: when
    # ``_exchange`` returns, the round is over on this rank, and the engine no longer needs either buffer.
    packing, arriving = _ReceiveBuffer(), _ReceiveBuffer()
    for number, parts in enumerate(stripes(memory.nbytes, len(sources))):
        # A rank that is no source takes part with no bytes, even if it receives nothing: an all-gather needs all ranks.
        own = _pack(memory, parts[sources.index(rank)], packing) if rank in sources else _array(_buffer(0), 0)
        address = _exchange(f"{label}.{number}", own, arriving)
        if receives:
            try:
                _unpack(memory, zip(sources, parts, strict=True), address)
            except EngineError as error:
                # Raising is not enough: other ranks may have got sound stripes, and would train without this rank.
                session.end.abort(str(error))
                raise
    return memory.nbytes


@final
class _ReceiveBuffer:
    """Buffer that every round reuses, because fresh memory costs as much as a copy."""

    def __init__(self) -> None:
        self._buffer = _buffer(0)

    def array(self, nbytes: int) -> Array:
        """The first ``nbytes`` of the buffer, which grows if it is too small."""
        if len(self._buffer) < nbytes:
            self._buffer = _buffer(nbytes)
        return _array(self._buffer, nbytes)


def _pack(memory: FlatState, part: range, room: _ReceiveBuffer) -> Array:
    """Copy a stripe of ``memory`` into ``room``, after its checksum."""
    packed = room.array(_CHECK.size + len(part))
    memory.read(part, packed.address + _CHECK.size)
    _CHECK.pack_into(_view(packed.address, _CHECK.size), 0, zlib.crc32(_view(packed.address + _CHECK.size, len(part))))
    return packed


def _unpack(memory: FlatState, parts: Iterable[tuple[int, range]], address: int) -> None:
    """Check and write every stripe of a round; the stripes lie at ``address`` in the order of their sources."""
    for source, part in parts:
        [said] = _CHECK.unpack(_view(address, _CHECK.size))
        found = zlib.crc32(_view(address + _CHECK.size, len(part)))
        if found != said:
            raise EngineError(
                f"bytes {part.start} to {part.stop} of the state arrived from rank {source} with checksum {found:08x} "
                f"and not {said:08x}: they were damaged on the way"
            )
        memory.write(part, address + _CHECK.size)
        address += _CHECK.size + len(part)


def _exchange(name: str, mine: Array, room: _ReceiveBuffer) -> int:
    """All-gather bytes through the negotiated lane; returns the address of the result."""
    call = Call(Kind.ALLGATHER, f"allgather.{name}", mine, (mine.count,), allocate=lambda shape: room.array(shape[0]))
    current().submit([call], background=False).wait()
    return room.array(0).address  # not earlier: ``allocate`` may have replaced the buffer


def _buffer(nbytes: int) -> ctypes.Array[ctypes.c_char]:
    return (ctypes.c_char * nbytes)()


def _array(buffer: ctypes.Array[ctypes.c_char], count: int) -> Array:
    return Array(ctypes.addressof(buffer), count, DType.UINT8, buffer)


def _view(address: int, nbytes: int) -> memoryview:
    return memoryview((ctypes.c_char * nbytes).from_address(address)).cast("B")
