"""Other backends beside Farandole in one process group: ``init_process_group("cpu:farandole,cuda:nccl")``.

    @routed
    class Group(dist.ProcessGroup): ...         # its verbs call the backend that is configured for the tensors' device

With a process group written in Python, PyTorch does not make the other backends. So this module makes each one when a
collective first gets a tensor of its device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from farandole.errors import UnsupportedError

C = TypeVar("C", bound=type)

OURS = "farandole"
VERBS = (
    "allreduce", "allreduce_coalesced", "reduce", "reduce_scatter_single", "reduce_scatter_single_coalesced",
    "reduce_scatter", "broadcast", "all_gather_single", "all_gather_single_coalesced", "allgather",
    "allgather_coalesced", "gather", "scatter", "all_to_all_single", "alltoall", "send", "recv", "recv_anysource",
    "_allgather_base", "allgather_into_tensor_coalesced", "_reduce_scatter_base", "reduce_scatter_tensor_coalesced",
    "alltoall_base",
)  # fmt: skip
"""Verbs that take tensors, under their names in all versions of PyTorch."""


def routed(cls: C) -> C:
    """Class decorator that dispatches verbs by the device of their tensors."""
    for name in VERBS:
        setattr(cls, name, _by_device(name, getattr(cls, name)))
    return cls


def _by_device(name: str, verb: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(verb)
    def call(group: Any, *given: Any, **more: Any) -> Any:
        others = group.others
        if others:
            device = _device(given)
            if device is not None and device.type in others:
                return getattr(_made(group, device), name)(*given, **more)
        return verb(group, *given, **more)

    return call


def backends_of(group: Any) -> dict[str, Any]:
    """Names of the configured backends by device type, without Farandole; each is made at first use."""
    told: str = dist.distributed_c10d._world.pg_backend_config.get(group, "")
    pairs = (each.partition(":") for each in told.split(",") if ":" in each)
    return {device: backend for device, _, backend in pairs if backend.lower() != OURS}


def _made(group: Any, device: torch.device) -> Any:
    """Group of another backend for one device, made if needed."""
    found = group.others[device.type]
    if isinstance(found, str):
        found = group.others[device.type] = _make(found, group, device)
    return found


def _make(backend: str, group: Any, device: torch.device) -> Any:
    c10d: Any = dist
    store = c10d.PrefixStore(f"{device.type}/", group.get_group_store())
    rank, size = group.rank(), group.size()
    whole = c10d.ProcessGroup(store, rank, size)
    kinds = c10d.ProcessGroup.BackendType
    if backend == "nccl":
        made, kind = c10d.ProcessGroupNCCL(store, rank, size, c10d.ProcessGroupNCCL.Options()), kinds.NCCL
    elif backend == "gloo":
        made, kind = c10d.ProcessGroupGloo(store, rank, size), kinds.GLOO
    else:
        raise UnsupportedError(f"{device.type}:{backend} beside {OURS} in one group: use nccl or gloo there")
    whole._set_default_backend(kind)
    whole._register_backend(torch.device(device.type), kind, made)
    return whole


def _device(given: Iterable[Any]) -> torch.device | None:
    """The device of the first tensor in nested lists."""
    for each in given:
        if isinstance(each, torch.Tensor):
            return each.device
        if isinstance(each, list | tuple) and (found := _device(each)) is not None:
            return found
    return None
