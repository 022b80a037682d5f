"""Collectives of ``farandole.mxnet`` with the order of arguments of Horovod 0.28.1.

``priority`` has no effect, because calls wait for their results.
"""

# ruff: noqa: ARG001 (the interface is Horovod's)

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mxnet.gluon import ParameterDict

from farandole import mxnet as _others
from farandole.adapters.mxnet import NDArray
from farandole.collective import ReduceOp
from farandole.errors import UsageError
from farandole.runtime.collectives.compression import NoneCompressor
from farandole.runtime.session.process_sets import ProcessSet, global_process_set

__all__ = [
    "allgather",
    "allreduce",
    "allreduce_",
    "alltoall",
    "broadcast",
    "broadcast_",
    "broadcast_parameters",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_reducescatter",
    "reducescatter",
]


def allreduce(
    tensor: NDArray,
    average: bool | None = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: int | None = None,
) -> NDArray:
    """``farandole.mxnet.allreduce``."""
    return _others.allreduce(tensor, average, name, NoneCompressor, op, prescale_factor, postscale_factor, process_set)


def allreduce_(
    tensor: NDArray,
    average: bool | None = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: int | None = None,
) -> NDArray:
    """``farandole.mxnet.allreduce_``."""
    return _others.allreduce_(tensor, average, name, op, prescale_factor, postscale_factor, process_set)


def grouped_allreduce(
    tensors: Sequence[NDArray],
    average: bool | None = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: int | None = None,
) -> list[NDArray]:
    """``farandole.mxnet.grouped_allreduce``."""
    return _others.grouped_allreduce(
        tensors, average, name, NoneCompressor, op, prescale_factor, postscale_factor, process_set
    )


def grouped_allreduce_(
    tensors: Sequence[NDArray],
    average: bool | None = None,
    name: str | None = None,
    priority: int = 0,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    op: int | None = None,
) -> list[NDArray]:
    """``farandole.mxnet.grouped_allreduce_``."""
    return _others.grouped_allreduce_(tensors, average, name, op, prescale_factor, postscale_factor, process_set)


def reducescatter(
    tensor: NDArray,
    op: int = ReduceOp.AVERAGE,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> NDArray:
    """``farandole.mxnet.reducescatter``."""
    return _others.reducescatter(tensor, name, NoneCompressor, op, process_set, prescale_factor, postscale_factor)


def grouped_reducescatter(
    tensors: Sequence[NDArray],
    op: int = ReduceOp.AVERAGE,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[NDArray]:
    """``farandole.mxnet.grouped_reducescatter``."""
    return _others.grouped_reducescatter(
        tensors, name, NoneCompressor, op, process_set, prescale_factor, postscale_factor
    )


def allgather(
    tensor: NDArray, name: str | None = None, priority: int = 0, process_set: ProcessSet = global_process_set
) -> NDArray:
    """``farandole.mxnet.allgather``."""
    return _others.allgather(tensor, name, process_set)


def grouped_allgather(
    tensors: Sequence[NDArray], name: str | None = None, priority: int = 0, process_set: ProcessSet = global_process_set
) -> list[NDArray]:
    """``farandole.mxnet.grouped_allgather``."""
    return _others.grouped_allgather(tensors, name, process_set)


def broadcast(
    tensor: NDArray,
    root_rank: int,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> NDArray:
    """``farandole.mxnet.broadcast``."""
    return _others.broadcast(tensor, root_rank, name, process_set)


def broadcast_(
    tensor: NDArray,
    root_rank: int,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> NDArray:
    """``farandole.mxnet.broadcast_``."""
    return _others.broadcast_(tensor, root_rank, name, process_set)


def alltoall(
    tensor: NDArray,
    splits: Any = None,
    name: str | None = None,
    priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> NDArray | tuple[NDArray, NDArray]:
    """``farandole.mxnet.alltoall``."""
    return _others.alltoall(tensor, splits, name, process_set)


def broadcast_parameters(params: Any, root_rank: int = 0, prefix: str | None = None) -> None:
    """``farandole.mxnet.broadcast_parameters``; ``prefix`` has no effect, because calls do not overlap."""
    if not isinstance(params, Mapping | ParameterDict):
        raise UsageError(f"broadcast_parameters of a {type(params).__name__}: give net.collect_params(), or a dict")
    _others.broadcast_parameters(params, root_rank)


def __getattr__(name: str) -> Any:
    found = globals()[name] = getattr(_others, name)
    return found
