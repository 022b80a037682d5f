"""Functions of ``farandole.tensorflow``, with the signatures of ``horovod.tensorflow``.

ops = TensorFlowOps(__name__)
mean = ops.allreduce(loss, name="loss")
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast, final

import tensorflow as tf

from farandole.adapters.tensorflow import AnyTensor, is_variable, verbs
from farandole.collective import ReduceOp, Reduction
from farandole.errors import UnsupportedError
from farandole.gradients.factors import DERIVATIVE, HOROVOD, Factors
from farandole.runtime.collectives.compression import CompressorLike, NoneCompressor
from farandole.runtime.collectives.ops import Ops
from farandole.runtime.lanes.reduction import reduction
from farandole.runtime.session.process_sets import ProcessSet, global_process_set
from farandole.tensorflow.collectives import Collectives, as_tensors
from farandole.tensorflow.graph import as_written, in_graph, in_session_graph, traced_name
from farandole.tensorflow.topology import members


@final
class TensorFlowOps(Ops[AnyTensor]):
    """Functions of ``farandole.tensorflow``; in graphs only those without ``_async`` or ``_``."""

    def __init__(self, module: str, factors: Factors = DERIVATIVE) -> None:
        super().__init__(cast("Any", verbs), tf.Variable, module)
        self.collectives = Collectives(factors)
        self._divides_integers = factors is HOROVOD  # for averages of integer ``tf.IndexedSlices``; otherwise truncated

    @as_written
    def allreduce(  # type: ignore[override]
        self,
        tensor: AnyTensor,
        average: bool | None = None,
        device_dense: str = "",
        device_sparse: str = "",
        compression: CompressorLike = NoneCompressor,
        op: int | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        name: str | None = None,
        process_set: ProcessSet = global_process_set,
        ignore_name_scope: bool = False,
    ) -> AnyTensor:
        """Reduce ``tensor`` over all ranks; returns a new tensor.

        >>> mean = hvd.allreduce(loss, name="loss")
        >>> total = hvd.allreduce(count, name="count", op=hvd.Sum)

        Differentiable for Sum and Average. ``tf.IndexedSlices`` are gathered (Sum and Average). ``device_dense``,
        ``device_sparse`` and ``ignore_name_scope`` have no effect: engines find devices, and names have no scope.
        """
        how = reduction(average, op, prescale_factor, postscale_factor)
        if isinstance(tensor, tf.IndexedSlices):
            return self._slices(tensor, name, how, compression, process_set)
        travelling, context = compression.compress(as_tensors([tensor])[0])
        return compression.decompress(self._reduced([travelling], name, how, process_set)[0], context)

    @as_written
    def grouped_allreduce(  # type: ignore[override]
        self,
        tensors: Sequence[AnyTensor],
        average: bool | None = None,
        device_dense: str = "",
        device_sparse: str = "",
        compression: CompressorLike = NoneCompressor,
        op: int | None = None,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        process_set: ProcessSet = global_process_set,
        ignore_name_scope: bool = False,
        name: str | None = None,
    ) -> list[AnyTensor]:
        """``allreduce`` of several tensors as one: begins when all ranks have all of them. Dtypes may be mixed.

        >>> loss, accuracy = hvd.grouped_allreduce([loss, accuracy], name="metrics")
        """
        how = reduction(average, op, prescale_factor, postscale_factor)
        label = traced_name() if name is None and in_graph() else name
        results: dict[int, AnyTensor] = {}
        for i, tensor in enumerate(tensors):
            if isinstance(tensor, tf.IndexedSlices):
                own = None if label is None else f"{label}.{i}"
                results[i] = self._slices(tensor, own, how, compression, process_set)
        dense = [i for i in range(len(tensors)) if i not in results]
        compressed = [compression.compress(tensor) for tensor in as_tensors([tensors[i] for i in dense])]
        reduced = self._reduced([t for t, _ in compressed], label, how, process_set)
        for i, tensor, (_, context) in zip(dense, reduced, compressed, strict=True):
            results[i] = compression.decompress(tensor, context)
        return [results[i] for i in range(len(tensors))]

    @as_written
    def reducescatter(  # type: ignore[override]
        self,
        tensor: AnyTensor,
        device_dense: str = "",
        compression: CompressorLike = NoneCompressor,
        op: int = ReduceOp.AVERAGE,
        name: str | None = None,
        process_set: ProcessSet = global_process_set,
        ignore_name_scope: bool = False,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
    ) -> AnyTensor:
        """Reduce like ``allreduce``, and return this rank's share of dimension 0.

        >>> share = hvd.reducescatter(ones, op=hvd.Sum)     # 5 rows on 2 ranks: 3 go to rank 0, 2 to rank 1
        """
        return self.grouped_reducescatter(
            [tensor], device_dense, compression, op, process_set, prescale_factor, postscale_factor, name
        )[0]

    @as_written
    def grouped_reducescatter(  # type: ignore[override]
        self,
        tensors: Sequence[AnyTensor],
        device_dense: str = "",
        compression: CompressorLike = NoneCompressor,
        op: int = ReduceOp.AVERAGE,
        process_set: ProcessSet = global_process_set,
        prescale_factor: float = 1.0,
        postscale_factor: float = 1.0,
        name: str | None = None,
    ) -> list[AnyTensor]:
        """``reducescatter`` of several tensors as one.

        >>> shares = hvd.grouped_reducescatter([weights, biases], name="layer", op=hvd.Sum)
        """
        how = reduction(None, op, prescale_factor, postscale_factor)
        compressed = [compression.compress(tensor) for tensor in as_tensors(tensors)]
        reduced = self._scattered([t for t, _ in compressed], name, how, process_set)
        return [compression.decompress(t, context) for t, (_, context) in zip(reduced, compressed, strict=True)]

    @as_written
    def allgather(  # type: ignore[override]
        self,
        tensor: AnyTensor,
        name: str | None = None,
        ignore_name_scope: bool = False,
        process_set: ProcessSet = global_process_set,
    ) -> AnyTensor:
        """Concatenate the tensors of all ranks along dimension 0, in which their lengths may differ.

        >>> everything = hvd.allgather(mine, name="predictions")
        """
        return self._gathered([tensor], name, process_set)[0]

    @as_written
    def grouped_allgather(  # type: ignore[override]
        self,
        tensors: Sequence[AnyTensor],
        name: str | None = None,
        ignore_name_scope: bool = False,
        process_set: ProcessSet = global_process_set,
    ) -> list[AnyTensor]:
        """``allgather`` of several tensors as one: begins when all ranks have all of them.

        >>> predictions, labels = hvd.grouped_allgather([predictions, labels], name="evaluation")
        """
        return self._gathered(tensors, name, process_set)

    @as_written
    def broadcast(  # type: ignore[override]
        self,
        tensor: AnyTensor,
        root_rank: int,
        name: str | None = None,
        ignore_name_scope: bool = False,
        process_set: ProcessSet = global_process_set,
    ) -> AnyTensor:
        """Return the ``tensor`` of the rank ``root_rank`` (a global rank, for every process set).

        >>> weights = hvd.broadcast(weights, root_rank=0)
        """
        return self._copied(tensor, root_rank, name, process_set)

    @as_written
    def broadcast_(
        self,
        tensor: AnyTensor,
        root_rank: int,
        name: str | None = None,
        process_set: ProcessSet = global_process_set,
    ) -> AnyTensor:
        """``broadcast`` in place, of a variable or a list of variables; returns the argument.

        >>> hvd.broadcast_(model.variables, root_rank=0)

        In a TensorFlow 1 graph, returns tensors to run, which have the new values.
        """
        is_one = not isinstance(tensor, list | tuple)
        if is_one and not (in_graph() and is_variable(tensor)):
            return super().broadcast_(tensor, root_rank, name, process_set)
        variables = [tensor] if is_one else tensor
        copied = self.collectives.broadcast(as_tensors(variables), root_rank, name, process_set)
        assigned = [variable.assign(value) for variable, value in zip(variables, copied, strict=True)]
        found = [tf.convert_to_tensor(each) for each in assigned] if in_session_graph() else variables
        return found[0] if is_one else found

    @as_written
    def alltoall(  # type: ignore[override]
        self,
        tensor: AnyTensor,
        splits: AnyTensor | Sequence[int] | None = None,
        name: str | None = None,
        ignore_name_scope: bool = False,
        process_set: ProcessSet = global_process_set,
    ) -> AnyTensor | tuple[AnyTensor, AnyTensor]:
        """Send ``splits[i]`` rows of ``tensor`` to member ``i``; return the received rows in member order.

        >>> rows, counts = hvd.alltoall(tensor, splits=[1, 2])      # 3 rows on 2 ranks: 1 goes to rank 0, 2 to rank 1

        Without ``splits`` dimension 0 is cut evenly, and only the rows are returned; with ``splits``, also the numbers
        of rows from each member (int32).
        """
        received, counts = self.collectives.alltoall(tensor, splits, name, process_set)
        return received if splits is None else (received, counts)

    def _slices(
        self, slices: Any, name: str | None, how: Reduction, compression: CompressorLike, process_set: ProcessSet
    ) -> Any:
        checked = how.checked()
        if checked.op not in (ReduceOp.SUM, ReduceOp.AVERAGE):
            raise UnsupportedError(f"allreduce of tf.IndexedSlices with op={checked.op.label}: take Sum or Average")
        factor: Any = checked.prescale * checked.postscale
        if checked.op is ReduceOp.AVERAGE:
            factor = factor / tf.cast(members(process_set), tf.float64)
        travelling, context = compression.compress(slices.values)
        # Two calls and no group: a rank's values must not wait for another rank's indices.
        values = self._gathered([travelling], None if name is None else f"{name}.values", process_set)[0]
        indices = self._gathered([slices.indices], None if name is None else f"{name}.indices", process_set)[0]
        values = compression.decompress(values, context)
        if not values.dtype.is_integer or (isinstance(factor, float) and factor.is_integer()):
            scaled = values * tf.cast(factor, values.dtype)
        else:
            exact = tf.cast(values, tf.float64) * tf.cast(factor, tf.float64)
            horovods = tf.float64 if values.dtype.size >= 4 else tf.float32  # TensorFlow's result dtype of a division
            scaled = tf.cast(exact, horovods if self._divides_integers else values.dtype)
        return tf.IndexedSlices(scaled, indices, slices.dense_shape)

    def _reduced(
        self, tensors: Sequence[AnyTensor], name: str | None, how: Reduction, process_set: ProcessSet
    ) -> list[AnyTensor]:
        return self.collectives.allreduce(tensors, name, how, process_set)

    def _scattered(
        self, tensors: Sequence[AnyTensor], name: str | None, how: Reduction, process_set: ProcessSet
    ) -> list[AnyTensor]:
        return self.collectives.reducescatter(tensors, name, how, process_set)

    def _gathered(self, tensors: Sequence[AnyTensor], name: str | None, process_set: ProcessSet) -> list[AnyTensor]:
        return self.collectives.allgather(tensors, name, process_set)

    def _copied(self, tensor: AnyTensor, root: int, name: str | None, process_set: ProcessSet) -> AnyTensor:
        return self.collectives.broadcast([tensor], root, name, process_set)[0]

    def _counts(self, counts: tuple[int, ...]) -> AnyTensor:
        return tf.constant(counts, tf.int32)
