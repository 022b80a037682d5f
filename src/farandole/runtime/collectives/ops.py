"""Collectives with Horovod's signatures, once for all frameworks: functions that each framework's module exports.

    ops = NumpyOps(verbs, __name__)     # in farandole/numpy: a framework's part of it
    allreduce = ops.allreduce           # mean = hvd.allreduce(x, name="x")

Common to all: tensors are of any dtype in ``farandole.collective.DType`` and any strides. ``name`` identifies the call
across ranks; calls without a name are matched by their order in the process set. ``op`` is one of ``Average`` (the
default), ``Sum``, ``Min``, ``Max``, ``Product`` and ``Adasum``; ``average`` is its older form. Inputs are multiplied by
``prescale_factor``, results by ``postscale_factor``. ``_async`` variants return a handle for ``synchronize``, variants
with a trailing underscore work in place. They raise ``ValueError`` for invalid arguments, and ``HorovodInternalError``
for failures between ranks, on every rank of the process set.

A ``Sum`` or ``Product`` of integers without factors wraps around. An ``Average`` of integers, and any reduction of them
with a factor, is exact, truncates toward zero after each step (factor, reduction and division, factor), and saturates
at the limits of the dtype. Factors that are whole or 1/n are exact, others multiply in float64.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from farandole.collective import Kind, ReduceOp, Reduction
from farandole.runtime.collectives import basics
from farandole.runtime.collectives.compression import CompressorLike, NoneCompressor
from farandole.runtime.collectives.handles import handles
from farandole.runtime.collectives.named_broadcast import broadcast_named, named_pairs
from farandole.runtime.collectives.verbs import Verbs
from farandole.runtime.lanes.reduction import reduction
from farandole.runtime.session.process_sets import ProcessSet, global_process_set

T = TypeVar("T")


class Ops(ABC, Generic[T]):
    """Functions of one framework, the object ``ops`` in ``module``; ``kind``: class of its tensors.

    A framework passes its verbs, and overrides methods that it implements differently: the methods with a leading
    underscore are the blocking forms of the five collectives, without named arguments and variants.
    """

    def __init__(self, verbs: Verbs[T], kind: type, module: str) -> None:
        self._verbs, self._kind, self._module = verbs, kind, module

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        """Pickle by reference to ``ops`` of the module, because functions that are sent to workers refer to it."""
        return _ops_of, (self._module,)

    def allreduce(
        self,
        tensor: T,
        average: bool | None = None,
        name: str | None = None,
        compression: CompressorLike = NoneCompressor,
        op: int | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        process_set: ProcessSet = global_process_set,
    ) -> T:
        """Combine ``tensor`` over all ranks; returns a new tensor.

        >>> mean = hvd.allreduce(loss, name="loss")
        >>> total = hvd.allreduce(count, name="count", op=hvd.Sum)

        Differentiable for Sum and Average, where the framework has gradients.
        """
        how = reduction(average, op, prescale_factor, postscale_factor)
        travelling, context = compression.compress(tensor)
        result: T = compression.decompress(self._reduced([travelling], name, how, process_set)[0], context)
        return result

    def allreduce_async(
        self,
        tensor: T,
        average: bool | None = None,
        name: str | None = None,
        op: int | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        process_set: ProcessSet = global_process_set,
    ) -> int:
        """Begin an ``allreduce``: ``synchronize`` of the returned handle gives the new tensor.

        >>> handle = hvd.allreduce_async(loss, name="loss")
        >>> mean = hvd.synchronize(handle)
        """
        how = reduction(average, op, prescale_factor, postscale_factor)
        return handles.begin(self._verbs.allreduce([tensor], name, how, process_set).then(_first))

    def allreduce_(
        self,
        tensor: T,
        average: bool | None = None,
        name: str | None = None,
        op: int | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        process_set: ProcessSet = global_process_set,
    ) -> T:
        """``allreduce`` in place: ``tensor`` holds the result and is returned.

        >>> hvd.allreduce_(statistics, name="statistics", op=hvd.Sum)
        """
        how = reduction(average, op, prescale_factor, postscale_factor)
        return self._verbs.allreduce([tensor], name, how, process_set, in_place=True).run()[0]

    def allreduce_async_(
        self,
        tensor: T,
        average: bool | None = None,
        name: str | None = None,
        op: int | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        process_set: ProcessSet = global_process_set,
    ) -> int:
        """Begin an ``allreduce_``; do not touch ``tensor`` before ``synchronize`` has returned.

        >>> handles = [hvd.allreduce_async_(t, name=name) for name, t in tensors.items()]
        >>> for handle in handles:
        ...     hvd.synchronize(handle)
        """
        how = reduction(average, op, prescale_factor, postscale_factor)
        return handles.begin(self._verbs.allreduce([tensor], name, how, process_set, in_place=True).then(_first))

    def grouped_allreduce(
        self,
        tensors: Sequence[T],
        average: bool | None = None,
        name: str | None = None,
        compression: CompressorLike = NoneCompressor,
        op: int | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        process_set: ProcessSet = global_process_set,
    ) -> list[T]:
        """``allreduce`` of several tensors as one: none begins before all ranks have all of them. Dtypes may be mixed.

        >>> loss, accuracy = hvd.grouped_allreduce([loss, accuracy], name="metrics")
        """
        how = reduction(average, op, prescale_factor, postscale_factor)
        compressed = [compression.compress(t) for t in tensors]
        reduced = self._reduced([t for t, _ in compressed], name, how, process_set)
        return _decompressed(reduced, compressed, compression)

    def grouped_allreduce_async(
        self,
        tensors: Sequence[T],
        average: bool | None = None,
        name: str | None = None,
        op: int | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        process_set: ProcessSet = global_process_set,
    ) -> int:
        """Begin a ``grouped_allreduce``: ``synchronize`` gives the list of new tensors.

        >>> handle = hvd.grouped_allreduce_async([loss, accuracy], name="metrics")
        >>> loss, accuracy = hvd.synchronize(handle)
        """
        how = reduction(average, op, prescale_factor, postscale_factor)
        return handles.begin(self._verbs.allreduce(tensors, name, how, process_set))

    def grouped_allreduce_(
        self,
        tensors: Sequence[T],
        average: bool | None = None,
        name: str | None = None,
        op: int | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        process_set: ProcessSet = global_process_set,
    ) -> list[T]:
        """``grouped_allreduce`` in place.

        >>> hvd.grouped_allreduce_(gradients, name="gradients")
        """
        how = reduction(average, op, prescale_factor, postscale_factor)
        return self._verbs.allreduce(tensors, name, how, process_set, in_place=True).run()

    def grouped_allreduce_async_(
        self,
        tensors: Sequence[T],
        average: bool | None = None,
        name: str | None = None,
        op: int | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        process_set: ProcessSet = global_process_set,
    ) -> int:
        """Begin a ``grouped_allreduce_``; do not touch the tensors before ``synchronize`` has returned.

        >>> handle = hvd.grouped_allreduce_async_(tensors, name="tensors")
        >>> hvd.synchronize(handle)
        """
        how = reduction(average, op, prescale_factor, postscale_factor)
        return handles.begin(self._verbs.allreduce(tensors, name, how, process_set, in_place=True))

    def reducescatter(
        self,
        tensor: T,
        name: str | None = None,
        compression: CompressorLike = NoneCompressor,
        op: int = ReduceOp.AVERAGE,
        process_set: ProcessSet = global_process_set,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
    ) -> T:
        """Combine like ``allreduce``, and return this rank's share of dimension 0.

        >>> share = hvd.reducescatter(ones, op=hvd.Sum)     # 5 rows on 2 ranks: 3 go to rank 0, 2 to rank 1

        Differentiable for Sum and Average, where the framework has gradients.
        """
        how = reduction(None, op, prescale_factor, postscale_factor)
        travelling, context = compression.compress(tensor)
        result: T = compression.decompress(self._scattered([travelling], name, how, process_set)[0], context)
        return result

    def reducescatter_async(
        self,
        tensor: T,
        name: str | None = None,
        op: int = ReduceOp.AVERAGE,
        process_set: ProcessSet = global_process_set,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
    ) -> int:
        """Begin a ``reducescatter``: ``synchronize`` gives this rank's share.

        >>> share = hvd.synchronize(hvd.reducescatter_async(tensor, name="tensor"))
        """
        how = reduction(None, op, prescale_factor, postscale_factor)
        return handles.begin(self._verbs.reducescatter([tensor], name, how, process_set).then(_first))

    def grouped_reducescatter(
        self,
        tensors: Sequence[T],
        name: str | None = None,
        compression: CompressorLike = NoneCompressor,
        op: int = ReduceOp.AVERAGE,
        process_set: ProcessSet = global_process_set,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
    ) -> list[T]:
        """``reducescatter`` of several tensors as one.

        >>> shares = hvd.grouped_reducescatter([weights, biases], name="layer", op=hvd.Sum)
        """
        how = reduction(None, op, prescale_factor, postscale_factor)
        compressed = [compression.compress(t) for t in tensors]
        reduced = self._scattered([t for t, _ in compressed], name, how, process_set)
        return _decompressed(reduced, compressed, compression)

    def grouped_reducescatter_async(
        self,
        tensors: Sequence[T],
        name: str | None = None,
        op: int = ReduceOp.AVERAGE,
        process_set: ProcessSet = global_process_set,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
    ) -> int:
        """Begin a ``grouped_reducescatter``: ``synchronize`` gives the list of shares.

        >>> shares = hvd.synchronize(hvd.grouped_reducescatter_async([weights, biases], name="layer"))
        """
        how = reduction(None, op, prescale_factor, postscale_factor)
        return handles.begin(self._verbs.reducescatter(tensors, name, how, process_set))

    def allgather(self, tensor: T, name: str | None = None, process_set: ProcessSet = global_process_set) -> T:
        """Concatenate the tensors of all ranks along dimension 0, where their lengths may differ.

        >>> everything = hvd.allgather(mine, name="predictions")

        A scalar counts as one row. Differentiable, where the framework has gradients.
        """
        return self._gathered([tensor], name, process_set)[0]

    def allgather_async(self, tensor: T, name: str | None = None, process_set: ProcessSet = global_process_set) -> int:
        """Begin an ``allgather``: ``synchronize`` of the returned handle gives the tensor.

        >>> everything = hvd.synchronize(hvd.allgather_async(mine, name="predictions"))
        """
        return handles.begin(self._verbs.allgather([tensor], name, process_set).then(lambda results: results[0][0]))

    def grouped_allgather(
        self, tensors: Sequence[T], name: str | None = None, process_set: ProcessSet = global_process_set
    ) -> list[T]:
        """``allgather`` of several tensors as one: none begins before all ranks have all of them. Dtypes may be mixed.

        >>> predictions, labels = hvd.grouped_allgather([predictions, labels], name="evaluation")
        """
        return self._gathered(tensors, name, process_set)

    def grouped_allgather_async(
        self, tensors: Sequence[T], name: str | None = None, process_set: ProcessSet = global_process_set
    ) -> int:
        """Begin a ``grouped_allgather``: ``synchronize`` gives the list of tensors.

        >>> predictions, labels = hvd.synchronize(hvd.grouped_allgather_async([predictions, labels]))
        """
        return handles.begin(
            self._verbs.allgather(tensors, name, process_set).then(lambda results: [t for t, _ in results])
        )

    def broadcast(
        self, tensor: T, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
    ) -> T:
        """Return the ``tensor`` of the rank ``root_rank`` (a global rank, in every process set).

        >>> weights = hvd.broadcast(weights, root_rank=0)

        Differentiable, where the framework has gradients.
        """
        return self._copied(tensor, root_rank, name, process_set)

    def broadcast_async(
        self, tensor: T, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
    ) -> int:
        """Begin a ``broadcast``: ``synchronize`` gives the new tensor.

        >>> tensor = hvd.synchronize(hvd.broadcast_async(tensor, root_rank=0))
        """
        return handles.begin(self._verbs.broadcast([tensor], root_rank, name, process_set).then(_first))

    def broadcast_(
        self, tensor: T, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
    ) -> T:
        """``broadcast`` in place: ``tensor`` is overwritten on every rank but the root, and returned.

        >>> hvd.broadcast_(weights, root_rank=0)
        """
        return self._verbs.broadcast([tensor], root_rank, name, process_set, in_place=True).run()[0]

    def broadcast_async_(
        self, tensor: T, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
    ) -> int:
        """Begin a ``broadcast_``; do not touch ``tensor`` before ``synchronize`` has returned.

        >>> hvd.synchronize(hvd.broadcast_async_(weights, root_rank=0))
        """
        request = self._verbs.broadcast([tensor], root_rank, name, process_set, in_place=True)
        return handles.begin(request.then(_first))

    def alltoall(
        self,
        tensor: T,
        splits: T | Sequence[int] | None = None,
        name: str | None = None,
        process_set: ProcessSet = global_process_set,
    ) -> T | tuple[T, T]:
        """Send ``splits[i]`` rows of ``tensor`` to member ``i``, return the rows received in member order.

        >>> rows, counts = hvd.alltoall(tensor, splits=[1, 2])      # 3 rows on 2 ranks: 1 goes to rank 0, 2 to rank 1

        Without ``splits`` dimension 0 is cut evenly, and only the rows are returned; with ``splits``, also their number
        from each member (int32). Differentiable, where the framework has gradients.
        """
        rows = self._rows(splits, name, process_set)
        received, counts = self._exchanged(tensor, rows, name, process_set)
        return received if rows is None else (received, self._counts(counts))

    def alltoall_async(
        self,
        tensor: T,
        splits: T | Sequence[int] | None = None,
        name: str | None = None,
        process_set: ProcessSet = global_process_set,
    ) -> int:
        """Begin an ``alltoall``: ``synchronize`` gives what it returns.

        >>> rows, counts = hvd.synchronize(hvd.alltoall_async(tensor, splits=[1, 2]))
        """
        rows = self._rows(splits, name, process_set)
        request = self._verbs.alltoall(tensor, rows, name, process_set)
        return handles.begin(request.then(lambda got: got[0] if rows is None else (got[0], self._counts(got[1]))))

    def broadcast_parameters(
        self,
        params: Mapping[str, T] | Iterable[tuple[str, T] | T],
        root_rank: int,
        process_set: ProcessSet = global_process_set,
    ) -> Any:
        """Overwrite tensors with those of the rank ``root_rank``; if tensors are immutable, return new ones.

        >>> hvd.broadcast_parameters(model.state_dict(), root_rank=0)

        ``params`` maps names to tensors, or is a list of tensors or (name, tensor) pairs, like ``parameters()`` and
        ``named_parameters()`` of a model. All ranks of ``process_set`` give the same names.
        """
        return self._shared(params, root_rank, process_set)

    def _shared(self, params: Any, root_rank: int, process_set: ProcessSet) -> Any:
        broadcast_named(self._verbs, self._kind, named_pairs(params), root_rank, process_set, in_place=True)

    def _rows(self, splits: Any, name: str | None, process_set: ProcessSet) -> tuple[int, ...] | None:
        """``splits`` as numbers; errors in them are sent to the other members."""
        if splits is None:
            return None
        with self._verbs.telling(Kind.ALLTOALL, name, process_set):
            return tuple(map(int, self._listed(splits)))

    def _reduced(self, tensors: Sequence[T], name: str | None, how: Reduction, process_set: ProcessSet) -> list[T]:
        return self._verbs.allreduce(tensors, name, how, process_set).run()

    def _scattered(self, tensors: Sequence[T], name: str | None, how: Reduction, process_set: ProcessSet) -> list[T]:
        return self._verbs.reducescatter(tensors, name, how, process_set).run()

    def _gathered(self, tensors: Sequence[T], name: str | None, process_set: ProcessSet) -> list[T]:
        return [tensor for tensor, _ in self._verbs.allgather(tensors, name, process_set).run()]

    def _copied(self, tensor: T, root: int, name: str | None, process_set: ProcessSet) -> T:
        return self._verbs.broadcast([tensor], root, name, process_set).run()[0]

    def _exchanged(
        self, tensor: T, rows: tuple[int, ...] | None, name: str | None, process_set: ProcessSet
    ) -> tuple[T, tuple[int, ...]]:
        return self._verbs.alltoall(tensor, rows, name, process_set).run()

    def _listed(self, splits: Any) -> Iterable[Any]:
        """Numbers of rows, from the tensor or the sequence of a user."""
        listed: Iterable[Any] = splits.tolist() if hasattr(splits, "tolist") else splits
        return listed

    @abstractmethod
    def _counts(self, counts: tuple[int, ...]) -> T:
        """Numbers of rows as a tensor of int32."""


PUBLIC = (*basics.__all__, *(name for name in vars(Ops) if not name.startswith("_")), "Compression", "join")
"""Names that every framework's module exports; ``join`` is in ``gradients``, because it serves optimizers, too."""


def _ops_of(module: str) -> Any:
    return importlib.import_module(module).ops


def _first(results: list[T]) -> T:
    return results[0]


def _decompressed(tensors: Sequence[T], compressed: list[tuple[T, Any]], compression: CompressorLike) -> list[T]:
    return [compression.decompress(t, context) for t, (_, context) in zip(tensors, compressed, strict=True)]
