"""Basics of every framework's module: all functions without tensors. Each module exports the names in ``__all__``.

    init()
    if rank() == 0:
        print(f"training on {size()} workers")

Names, arguments and meaning are Horovod's. All functions except ``is_initialized``, ``log`` and the probes raise
``ValueError`` before ``init``.
"""

from __future__ import annotations

import contextlib
from typing import Any

from farandole import events
from farandole.collective import ReduceOp
from farandole.engines.candidates import CANDIDATES, usable
from farandole.errors import HorovodInternalError, NotInitializedError
from farandole.runtime.collectives.handles import poll, synchronize
from farandole.runtime.collectives.objects import allgather_object, broadcast_object
from farandole.runtime.session.init import current, init, is_initialized, shutdown
from farandole.runtime.session.process_sets import ProcessSet, ProcessSetLike, global_process_set
from farandole.runtime.session.training import training

__all__ = [
    "Adasum",
    "Average",
    "HorovodInternalError",
    "Max",
    "Min",
    "ProcessSet",
    "Product",
    "Sum",
    "add_process_set",
    "allgather_object",
    "barrier",
    "broadcast_object",
    "ccl_built",
    "checkpoint_due",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "init",
    "is_homogeneous",
    "is_initialized",
    "local_rank",
    "local_size",
    "log",
    "mllog",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "poll",
    "rank",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "start_timeline",
    "statistics",
    "stop_timeline",
    "synchronize",
]

Average, Sum, Adasum = ReduceOp.AVERAGE, ReduceOp.SUM, ReduceOp.ADASUM
Min, Max, Product = ReduceOp.MIN, ReduceOp.MAX, ReduceOp.PRODUCT


def rank() -> int:
    """The number of this process among all, from 0."""
    return current("rank()").topology.rank


def size() -> int:
    """The number of processes."""
    return current("size()").topology.size


def local_rank() -> int:
    """The number of this process among those on its host, from 0."""
    return current("local_rank()").topology.local_rank


def local_size() -> int:
    """The number of processes on this host."""
    return current("local_size()").topology.local_size


def cross_rank() -> int:
    """The number of this host among those that have a process with this local rank, from 0."""
    return current("cross_rank()").topology.cross_rank


def cross_size() -> int:
    """The number of hosts that have a process with this local rank."""
    return current("cross_size()").topology.cross_size


def is_homogeneous() -> bool:
    """True if every host has the same number of processes."""
    return current("is_homogeneous()").topology.is_homogeneous


def statistics() -> dict[str, Any]:
    """Statistics of this rank: generation, rank, size, the engine and why it was chosen, counters of each engine.

    >>> print(hvd.statistics()["engine"], hvd.statistics()["reason"])
    shm all 2 ranks are on one host

    ``["fast_path"]``: number of small all-reduces of compiled graphs that have ``met`` without Python, and number that
    have ``left`` the fast path because another rank was late (see docs/design/lanes.md).
    """
    return current("statistics()").statistics()


def log(step: int | None = None, samples: int | None = None, **values: Any) -> None:
    """Log numbers of this rank, by name, for the live view and the records of a run.

    >>> hvd.log(loss=loss, acc=hits / len(x))

    ``step``: by default the number of optimizer steps so far, or of logs if there is no optimizer. ``samples``: number
    that this rank has seen so far, if no sampler counts them. Values are numbers, or tensors with one element, which
    are read only if there is a listener: without ``--live`` or ``--record`` there is none, and a call costs no more
    than an empty function. Ranks may log different values. A call does not wait, and never raises because of a value;
    before ``init`` and after ``shutdown`` it does nothing.
    """
    training.logs += 1
    if samples is not None:
        training.samples = int(samples)
    if events.listeners or events.subscribers:  # here: between the work of a step, each call of Python costs 0.5 us
        with contextlib.suppress(NotInitializedError):
            training.log(step, samples, values, current("log()").topology.rank)


