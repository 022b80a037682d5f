"""Who competes: an all-reduce of float32, sum, in place, once per library."""

from __future__ import annotations

import ctypes
import os
import socket
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import ClassVar, TypeAlias, final

import numpy as np
import numpy.typing as npt

from benchmarks.fleet import ADDRESS, HOSTS, RANK

LARGEST_BYTES = 64 * 2**20
Exchange: TypeAlias = Callable[[bytes], list[bytes]]
Once: TypeAlias = Callable[[], object]


class Contender(ABC):
    """One rank of one library. ``data`` is what is reduced."""

    def __init__(self, rank: int, size: int, exchange: Exchange) -> None:
        self.rank, self.size, self.exchange = rank, size, exchange
        self.hosts = tuple(os.environ[HOSTS].split(","))
        self.data: npt.NDArray[np.float32] = np.zeros(LARGEST_BYTES // 4, np.float32)
        self.open()

    @abstractmethod
    def open(self) -> None:
        """Connect the ranks."""

    @abstractmethod
    def reducer(self, nbytes: int) -> Once:
        """A function that reduces the first ``nbytes`` of ``data``."""

    def check(self) -> None:
        """Prove that every element is summed."""
        pattern = (np.arange(self.data.size, dtype=np.int32) % 251).astype(np.float32)
        for count in (1, 16384, self.data.size):
            self.data[:count] = pattern[:count] + self.rank
            self.reducer(4 * count)()
            expected = self.size * pattern[:count] + self.size * (self.size - 1) / 2
            np.testing.assert_array_equal(self.data[:count], expected)


class Ours(Contender):
    """One of Farandole's engines, without a runtime on top, on ordinary arrays."""

    engine_name: ClassVar[str]

    def open(self) -> None:
        """Make an engine."""
        from farandole.engines.engine import Group, Rendezvous
        from farandole.engines.factory import make

        ranks = tuple(range(self.size))
        group = Group(self.rank, ranks, self.hosts, 1, "bench")
        self.engine = make(self.engine_name, group, Rendezvous(self._share, "bench", ranks))

    def reducer(self, nbytes: int) -> Once:
        """A function that reduces the first ``nbytes`` of ``data``."""
        from farandole.collective import Array, DType, ReduceOp, Reduction

        array = Array(self.data.ctypes.data, nbytes // 4, DType.FLOAT32, self.data)
        return partial(self.engine.allreduce, array, Reduction(ReduceOp.SUM))

    def _share(self, key: str, ranks: Sequence[int], payload: bytes) -> list[bytes]:
        """Every rank comes to every meeting here, if only to one of its own at the same time."""
        everybody = self.exchange(payload)
        return [everybody[rank] for rank in ranks]


class Shm(Ours):
    """Shared memory, for one host."""

    engine_name = "shm"


@final
class Hybrid(Ours):
    """Shared memory inside hosts and TCP between them, with as many ranks on each host."""

    engine_name = "hybrid+tcp"


@final
class ShmMemory(Shm):
    """The same in memory that the engine made, where gradients live."""

    def open(self) -> None:
        """Make an engine and its memory."""
        super().open()
        self.memory = self.engine.allocate(LARGEST_BYTES)
        first = ctypes.cast(self.memory.address, ctypes.POINTER(ctypes.c_float))
        self.data = np.ctypeslib.as_array(first, (LARGEST_BYTES // 4,))


@final
class Gloo(Contender):
    """torch.distributed over Gloo on the loopback interface."""

    def open(self) -> None:
        """Make the default process group."""
        import torch
        import torch.distributed as dist

        torch.set_num_threads(1)
        os.environ["GLOO_SOCKET_IFNAME"] = "lo" if len(set(self.hosts)) == 1 else "eth0"
        store = Path(os.environ[ADDRESS]).with_name("store")
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=self.rank, world_size=self.size)

    def reducer(self, nbytes: int) -> Once:
        """A function that reduces the first ``nbytes`` of ``data``."""
        import torch
        import torch.distributed as dist

        return partial(dist.all_reduce, torch.from_numpy(self.data[: nbytes // 4]))


@final
class Wire(Contender):
    """What the link between two hosts can do: their first ranks send each other as much as must cross, over TCP."""

    def open(self) -> None:
        """Connect the two."""
        place, first = self.hosts.index(self.hosts[self.rank]), self.hosts[0]
        self.connection: socket.socket | None = None
        with ExitStack() as stack:
            port = b""
            if self.rank == 0:
                listener = stack.enter_context(socket.create_server((first, 0)))
                port = str(listener.getsockname()[1]).encode()
            port = self.exchange(port)[0]
            if self.rank == place > 0:
                self.connection = socket.create_connection((first, int(port)))
            elif self.rank == 0:
                self.connection, _ = listener.accept()

    def reducer(self, nbytes: int) -> Once:
        """A function that sends the first ``nbytes`` of ``data`` and receives as many."""
        connection, room = self.connection, bytearray(nbytes)
        if connection is None:
            return lambda: None

        def once() -> None:
            sender = threading.Thread(target=connection.sendall, args=(self.data[: nbytes // 4],))
            sender.start()
            left = memoryview(room)
            while left:
                left = left[connection.recv_into(left) :]
            sender.join()

        return once

    def check(self) -> None:
        """Nothing is summed."""


@final
class Mpi(Contender):
    """mpi4py over the MPI whose launcher started this process."""

    def open(self) -> None:
        """Nothing: importing it has connected the ranks."""

    def reducer(self, nbytes: int) -> Once:
        """A function that reduces the first ``nbytes`` of ``data``."""
        from mpi4py import MPI

        return partial(MPI.COMM_WORLD.Allreduce, MPI.IN_PLACE, self.data[: nbytes // 4])


CONTENDERS: dict[str, type[Contender]] = {
    "shm, its memory": ShmMemory,
    "shm, any memory": Shm,
    "hybrid": Hybrid,
    "wire": Wire,
    "gloo": Gloo,
    "mpich": Mpi,
    "openmpi": Mpi,
}
"""By the name that tables and pictures use."""


def rank_of(contender: str) -> int:
    """The rank of this process, from whoever started it."""
    if CONTENDERS[contender] is not Mpi:
        return int(os.environ[RANK])
    from mpi4py import MPI

    return int(MPI.COMM_WORLD.rank)
