"""The names and signatures that Horovod's scripts rely on."""

from __future__ import annotations

import inspect

import pytest
import torch

import farandole.torch as hvd
from farandole.torch import functions, mpi_ops

REDUCED = "prescale_factor=1.0, postscale_factor=1.0, process_set"
SIGNATURES = {
    "allreduce": f"tensor, average=None, name=None, compression, op=None, {REDUCED}",
    "allreduce_async": f"tensor, average=None, name=None, op=None, {REDUCED}",
    "allreduce_": f"tensor, average=None, name=None, op=None, {REDUCED}",
    "allreduce_async_": f"tensor, average=None, name=None, op=None, {REDUCED}",
    "grouped_allreduce": f"tensors, average=None, name=None, compression, op=None, {REDUCED}",
    "grouped_allreduce_async": f"tensors, average=None, name=None, op=None, {REDUCED}",
    "grouped_allreduce_": f"tensors, average=None, name=None, op=None, {REDUCED}",
    "grouped_allreduce_async_": f"tensors, average=None, name=None, op=None, {REDUCED}",
    "sparse_allreduce_async": "tensor, name, op, process_set",
    "allgather": "tensor, name=None, process_set",
    "allgather_async": "tensor, name=None, process_set",
    "grouped_allgather": "tensors, name=None, process_set",
    "grouped_allgather_async": "tensors, name=None, process_set",
    "broadcast": "tensor, root_rank, name=None, process_set",
    "broadcast_": "tensor, root_rank, name=None, process_set",
    "broadcast_async": "tensor, root_rank, name=None, process_set",
    "broadcast_async_": "tensor, root_rank, name=None, process_set",
    "alltoall": "tensor, splits=None, name=None, process_set",
    "alltoall_async": "tensor, splits=None, name=None, process_set",
    "reducescatter": "tensor, name=None, compression, op=0, process_set, prescale_factor=1.0, postscale_factor=1.0",
    "reducescatter_async": "tensor, name=None, op=0, process_set, prescale_factor=1.0, postscale_factor=1.0",
    "grouped_reducescatter": "tensors, name=None, compression, op=0, process_set, "
    "prescale_factor=1.0, postscale_factor=1.0",
    "grouped_reducescatter_async": "tensors, name=None, op=0, process_set, prescale_factor=1.0, postscale_factor=1.0",
    "join": "device=-1",
    "barrier": "process_set",
    "poll": "handle",
    "synchronize": "handle",
    "broadcast_parameters": "params, root_rank, process_set",
    "broadcast_optimizer_state": "optimizer, root_rank, model=None, process_set",
    "broadcast_object": "obj, root_rank=0, name=None, process_set",
    "allgather_object": "obj, name=None, process_set",
    "SyncBatchNorm": "num_features, eps=1e-05, momentum=0.1, affine=True, track_running_stats=True, process_set",
    "DistributedOptimizer": "optimizer, named_parameters=None, compression, backward_passes_per_step=1, op=0, "
    "gradient_predivide_factor=1.0, num_groups=0, groups=None, sparse_as_dense=False, process_set, "
    "virtual_workers=None, shard_state=False, replicas=1",
    "start_timeline": "file_path, mark_cycles=False",
}


def written(function: object) -> str:
    """Parameters and defaults; of the two defaults that are objects, the name alone."""
    assert callable(function)
    parts = []
    for name, parameter in inspect.signature(function).parameters.items():
        if (
            parameter.default is hvd.global_process_set
            or parameter.default is hvd.Compression.none
            or parameter.default is parameter.empty
        ):
            parts.append(name)
        else:
            value = parameter.default
            parts.append(f"{name}={int(value) if isinstance(value, type(hvd.Average)) else value!r}")
    return ", ".join(parts)


def test_signatures() -> None:
    assert {name: written(getattr(hvd, name)) for name in SIGNATURES} == SIGNATURES


def test_every_name_is_there() -> None:
    for module in (hvd, mpi_ops, functions):
        assert all(hasattr(module, name) for name in module.__all__)
    assert issubclass(hvd.HorovodInternalError, RuntimeError)
    for kind in (
        "Allreduce",
        "GroupedAllreduce",
        "Allgather",
        "GroupedAllgather",
        "Broadcast",
        "Alltoall",
        "Reducescatter",
        "GroupedReducescatter",
    ):
        assert hasattr(mpi_ops, f"Horovod{kind}")


def test_before_init_it_says_so() -> None:
    for name in ("rank", "size", "local_rank", "local_size", "cross_rank", "cross_size", "join", "barrier"):
        with pytest.raises(ValueError, match=r"call init\(\) first"):
            getattr(hvd, name)()
    with pytest.raises(ValueError, match=r"call init\(\) first"):
        hvd.allreduce(torch.ones(1))
    assert not hvd.is_initialized()


def test_a_name_that_no_text_can_carry_is_refused_with_one_that_can() -> None:
    hvd.init()
    try:
        for call in (
            lambda: hvd.allreduce(torch.ones(1), name="\ud800x"),
            lambda: hvd.broadcast_object(1, 0, "\ud800x"),
        ):
            with pytest.raises(ValueError, match=r"'\\ud800x(.size)?' has half of a surrogate pair.*pass name="):
                call()
        assert hvd.allreduce(torch.ones(1), name="\\ud800x").item() == 1.0
    finally:
        hvd.shutdown()
