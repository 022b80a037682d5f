"""Distributed optimizers of ``tf.compat.v1``, and of Keras (through ``farandole.keras``).

optimizer = hvd.DistributedOptimizer(tf.compat.v1.train.AdagradOptimizer(0.01))
train = optimizer.minimize(loss, global_step=step)
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Sequence
from typing import Any, final

import tensorflow as tf

from farandole.collective import ReduceOp
from farandole.errors import UnsupportedError, UsageError
from farandole.gradients.reduction_options import checked_passes
from farandole.runtime.collectives.compression import CompressorLike
from farandole.runtime.session.process_sets import ProcessSet, global_process_set
from farandole.tensorflow.compression import Compression
from farandole.tensorflow.gradients import Asked, reduce_but, variable_id
from farandole.tensorflow.graph import as_written
from farandole.tensorflow.topology import session_op


@final
class LocalSums:
    """Local sums of the gradients of ``passes`` passes over one list of variables.

    A new session resets them, because its ranks may be new, or have made other numbers of passes.
    """

    def __init__(self, passes: int, average: bool) -> None:
        self._passes, self._average = passes, average
        self._sums: list[Any] = []  # one for each variable, ``None`` until the variable has a gradient
        self._count: Any = None
        self._session: Any = None

    def add(self, gradients: Sequence[Any]) -> list[Any]:
        """Add the gradients of one pass; returns the sums, or means, so far."""
        dense = [None if g is None else tf.convert_to_tensor(g) for g in gradients]
        with tf.init_scope():
            if self._count is None:
                self._count, self._session = _variable([], tf.int64), _variable([], tf.int32)
                self._sums = [None] * len(dense)
            for i, gradient in enumerate(dense):
                if gradient is not None and self._sums[i] is None:
                    self._sums[i] = _variable(gradient.shape, gradient.dtype)
        session = session_op()

        def begin_anew() -> Any:
            assigned = [self._session.assign(session), self._count.assign(tf.zeros_like(self._count)), self.clear()]
            with tf.control_dependencies([tf.group(each) for each in assigned if each is not None]):
                return tf.constant(True)

        # Reset once in a session, not in each pass: that would copy sums of the model's size.
        is_begun = tf.cond(tf.equal(self._session.read_value(), session), lambda: tf.constant(False), begin_anew)
        with tf.control_dependencies([is_begun]):
            added = [tf.group(self._count.assign_add(tf.ones_like(self._count)))]
            added += [tf.group(s.assign_add(g)) for s, g in zip(self._sums, dense, strict=True) if g is not None]
        with tf.control_dependencies(added):
            factor = 1.0 / self._passes if self._average else 1.0
            return [None if s is None else s.read_value() * tf.cast(factor, s.dtype) for s in self._sums]

    @property
    def is_last(self) -> Any:
        """Tensor, true in the pass that makes a step. Must be read after the addition."""
        return tf.equal(self._count.read_value() % self._passes, 0)

    def clear(self) -> Any:
        """Reset the sums to zero."""
        return tf.group(*(tf.group(s.assign(tf.zeros_like(s))) for s in self._sums if s is not None))


def _variable(shape: Any, dtype: Any) -> Any:
    return tf.compat.v1.Variable(
        tf.zeros(shape, dtype), trainable=False, use_resource=True, name="farandole_sum",
        collections=[tf.compat.v1.GraphKeys.LOCAL_VARIABLES],
    )  # fmt: skip


@final
class DistributedV1Optimizer(tf.compat.v1.train.Optimizer):  # type: ignore[misc]
    """Optimizer of ``tf.compat.v1`` that steps with the gradients of all ranks."""

    def __init__(self, optimizer: Any, name: str, use_locking: bool, asked: Asked, passes: int, average: bool) -> None:
        super().__init__(name=name, use_locking=use_locking)
        self._optimizer, self._asked, self._passes, self._average = optimizer, asked, passes, average
        # Keeps the variables alive, so that no ``id`` is reused.
        self._sums: dict[tuple[int, ...], tuple[LocalSums, list[Any]]] = {}
        self._latest: LocalSums | None = None
        self._local: list[int] = []

    def register_local_var(self, var: Any) -> None:
        """Exclude the gradient of a variable from the reduction."""
        self._local.append(variable_id(var))

    @as_written
    def compute_gradients(self, *args: Any, **kwargs: Any) -> list[tuple[Any, Any]]:
        """Reduced gradients and their variables; takes the optimizer's arguments."""
        pairs = self._optimizer.compute_gradients(*args, **kwargs)
        gradients, variables = [g for g, _ in pairs], [v for _, v in pairs]
        if self._passes == 1:
            return list(zip(self._reduced(gradients, variables), variables, strict=True))
        self._latest = sums = self._sums_of(variables)
        summed = sums.add(gradients)
        present = [i for i, each in enumerate(summed) if each is not None]

        def reduced() -> list[Any]:
            return self._reduced([summed[i] for i in present], [variables[i] for i in present])

        with tf.control_dependencies([summed[i] for i in present]):
            found = tf.cond(sums.is_last, reduced, lambda: [tf.identity(summed[i]) for i in present])
        for i, gradient in zip(present, found, strict=True):
            summed[i] = gradient
        return list(zip(summed, variables, strict=True))

    @as_written
    def apply_gradients(self, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
        """Make a step in the last pass of an accumulation; takes the optimizer's arguments."""
        pairs = list(grads_and_vars)
        if self._passes == 1:
            return self._optimizer.apply_gradients(pairs, *args, **kwargs)
        known = self._sums.get(tuple(variable_id(variable) for _, variable in pairs))
        sums = self._latest if known is None else known[0]
        if sums is None:
            raise UsageError("apply_gradients() before compute_gradients(), which counts the passes of a step")

        def step() -> Any:
            applied = self._optimizer.apply_gradients(pairs, *args, **kwargs)
            with tf.control_dependencies([] if applied is None else [applied]):
                cleared = sums.clear()
            with tf.control_dependencies([] if cleared is None else [cleared]):
                return tf.constant(True)

        with tf.control_dependencies([gradient for gradient, _ in pairs if gradient is not None]):
            return tf.group(tf.cond(sums.is_last, step, lambda: tf.constant(False)))

    def _sums_of(self, variables: list[Any]) -> LocalSums:
        """Sums for these variables; each list of variables counts its own passes."""
        key = tuple(map(variable_id, variables))
        if key not in self._sums:
            self._sums[key] = LocalSums(self._passes, self._average), variables
        return self._sums[key][0]

    def get_slot(self, *args: Any, **kwargs: Any) -> Any:
        """See ``tf.compat.v1.train.Optimizer``."""
        return self._optimizer.get_slot(*args, **kwargs)

    def get_slot_names(self, *args: Any, **kwargs: Any) -> Any:
        """See ``tf.compat.v1.train.Optimizer``."""
        return self._optimizer.get_slot_names(*args, **kwargs)

    def variables(self) -> Any:
        """See ``tf.compat.v1.train.Optimizer``."""
        return self._optimizer.variables()

    def _reduced(self, gradients: list[Any], variables: list[Any]) -> list[Any]:
        return reduce_but(gradients, variables, self._asked, self._local)


def DistributedOptimizer(  # noqa: N802 (used like a class)
    optimizer: Any,
    name: str | None = None,
    use_locking: bool = False,
    device_dense: str = "",  # noqa: ARG001 (Horovod's)
    device_sparse: str = "",  # noqa: ARG001
    compression: CompressorLike = Compression.none,
    sparse_as_dense: bool = False,
    backward_passes_per_step: int = 1,
    op: int = ReduceOp.AVERAGE,
    gradient_predivide_factor: float = 1.0,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """Optimizer that steps with the average of all ranks' gradients, of ``tf.compat.v1`` or of Keras.

    >>> optimizer = hvd.DistributedOptimizer(tf.compat.v1.train.MomentumOptimizer(0.1, 0.9))
    >>> train = optimizer.minimize(loss, global_step=step)

    ``backward_passes_per_step``: sum the gradients of that many passes (``average_aggregated_gradients``: average them)
    before they are reduced and applied. For the other arguments see ``DistributedGradientTape``. Raises ``ValueError``
    for invalid arguments.
    """
    asked = Asked(compression, sparse_as_dense, op, gradient_predivide_factor, process_set, scale_local_gradients)
    _check(asked.checked(num_groups, groups), backward_passes_per_step)
    if isinstance(optimizer, tf.compat.v1.train.Optimizer):
        label = name or f"Distributed{type(optimizer).__name__}"
        passes, average = backward_passes_per_step, average_aggregated_gradients
        return DistributedV1Optimizer(optimizer, label, use_locking, asked, passes, average)
    return _keras_optimizer(
        optimizer,
        name=name,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        backward_passes_per_step=backward_passes_per_step,
        op=op,
        gradient_predivide_factor=gradient_predivide_factor,
        average_aggregated_gradients=average_aggregated_gradients,
        process_set=process_set,
        scale_local_gradients=scale_local_gradients,
    )


def _check(asked: Asked, passes: int) -> None:
    checked_passes(passes)
    if asked.op == ReduceOp.ADASUM:
        raise UnsupportedError(
            "DistributedOptimizer(op=Adasum) of TensorFlow: hand gradients to it by DistributedGradientTape(op=Adasum)"
        )


def _keras_optimizer(optimizer: Any, **asked: Any) -> Any:
    if importlib.util.find_spec("farandole.keras") is None:
        raise UnsupportedError(
            f"DistributedOptimizer of a {type(optimizer).__module__}.{type(optimizer).__name__}: this release serves "
            "those of tf.compat.v1. In a loop of your own take DistributedGradientTape, and the optimizer as it is"
        )
    keras: Any = importlib.import_module("farandole.keras")
    return keras.DistributedOptimizer(optimizer, **asked)
