"""Engine of a job of one process: the reduction of a single contribution only scales it.

engine = SoloEngine(group)
engine.allreduce(array, Reduction(ReduceOp.SUM, prescale=0.5))
"""

# Threads. One thread at a time is in a collective, and no collective waits. Any other thread may call ``abort``, or a
# signal handler on top of a collective: it writes one reference, which the next collective reads. So there is no lock.
#
# Memory is a shared anonymous mapping: a forked child (a data loader's worker) sees what is written here, like the
# memory of every other engine. So no tensor of a user may lie in it.

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Sequence
from typing import ClassVar, final

from farandole.collective import Array, Reduction
from farandole.engines.engine import Engine, Group, Memory, require_short
from farandole.errors import AbortError
from farandole.native import core


@final
class SoloEngine(Engine):
    """Collectives of a group of one member: copies and scaling."""

    name: ClassVar[str] = "solo"

    def __init__(self, group: Group) -> None:
        if group.size != 1:
            raise ValueError(f"engine solo serves a group of 1, {group.label} has {group.size} members")
        self.group = group
        self._ended = ""
        self._collectives = 0

    def allocate(self, nbytes: int) -> Memory:
        self._begin()
        # The ctypes array keeps the mapping alive, and has its address.
        owner = (ctypes.c_char * nbytes).from_buffer(mmap.mmap(-1, max(1, nbytes)))
        return Memory(ctypes.addressof(owner), nbytes, owner)

    def allreduce(self, array: Array, how: Reduction) -> None:
        self._begin()
        core.reduce([array.address], array.address, array.count, array.dtype, how.op, how.prescale, how.postscale)

    def allgather(self, send: Array, recv: Array, counts: Sequence[int]) -> None:
        self._copy(send, recv)

    def broadcast(self, array: Array, root: int) -> None:
        self._begin()

    def alltoall(self, send: Array, send_counts: Sequence[int], recv: Array, recv_counts: Sequence[int]) -> None:
        self._copy(send, recv)

    def reducescatter(self, send: Array, recv: Array, counts: Sequence[int], how: Reduction) -> None:
        self._begin()
        core.reduce([send.address], recv.address, recv.count, send.dtype, how.op, how.prescale, how.postscale)

    def barrier(self) -> None:
        self._begin()

    def gather_small(self, payload: bytes) -> list[bytes]:
        require_short(payload)
        self._begin()
        return [payload]

    def abort(self, reason: str) -> None:
        self._ended = self._ended or reason  # by any thread, without a lock: no thread waits in this engine

    def close(self) -> None:
        self._ended = self._ended or "this engine was closed"

    def statistics(self) -> dict[str, int | float | str]:
        return {**super().statistics(), "collectives": self._collectives}

    def _begin(self) -> None:
        if self._ended:
            raise AbortError(self._ended)
        self._collectives += 1

    def _copy(self, send: Array, recv: Array) -> None:
        self._begin()
        core.copy(recv.address, send.address, send.nbytes)
