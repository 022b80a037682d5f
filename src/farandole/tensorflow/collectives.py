"""Collectives as differentiable functions of eager tensors and of graph tensors.

Gradients follow the rules of ``farandole.torch.autograd``: they are derivatives of the sum of the losses of all ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, TypeAlias, final

import tensorflow as tf

from farandole.adapters.tensorflow import AnyTensor, dense_tensor, placed, require_served, values_of, verbs
from farandole.collective import Kind, ReduceOp, Reduction
from farandole.errors import UnsupportedError, UsageError
from farandole.gradients.factors import DERIVATIVE, Factors, factor, require_linear
from farandole.graphs.calls import Spec
from farandole.runtime.collectives.verbs import number_of
from farandole.runtime.lanes.reduction import REDUCTIONS
from farandole.runtime.session.process_sets import ProcessSet
from farandole.tensorflow.graph import call, in_graph, traced_name
from farandole.tensorflow.topology import is_rank, members

Tensors: TypeAlias = Sequence[AnyTensor]

_SUM = Reduction(ReduceOp.SUM)


def as_tensors(values: Sequence[Any]) -> list[AnyTensor]:
    """Convert a user's arguments to tensors: tensors, variables of TensorFlow and Keras, arrays, numbers."""
    return [dense_tensor(value) for value in values]


def _recorded(function: Callable[..., Any], tensors: Tensors) -> list[AnyTensor]:
    """Call a function that returns results and their gradient function, and let the tape record it.

    Eager results are on the devices of ``tensors``, from where ``tf.custom_gradient`` may move them.
    """
    results = list(tf.custom_gradient(function)(*tensors))
    return results if in_graph() else [*map(placed, tensors, results), *results[len(tensors) :]]


def _grad_name(name: str | None) -> str | None:
    return None if name is None else f"{name}.grad"


@final
class Collectives:
    """Five collectives on lists of tensors; their gradients are the derivatives times ``factors``."""

    def __init__(self, factors: Factors = DERIVATIVE) -> None:
        self._factors = factors

    def allreduce(self, tensors: Tensors, name: str | None, how: Reduction, process_set: ProcessSet) -> list[AnyTensor]:
        """Reduce; the gradient is the same reduction of the incoming gradients."""
        if not tensors:
            return []

        def forward(*given: AnyTensor) -> Any:
            label = _named(name)

            def grad(*grads: AnyTensor) -> Any:
                require_linear(how, "allreduce")
                return self.allreduce(as_tensors(grads), _grad_name(label), how, process_set)

            if in_graph():
                spec = _reduction("allreduce", Kind.ALLREDUCE, label, given, how, process_set)
                return _put(spec, given, [t.shape for t in given]), grad
            return verbs.allreduce(given, name, how, process_set).run(), grad

        return _recorded(forward, as_tensors(tensors))

    def reducescatter(
        self, tensors: Tensors, name: str | None, how: Reduction, process_set: ProcessSet
    ) -> list[AnyTensor]:
        """Reduce and keep a share; every rank gets the gradients of all rows."""
        if not tensors:
            return []

        def forward(*given: AnyTensor) -> Any:
            label = _named(name)

            def grad(*grads: AnyTensor) -> Any:
                require_linear(how, "reducescatter")
                scale = how.prescale * how.postscale * self._factor(self._factors.reducescatter, process_set)
                if how.op is ReduceOp.AVERAGE:
                    scale = scale / tf.cast(members(process_set), tf.float64)
                gathered = self.allgather(as_tensors(grads), _grad_name(label), process_set)
                return [_times(scale, each) for each in gathered]

            if in_graph():
                spec = _reduction("reducescatter", Kind.REDUCESCATTER, label, given, how, process_set)
                return _put(spec, given, [_rows_open(t) for t in given]), grad
            return verbs.reducescatter(given, name, how, process_set).run(), grad

        return _recorded(forward, as_tensors(tensors))

    def allgather(self, tensors: Tensors, name: str | None, process_set: ProcessSet) -> list[AnyTensor]:
        """Concatenate; each rank gets the sum over ranks of the gradients of its own rows."""
        if not tensors:
            return []

        def forward(*given: AnyTensor) -> Any:
            label = _named(name)

            def grad(*grads: AnyTensor) -> Any:
                by, results = self._factor(self._factors.allgather, process_set), []
                for i, (one, tensor) in enumerate(zip(as_tensors(grads), given, strict=True)):
                    own = None if label is None else f"{label}.grad{i}"
                    counts = tf.shape(tensor)[:1] if tensor.shape.rank else tf.constant([1])
                    rows = self.allgather([counts], None if own is None else f"{own}.rows", process_set)[0]
                    back = self.alltoall(one, rows, own, process_set)[0]
                    shape = tf.concat([[-1], tf.shape(tensor)], 0)
                    results.append(_times(by, tf.reduce_sum(tf.reshape(back, shape), 0)))
                return results

            if in_graph():
                spec = _plain("allgather", Kind.ALLGATHER, label, given, process_set)
                return _put(spec, given, [_rows_open(t) for t in given]), grad
            return [tensor for tensor, _ in verbs.allgather(given, name, process_set).run()], grad

        return _recorded(forward, as_tensors(tensors))

    def broadcast(self, tensors: Tensors, root: int, name: str | None, process_set: ProcessSet) -> list[AnyTensor]:
        """Copy from the root, which gets the sum of all gradients; the other ranks get zero."""
        if not tensors:
            return [] if in_graph() else verbs.broadcast([], root, name, process_set).run()

        def forward(*given: AnyTensor) -> Any:
            label = _named(name)

            def grad(*grads: AnyTensor) -> Any:
                by = self._factor(self._factors.broadcast, process_set)
                total = self.allreduce(as_tensors(grads), _grad_name(label), _SUM, process_set)
                return [tf.where(is_rank(root), _times(by, each), tf.zeros_like(each)) for each in total]

            if in_graph():
                spec = _plain("broadcast", Kind.BROADCAST, label, given, process_set, root)
                return _put(spec, given, [t.shape for t in given]), grad
            return verbs.broadcast(given, root, name, process_set).run(), grad

        return _recorded(forward, as_tensors(tensors))

    def alltoall(
        self, tensor: AnyTensor, splits: Any, name: str | None, process_set: ProcessSet
    ) -> tuple[AnyTensor, AnyTensor]:
        """Exchange rows; gradients return to the senders. Returns the rows, and their number from each member."""
        rows: list[int] | None = None
        if splits is not None:
            with nullcontext() if in_graph() else verbs.telling(Kind.ALLTOALL, name, process_set):
                splits = tf.convert_to_tensor(splits)  # outside ``forward``: a variable inside would need a gradient
                rows = None if in_graph() else [int(n) for n in values_of(splits).reshape(-1)]

        def forward(given: AnyTensor) -> Any:
            label = _named(name)
            if in_graph():
                spec = _plain("alltoall", Kind.ALLTOALL, label, [given], process_set)
                inputs = [given] if splits is None else [given, tf.cast(splits, tf.int32)]
                shapes = [_rows_open(given), [None]]
                received, counts = call(spec.encode(), f"alltoall.{spec.name}", inputs, [given.dtype, tf.int32], shapes)
            else:
                received, numbers = verbs.alltoall(given, rows, name, process_set).run()
                counts = tf.constant(numbers, tf.int32)

            def grad(one: AnyTensor, _: object = None) -> Any:
                return self.alltoall(tf.convert_to_tensor(one), counts, _grad_name(label), process_set)[0]

            return (received, counts), grad

        received, counts = _recorded(forward, as_tensors([tensor]))
        return received, counts

    def _factor(self, power: int, process_set: ProcessSet) -> Any:
        now = factor(power, process_set, "farandole.tensorflow")
        return tf.cast(members(process_set), tf.float64) ** power if power and in_graph() else now


