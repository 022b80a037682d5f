"""``HorovodBasics``: rank, size and features of this installation, as methods of an object."""

from __future__ import annotations

from farandole.collective import ReduceOp
from farandole.runtime.collectives import basics
from farandole.runtime.session import init as process


class HorovodBasics:
    """Basics; arguments have no effect: Horovod loads a library per framework, but Farandole has one runtime."""

    Average, Sum, Adasum = ReduceOp.AVERAGE, ReduceOp.SUM, ReduceOp.ADASUM
    Min, Max, Product = ReduceOp.MIN, ReduceOp.MAX, ReduceOp.PRODUCT

    def __init__(self, *_library: str) -> None:
        pass

    init, shutdown = staticmethod(process.init), staticmethod(process.shutdown)
    is_initialized = staticmethod(process.is_initialized)
    rank, size = staticmethod(basics.rank), staticmethod(basics.size)
    local_rank, local_size = staticmethod(basics.local_rank), staticmethod(basics.local_size)
    cross_rank, cross_size = staticmethod(basics.cross_rank), staticmethod(basics.cross_size)
    is_homogeneous = staticmethod(basics.is_homogeneous)
    start_timeline, stop_timeline = staticmethod(basics.start_timeline), staticmethod(basics.stop_timeline)
    mpi_threads_supported = staticmethod(basics.mpi_threads_supported)
    mpi_enabled, mpi_built = staticmethod(basics.mpi_enabled), staticmethod(basics.mpi_built)
    gloo_enabled, gloo_built = staticmethod(basics.gloo_enabled), staticmethod(basics.gloo_built)
    nccl_built, ddl_built = staticmethod(basics.nccl_built), staticmethod(basics.ddl_built)
    ccl_built, cuda_built = staticmethod(basics.ccl_built), staticmethod(basics.cuda_built)
    rocm_built = staticmethod(basics.rocm_built)
