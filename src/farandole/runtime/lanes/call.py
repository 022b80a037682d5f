"""Calls and handles: a collective as a framework's adapter passes it to the runtime, and its results.

An adapter turns tensors into ``Array``s; the runtime never sees a tensor:

    handle = session.submit([Call(Kind.ALLREDUCE, "loss", array, shape=(), how=Reduction())])
    handle.wait()
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Protocol, TypeAlias, final

from farandole.collective import Array, Kind, ReduceOp, Reduction
from farandole.errors import UnsupportedError

Allocate: TypeAlias = Callable[[tuple[int, ...]], Array]
"""Allocates the output of a collective, whose shape is known once all ranks are ready; runs in the executing thread."""


_SUM = Reduction(ReduceOp.SUM)


@final
@dataclass(slots=True)
class Call:
    """One collective as one rank requests it.

    ``array`` is the contribution; ALLREDUCE and BROADCAST write their result into it (adapters clone for out-of-place
    calls). ALLGATHER, ALLTOALL and REDUCESCATTER call ``allocate`` with the output's shape. ``shape`` is the tensor's.
    ``root`` is a global rank. ``splits`` are rows of dimension 0 for each member (ALLTOALL). AVERAGE divides by the
    size of the set.
    """

    kind: Kind
    name: str
    array: Array
    shape: tuple[int, ...]
    process_set: int = 0
    how: Reduction = _SUM
    root: int = -1
    splits: tuple[int, ...] = ()
    allocate: Allocate | None = None


def require_device(call: Call, engine: str, served: Collection[str]) -> None:
    """Raise ``UnsupportedError`` if the tensor is on a device that ``engine`` does not serve."""
    device = call.array.device
    if device.partition(":")[0] not in served:
        raise UnsupportedError(
            f"{call.name}: the tensor is on {device}, and the engine {engine!r} serves "
            f"{' and '.join(sorted(served))} tensors: move it first, tensor.cpu()"
        )
    if call.how.op == ReduceOp.ADASUM and device != "cpu":
        raise UnsupportedError(f"{call.name}: Adasum of a tensor on {device} does not exist: pass tensor.cpu()")


@final
@dataclass(slots=True)
class CallResult:
    """Result of one call: the output, its shape, and (ALLGATHER, ALLTOALL) the rows received from each member.

    ``value`` is the result of a collective without tensors: the number of a new process set, the rank that joined last.
    """

    array: Array | None = None
    shape: tuple[int, ...] = ()
    received_splits: tuple[int, ...] = ()
    value: int = -1


class Handle(Protocol):
    """A collective in flight."""

    def done(self) -> bool:
        """True once ``wait`` would return or raise at once."""

    def when_done(self, observer: Callable[[], None]) -> None:
        """Call ``observer`` once, when done: at once, or in another thread, which holds locks: it must not block."""

    def wait(self) -> list[CallResult]:
        """Block until it is done; returns one result per call. Raises the ``CollectiveError`` that ended it."""