def mllog(key: str, value: Any = None, **metadata: Any) -> None:
    """Write a line to the MLPerf log of ``farandole run --mllog FILE``; only rank 0 writes.

    >>> hvd.mllog("train_samples", len(x)), hvd.mllog("global_batch_size", 256), hvd.mllog("seed", 3)
    >>> hvd.mllog("epoch_start", epoch_num=1)
    >>> hvd.mllog("epoch_stop", epoch_num=1)
    >>> hvd.mllog("eval_accuracy", accuracy, epoch_num=1)

    A ``key`` that ends in ``_start`` or ``_stop`` begins or ends an interval; ``value`` is a number, a text, or
    nothing; ``metadata`` are further fields. ``init_start``, ``init_stop``, ``run_start``, ``staging_start``,
    ``staging_stop``, ``number_of_nodes`` and ``run_stop`` are written automatically, ``run_stop`` unless the script has
    written it. Without ``--mllog``, or on other ranks, nothing happens. Raises ``NotInitializedError`` before ``init``.
    """
    current("mllog()").mllog(key, value, metadata)


def checkpoint_due() -> bool:
    """True once on every rank, after the same step, if a user has pressed *checkpoint* in the live view.

    >>> if step % 1000 == 0 or hvd.checkpoint_due():
    ...     checkpoints.save(step, state)

    Call it after ``optimizer.step()``, on all ranks alike.
    """
    current("checkpoint_due()")
    due, training.checkpoint_due = training.checkpoint_due, False
    return due


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Return when every member of the set has called this.

    >>> if hvd.rank() == 0:
    ...     download()
    >>> hvd.barrier()
    """
    session = current("barrier()")
    session.barrier(process_set.process_set_id if process_set.process_set_id is not None else -1)


def add_process_set(process_set: ProcessSetLike) -> ProcessSet:
    """Register a set of ranks for the ``process_set`` argument of the collectives; every rank of the job calls this.

    >>> evens = hvd.add_process_set([0, 2])
    """
    return current("add_process_set()").add_process_set(process_set)


def remove_process_set(process_set: ProcessSet) -> bool:
    """End a process set; false if it is the global one or not registered. Every rank of the job calls this.

    >>> hvd.remove_process_set(evens)
    True
    """
    return current("remove_process_set()").remove_process_set(process_set)


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """Begin to write a timeline of all ranks to ``file_path`` (a Chrome trace); arguments of rank 0 count.

    >>> hvd.start_timeline("step.json")
    >>> train_one_step()
    >>> hvd.stop_timeline()

    When it returns on rank 0, every rank records.
    """
    current("start_timeline()").recorder.record_all(file_path, mark_cycles)


def stop_timeline() -> None:
    """End the timeline.

    >>> hvd.stop_timeline()

    When it returns on rank 0, the file is complete and no rank writes to it any more.
    """
    current("stop_timeline()").recorder.record_all("")


def mpi_threads_supported() -> bool:
    """True if mpi4py is installed: the engine ``mpi`` refuses MPI libraries that do not support threads."""
    return not CANDIDATES["mpi"].uninstalled()


def mpi_enabled() -> bool:
    """False: jobs are not controlled by MPI."""
    return False


def mpi_built() -> bool:
    """True if mpi4py is installed, which the engine ``mpi`` is built on."""
    return not CANDIDATES["mpi"].uninstalled()


def gloo_enabled() -> bool:
    """True: jobs are controlled without MPI, which scripts check with this function."""
    return True


def gloo_built() -> bool:
    """True if the engine ``tcp`` is usable, which needs no MPI between hosts, like Gloo in Horovod."""
    return "tcp" in usable()


def nccl_built() -> int:
    """1 if the engine ``nccl`` can be used here, else 0 (Horovod returns its version)."""
    return int("nccl" in usable())


def ddl_built() -> bool:
    """False: there is no such engine."""
    return False


def ccl_built() -> bool:
    """False: there is no such engine."""
    return False


def cuda_built() -> bool:
    """False: nothing here is compiled against CUDA. ``nccl_built()`` says whether CUDA tensors are served."""
    return False


def rocm_built() -> bool:
    """False: nothing here is compiled against ROCm."""
    return False
