"""Collectives built from point-to-point transfers, with the arithmetic of the native core.

    class TcpEngine(PairwiseEngine): ...          # supplies its transport

The reductions of libraries support fewer dtypes and round float16 after each rank. Here every dtype and op is
supported, float16 accumulates in float32, and the order of reduction is rank order, whatever the transport.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import ClassVar

from farandole.collective import Array, DType, ReduceOp, Reduction
from farandole.engines.arrays import copy, pieces, plain_memory, shares, split
from farandole.engines.engine import PAYLOAD_BYTES, Engine, Group, Memory, require_served, require_short
from farandole.engines.interruption import ends_when_interrupted
from farandole.engines.transport import Transport
from farandole.native import core

SMALL_BYTES = 128 * 1024
"""Up to this total of all members, every member gathers all arrays and reduces them: one exchange instead of two."""
DIRECT_MEMBERS = 4
"""Up to this size every member sends to every other; larger groups gather in rounds of doubling size."""
BLOCK_BYTES = 32 * 2**20
"""Larger arrays are reduced in pieces of this size, which bounds the scratch memory."""
LINE_BYTES = 64


class PairwiseEngine(Engine):
    """An engine on a ``Transport``. Derive from it, set ``name`` and pass a transport to the constructor."""

    adds_as_tree: ClassVar[bool] = True

    def __init__(self, group: Group, transport: Transport) -> None:
        self.group = group
        self._transport = transport
        self._scratch = plain_memory(0)
        self._calls = 0

    def allocate(self, nbytes: int) -> Memory:
        """Allocate plain zeroed memory: a network reads all memory equally fast."""
        return plain_memory(nbytes)

    @ends_when_interrupted
    def allreduce(self, array: Array, how: Reduction) -> None:
        """Reduce in place: every member reduces a slice and sends it to all; each reduces small arrays whole."""
        self._begin()
        require_served(array.dtype, how.op)
        size = self.group.size
        for piece in pieces(array, BLOCK_BYTES):
            if piece.nbytes * size <= SMALL_BYTES:
                self._combine(self._gather(piece), piece, how)
                continue
            slices = split(piece, shares(piece.count, size, 1))
            mine = slices[self.group.rank]
            self._combine(self._collect(mine, slices), mine, how)
            self._swap([mine] * size, slices)

    @ends_when_interrupted
    def allgather(self, send: Array, recv: Array, counts: Sequence[int]) -> None:
        """Send this member's array to each other member, and receive theirs in place."""
        self._begin()
        slices = split(recv, counts)
        copy(slices[self.group.rank], send)
        self._swap([send] * self.group.size, slices)

    @ends_when_interrupted
    def broadcast(self, array: Array, root: int) -> None:
        """Broadcast along a binomial tree: receive from the parent, then send to children, largest subtree first."""
        self._begin()
        size = self.group.size
        member = (self.group.rank - root) % size
        below = member & -member if member else 1 << (size - 1).bit_length()
        steps = [1 << bit for bit in reversed(range(below.bit_length() - 1))]
        if member:
            self._transport.transfer([], [((member - below + root) % size, array)])
        children = [((member + step + root) % size, array) for step in steps if member + step < size]
        self._transport.transfer(children, [])

    @ends_when_interrupted
    def alltoall(self, send: Array, send_counts: Sequence[int], recv: Array, recv_counts: Sequence[int]) -> None:
        """Send and receive all slices at once."""
        self._begin()
        outgoing, incoming = split(send, send_counts), split(recv, recv_counts)
        copy(incoming[self.group.rank], outgoing[self.group.rank])
        self._swap(outgoing, incoming)

    @ends_when_interrupted
    def reducescatter(self, send: Array, recv: Array, counts: Sequence[int], how: Reduction) -> None:
        """Send each member its slice, and reduce this member's slice."""
        self._begin()
        require_served(send.dtype, how.op)
        slices = split(send, counts)
        self._combine(self._collect(slices[self.group.rank], slices), recv, how)

    @ends_when_interrupted
    def barrier(self) -> None:
        """Return when every member has sent a message."""
        self.gather_small(b"")

    @ends_when_interrupted
    def gather_small(self, payload: bytes) -> list[bytes]:
        """Gather like small arrays; trailing NULs of a payload are lost."""
        require_short(payload)
        self._begin()
        said = ctypes.create_string_buffer(payload.ljust(PAYLOAD_BYTES, b"\0"), PAYLOAD_BYTES)
        parts = self._gather(Array(ctypes.addressof(said), PAYLOAD_BYTES, DType.UINT8, said))
        return [ctypes.string_at(part.address, PAYLOAD_BYTES).rstrip(b"\0") for part in parts]

    def abort(self, reason: str) -> None:
        """Wake this member and fail all its calls."""
        self._transport.abort(reason)

    def interrupted(self, error: BaseException) -> None:
        """End the transport; errors of its own have already ended it."""
        self._transport.interrupted(error)

    def close(self) -> None:
        """Close the transport."""
        self._transport.close()
        self._scratch = plain_memory(0)

    def statistics(self) -> dict[str, int | float | str]:
        """Also count calls, transfers and bytes sent."""
        sent = {"transfers": self._transport.transfers, "bytes_sent": self._transport.bytes_sent}
        return {**super().statistics(), "calls": self._calls, **sent}

    def _begin(self) -> None:
        self._transport.check()
        self._calls += 1

    def _combine(self, parts: Sequence[Array], target: Array, how: Reduction) -> None:
        """Reduce ``parts``, in the order of members, into ``target``."""
        divisor = self.group.size if how.op is ReduceOp.AVERAGE else 1
        addresses = [part.address for part in parts]
        core.reduce(addresses, target.address, target.count, target.dtype, how.op, how.prescale, how.postscale, divisor)

    def _collect(self, mine: Array, outgoing: Sequence[Array]) -> list[Array]:
        """Send ``outgoing[i]`` to member ``i``; returns all members' parts for this member's slice, in member order."""
        parts = self._rooms(mine)
        self._swap(outgoing, parts)
        parts[self.group.rank] = mine
        return parts

    def _gather(self, mine: Array) -> list[Array]:
        """All-gather ``mine``, of equal length on all members; returns the parts in member order."""
        rank, size = self.group.rank, self.group.size
        if size <= DIRECT_MEMBERS:
            return self._collect(mine, [mine] * size)
        # ``whole`` holds, from its start, the parts of rank, rank + 1, ... Each round doubles their number.
        whole = self._room(mine.nbytes * size).array(mine.dtype, 0, mine.count * size)
        copy(whole.slice(0, mine.count), mine)
        held = 1
        while held < size:
            more = min(held, size - held) * mine.count
            self._transport.transfer(
                [((rank - held) % size, whole.slice(0, more))],
                [((rank + held) % size, whole.slice(held * mine.count, more))],
            )
            held *= 2
        return [whole.slice((member - rank) % size * mine.count, mine.count) for member in range(size)]

    def _swap(self, outgoing: Sequence[Array], incoming: Sequence[Array]) -> None:
        """Send ``outgoing[i]`` to and receive ``incoming[i]`` from each other member ``i``."""
        rank, size = self.group.rank, self.group.size
        self._transport.transfer(
            [(peer, outgoing[peer]) for peer in ((rank + step) % size for step in range(1, size))],
            [(peer, incoming[peer]) for peer in ((rank - step) % size for step in range(1, size))],
        )

    def _rooms(self, like: Array) -> list[Array]:
        """Scratch memory for an array of this size and dtype from each member."""
        room = (like.nbytes + LINE_BYTES - 1) // LINE_BYTES * LINE_BYTES
        memory = self._room(room * self.group.size)
        return [memory.array(like.dtype, i * room, like.count) for i in range(self.group.size)]

    def _room(self, nbytes: int) -> Memory:
        if self._scratch.nbytes < nbytes:
            self._scratch = plain_memory(nbytes)
        return self._scratch
