"""Who competes: an all-reduce of float32, sum, in place, once per library."""

from __future__ import annotations

import ctypes
import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeAlias, final

import numpy as np
import numpy.typing as npt

from benchmarks.fleet import ADDRESS, RANK

LARGEST_BYTES = 64 * 2**20
Exchange: TypeAlias = Callable[[bytes], list[bytes]]
Once: TypeAlias = Callable[[], object]


class Contender(ABC):
    """One rank of one library. ``data`` is what is reduced."""

    def __init__(self, rank: int, size: int, exchange: Exchange) -> None:
        self.rank, self.size, self.exchange = rank, size, exchange
        self.data: npt.NDArray[np.float32] = np.zeros(LARGEST_BYTES // 4, np.float32)
        self.open()

    @abstractmethod
    def open(self) -> None:
        """Connect the ranks."""

    @abstractmethod
    def reducer(self, nbytes: int) -> Once:
        """A function that reduces the first ``nbytes`` of ``data``."""


class Shm(Contender):
    """Farandole's engine for one host, without a runtime on top, on ordinary arrays."""

    def open(self) -> None:
        """Make an engine."""
        from farandole.engines.engine import Group
        from farandole.engines.shm import ShmEngine

        ranks = tuple(range(self.size))
        group = Group(self.rank, ranks, ("localhost",) * self.size, 1, "bench")
        self.engine = ShmEngine(group, self.exchange)

    def reducer(self, nbytes: int) -> Once:
        """A function that reduces the first ``nbytes`` of ``data``."""
        from farandole.collective import Array, DType, ReduceOp

        array = Array(self.data.ctypes.data, nbytes // 4, DType.FLOAT32, self.data)
        return partial(self.engine.allreduce, array, ReduceOp.SUM)


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
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        store = Path(os.environ[ADDRESS]).with_name("store")
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=self.rank, world_size=self.size)

    def reducer(self, nbytes: int) -> Once:
        """A function that reduces the first ``nbytes`` of ``data``."""
        import torch
        import torch.distributed as dist

        return partial(dist.all_reduce, torch.from_numpy(self.data[: nbytes // 4]))


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
