"""Collectives of Python objects, which are pickled, with a 64-bit size before the bytes.

    config = broadcast_object(config, root_rank=0)
    losses = allgather_object(loss)

Only bytes from the data plane of a job are unpickled; all its members have authenticated with the job's key.
"""

from __future__ import annotations

import ctypes
import pickle
import struct
from collections.abc import Iterator
from typing import Any, TypeAlias, final

import cloudpickle

from farandole.collective import Array, DType, Kind
from farandole.errors import UsageError
from farandole.runtime.collectives.adapter import Adapter
from farandole.runtime.collectives.verbs import Verbs
from farandole.runtime.session.process_sets import ProcessSet, global_process_set

Buffer: TypeAlias = "ctypes.Array[ctypes.c_char]"

_SIZE = struct.Struct("<q")


@final
class BufferAdapter(Adapter["Buffer"]):
    """Plain bytes as tensors of uint8."""

    def array(self, tensor: Buffer) -> Array:
        """See ``Adapter``."""
        return Array(ctypes.addressof(tensor), len(tensor), DType.UINT8, tensor)

    def shape(self, tensor: Buffer) -> tuple[int, ...]:
        """See ``Adapter``."""
        return (len(tensor),)

    def dense(self, tensor: Buffer) -> Buffer:
        """See ``Adapter``."""
        return tensor

    def clone(self, tensor: Buffer) -> Buffer:
        """See ``Adapter``."""
        return type(tensor).from_buffer_copy(tensor)

    def empty(self, shape: tuple[int, ...], like: Buffer) -> Buffer:
        """See ``Adapter``."""
        return (ctypes.c_char * shape[0])()

    def assign(self, target: Buffer, source: Buffer) -> None:
        """See ``Adapter``."""
        ctypes.memmove(target, source, len(source))

    def written(self, tensor: Buffer) -> None:
        """See ``Adapter``; nothing to do."""


_verbs: Verbs[Buffer] = Verbs(BufferAdapter())


def broadcast_object(
    obj: Any, root_rank: int = 0, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Any:
    """Return on every member the ``obj`` of the global rank ``root_rank``: anything that cloudpickle can pickle.

    >>> config = hvd.broadcast_object(config, root_rank=0)
    """
    name = name or "broadcast_object"
    is_root = process_set.ranks[process_set.rank() or 0] == root_rank if process_set.included() else False
    with _verbs.telling(Kind.BROADCAST, f"{name}.size", process_set):
        payload = _pickled(obj, "broadcast_object") if is_root else _buffer(b"")
    size = _buffer(_SIZE.pack(len(payload)))
    _verbs.broadcast([size], root_rank, f"{name}.size", process_set, in_place=True).run()
    if not is_root:
        payload = (ctypes.c_char * _SIZE.unpack(size.raw)[0])()
    _verbs.broadcast([payload], root_rank, f"{name}.bytes", process_set, in_place=True).run()
    return obj if is_root else pickle.loads(payload.raw)  # noqa: S301 (from a member of this job)


def allgather_object(obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set) -> list[Any]:
    """Return on every member the list of all members' ``obj``, in member order.

    >>> slowest = max(hvd.allgather_object(seconds))
    """
    name = name or "allgather_object"
    with _verbs.telling(Kind.ALLGATHER, name, process_set):
        payload = _pickled(obj, "allgather_object")
    [(every, sizes)] = _verbs.allgather([payload], name, process_set).run()
    return [pickle.loads(part) for part in _cut(every, sizes)]  # noqa: S301 (from members of this job)


def _pickled(obj: Any, verb: str) -> Buffer:
    try:
        return _buffer(cloudpickle.dumps(obj))
    except Exception as error:  # pickling calls methods of the user's classes, which raise anything
        kind = type(obj).__name__
        raise UsageError(f"{verb}() of a {kind}: it cannot be pickled ({type(error).__name__}: {error})") from error


def _buffer(content: bytes) -> Buffer:
    return (ctypes.c_char * len(content)).from_buffer_copy(content)


def _cut(every: Buffer, sizes: tuple[int, ...]) -> Iterator[memoryview]:
    view = memoryview(every.raw)
    start = 0
    for size in sizes:
        yield view[start : start + size]
        start += size