def _times(by: Any, tensor: AnyTensor) -> AnyTensor:
    """``tensor`` times a number or a scalar tensor."""
    return tensor if isinstance(by, float) and by == 1.0 else tensor * tf.cast(by, tensor.dtype)


def _named(name: str | None) -> str | None:
    """Name of a call; calls in a graph need one."""
    return traced_name() if name is None and in_graph() else name


def _put(spec: Spec, given: Tensors, shapes: Sequence[Any]) -> list[AnyTensor]:
    return call(spec.encode(), f"{spec.verb}.{spec.name}", given, [t.dtype for t in given], shapes)


def _rows_open(tensor: AnyTensor) -> Any:
    """The shape of ``tensor`` with any number of rows."""
    return None if tensor.shape.rank is None else [None, *tensor.shape[1:]]


def _reduction(
    verb: str, kind: Kind, name: str | None, given: Tensors, how: Reduction, process_set: ProcessSet
) -> Spec:
    with verbs.telling(kind, name or "", process_set):
        checked = how.checked()
        if checked.op not in REDUCTIONS[kind]:
            raise UnsupportedError(f"{verb} with op={checked.op.label}: use another one")
        _require_served(given)
        return Spec(verb, name or "", int(checked.op), checked.prescale, checked.postscale, number_of(process_set))


def _plain(verb: str, kind: Kind, name: str | None, given: Tensors, process_set: ProcessSet, root: int = -1) -> Spec:
    with verbs.telling(kind, name or "", process_set):
        if kind is Kind.BROADCAST and root not in process_set.ranks:
            raise UsageError(
                f"broadcast from root_rank={root!r}, but the process set holds the ranks {process_set.ranks}: "
                "the root is a global rank among them"
            )
        _require_served(given)
        return Spec(verb, name or "", process_set=number_of(process_set), root=root)


def _require_served(given: Tensors) -> None:
    for tensor in given:
        require_served(tensor.dtype)
