r"""Reductions of a few bytes: a rank's input travels with its announcement, and all inputs with the order.

    contribution(announcement.calls)               # b"\x00\x00\x80?": the four bytes of a loss
    reduce(signature, parts, announcement.calls)   # no engine: the order has brought all inputs

The control plane carries both messages anyway. MPI calls this the eager protocol. Repeated names are reduced without
the controller (``peer_lane``).
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
"""Largest contribution of a rank: the controller sends the contributions of all ranks to every rank."""


def contribution(calls: Sequence[Call]) -> bytes:
    """Bytes of the tensors of an all-reduce, concatenated; ``b""`` for other collectives and for larger tensors."""
    nbytes = 0
    for call in calls:
        nbytes += call.array.nbytes
        if nbytes > EAGER_BYTES or call.kind is not Kind.ALLREDUCE or call.array.device != "cpu":
            return b""
    return b"".join([ctypes.string_at(call.array.address, call.array.nbytes) for call in calls])


def reduce(signature: Signature, parts: Sequence[bytes], calls: Sequence[Call]) -> None:
    """Reduce the ranks' contributions, in rank order, into this rank's ``calls``: the same bits on every rank."""
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
    """Contribution of a joined rank: identity elements."""
    dtype = DType(signature.dtypes[0])
    array = identity(dtype, nbytes // dtype.itemsize, signature.how)
    return ctypes.string_at(array.address, nbytes)
