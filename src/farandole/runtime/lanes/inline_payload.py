r"""Reductions of a few bytes: what a rank contributes travels with its announcement, and everybody's with the order.

    contribution(announcement.calls)               # b"\x00\x00\x80?": the four bytes of a loss
    reduce(signature, parts, announcement.calls)   # no engine: the ranks have met already

The control plane carries both messages anyway. MPI calls this the eager protocol. Names that come again and again
travel without the controller (``peer_lane``).
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

from farandole.collective import DType, Kind, ReduceOp
from farandole.control.messages import Signature
from farandole.native import core
from farandole.runtime.lanes.call import Call
from farandole.runtime.lanes.packing import identity

EAGER_BYTES = 64
"""The most that a rank contributes this way: the controller sends every rank what all have contributed."""


def contribution(calls: Sequence[Call]) -> bytes:
    """The tensors of an all-reduce, one after the other; ``b""`` for other collectives, and for what is not small."""
    nbytes = 0
    for call in calls:
        nbytes += call.array.nbytes
        if nbytes > EAGER_BYTES or call.kind is not Kind.ALLREDUCE or call.array.device != "cpu":
            return b""
    return b"".join([ctypes.string_at(call.array.address, call.array.nbytes) for call in calls])


def reduce(signature: Signature, parts: Sequence[bytes], calls: Sequence[Call]) -> None:
    """Reduce what the ranks have contributed into this rank's ``calls``, in their order: the same bits for all."""
    length = max(map(len, parts))
    if b"" in parts:
        parts = [part or _nothing(signature, length) for part in parts]
    memory = ctypes.create_string_buffer(b"".join(parts), length * len(parts))
    address, end = ctypes.addressof(memory), ctypes.addressof(memory) + len(memory)
    divisor = len(parts) if signature.op == ReduceOp.AVERAGE else 1
    for call in calls:
        array = call.array
        core.reduce(
            list(range(address, end, length)), array.address, array.count, signature.dtypes[0], signature.op,
            signature.prescale, signature.postscale, divisor,
        )  # fmt: skip
        address += array.nbytes


def _nothing(signature: Signature, nbytes: int) -> bytes:
    """Contribution of a rank that has joined: elements that change nothing."""
    dtype = DType(signature.dtypes[0])
    array = identity(dtype, nbytes // dtype.itemsize, signature.how)
    return ctypes.string_at(array.address, nbytes)
