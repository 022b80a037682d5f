"""Default engine inside a host: shared memory and futexes, in the native core.

engine = ShmEngine(group, exchange)
memory = engine.allocate(64 * 2**20)          # arrays in it are reduced without copying
engine.allreduce(memory.array(DType.FLOAT32), Reduction(ReduceOp.AVERAGE))
"""

# Threads. Processes share the memory; in each, one thread calls collectives and any other may abort or close. The core
# has all locks and all lock-free words (``native/barrier.hpp``, ``native/endpoint.hpp``), so this file needs none: its
# calls release the GIL while they wait, ``abort`` acquires a lock that no waiter holds, ``close`` first aborts and then
# waits until the collective in progress no longer uses the memory. So a signal handler on top of a collective may
# abort, and must leave ``close`` to another thread. In a forked child every collective is refused, and ``close`` does
# nothing, because the group belongs to the parent.

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, final

from farandole.collective import Array, Reduction
from farandole.engines.choose import SHM_MEMBERS
from farandole.engines.engine import Engine, Exchange, Group, Memory, require_short
from farandole.errors import UnsupportedError
from farandole.native import core

SPIN_S = 50e-6
"""About the cost of sleeping and waking: longer polling cannot pay off."""


@final
class ShmEngine(Engine):
    """Collectives in memory that all members map; for 1 to 64 members on one host.

    The constructor is collective: every member of ``group`` calls it with an ``exchange`` among them. Raises
    ``EngineError`` on every member if one of them cannot share memory. A wait polls for ``spin_s``, and then sleeps.
    """

    name: ClassVar[str] = "shm"
    adds_as_tree: ClassVar[bool] = True

    def __init__(self, group: Group, exchange: Exchange, spin_s: float = SPIN_S) -> None:
        if group.size > SHM_MEMBERS:
            raise UnsupportedError(
                f"engine shm connects at most {SHM_MEMBERS} ranks of one host, {group.label} has {group.size}: "
                "use --engine tcp"
            )
        self.group = group
        names = [group.name(member) for member in range(group.size)]
        self._endpoint = core.Endpoint(group.rank, names, group.label, group.deadline_s, exchange, spin_s)

    def allocate(self, nbytes: int) -> Memory:
        region = self._endpoint.allocate(nbytes)
        return Memory(region.address, nbytes, region)  # the region outlives the engine: arrays in it stay valid

    def allreduce(self, array: Array, how: Reduction) -> None:
        self._endpoint.allreduce(array.address, array.count, array.dtype, how.op, how.prescale, how.postscale)

    def allgather(self, send: Array, recv: Array, counts: Sequence[int]) -> None:
        self._endpoint.allgather(send.address, recv.address, send.dtype, counts)

    def broadcast(self, array: Array, root: int) -> None:
        self._endpoint.broadcast(array.address, array.count, array.dtype, root)

    def alltoall(self, send: Array, send_counts: Sequence[int], recv: Array, recv_counts: Sequence[int]) -> None:
        self._endpoint.alltoall(send.address, send_counts, recv.address, recv_counts, send.dtype)

    def reducescatter(self, send: Array, recv: Array, counts: Sequence[int], how: Reduction) -> None:
        self._endpoint.reducescatter(
            send.address, recv.address, send.dtype, counts, how.op, how.prescale, how.postscale
        )

    def barrier(self) -> None:
        self._endpoint.barrier()

    def gather_small(self, payload: bytes) -> list[bytes]:
        require_short(payload)
        return self._endpoint.gather(payload)

    def abort(self, reason: str) -> None:
        self._endpoint.abort(reason)

    def close(self) -> None:
        self._endpoint.close()

    def statistics(self) -> dict[str, int | float | str]:
        return {**super().statistics(), **self._endpoint.statistics()}
