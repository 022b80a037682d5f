"""Virtual workers in ``fit``: the same bits after every step for any number of ranks, on any Keras backend.

model.compile(keras.optimizers.Adam(1e-3), loss="mse")
model.fit(x, y, batch_size=64, shuffle=False, callbacks=[hvd.callbacks.VirtualWorkersCallback(8, seed=1)])

Keras computes and applies gradients in one compiled step. The step must not depend on the number of a rank's shards: a
compiler could compute several shards together, and round differently. So each shard runs the step that Keras compiles,
with an optimizer that stores each gradient in its variable (``_GradientRecorder``). After each shard's step, the
gradients are read and the variables restored; finally the model's own optimizer applies the sums.

Check that the loss of a model is the mean over its rows, as the averaging of shard gradients assumes.

require_mean(model, data, values)       # raises UsageError if the same rows twice have another loss
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias, final

import keras
import numpy as np

from farandole.adapters import layer_tables
from farandole.adapters.numpy import verbs
from farandole.errors import UsageError
from farandole.gradients.shard_reducer import Shard
from farandole.graphs.keras_variables import is_seed
from farandole.keras import variables
from farandole.keras.backends import backend
from farandole.keras.variables import AnyArray
from farandole.numpy.gradients import DistributedGradients
from farandole.runtime.session.process_sets import ProcessSet, global_process_set

_ROWS = 32
_TOLERANCE = 1e-3
"""Relative tolerance: above the rounding of float16 and bfloat16; a sum instead of a mean would double."""


def require_mean(model: Any, data: Any, values: Sequence[tuple[Any, AnyArray]]) -> None:
    """Raise ``UsageError`` if the loss of ``data`` changes when each row is doubled.

    ``values``: current values of the model's variables. The losses are computed without training, and nothing is
    changed. A loss that differs between two equal calls (random layers) cannot be checked.
    """
    rows = keras.tree.map_structure(lambda each: None if each is None else each[:_ROWS], data)
    twice = keras.tree.map_structure(lambda each: None if each is None else _twice(each), rows)
    first, again, doubled = (_loss(model, given, values) for given in (rows, rows, twice))
    if first != again or abs(doubled - first) <= _TOLERANCE * max(abs(first), abs(doubled)):
        return
    raise UsageError(
        f"VirtualWorkersCallback: the loss of {model.name} is no mean over rows: it is {first:.6g} for some rows of "
        f"the first batch, and {doubled:.6g} where each of them stands there twice. Gradients of shards are averaged "
        "by their rows, which makes those of a batch where a loss is a mean: use keras.ops.mean where add_loss(), "
        "compute_loss() or a loss of your own take a sum over rows"
    )


def _twice(each: Any) -> Any:
    return keras.ops.concatenate([keras.ops.convert_to_tensor(each)] * 2)


def _loss(model: Any, data: Any, values: Sequence[tuple[Any, AnyArray]]) -> float:
    """Total loss of ``data`` with ``values`` for the variables; the model's own values are neither read nor changed."""
    x, y, weights = keras.utils.unpack_x_y_sample_weight(data)
    held = [(variable, keras.ops.convert_to_tensor(value, variable.dtype)) for variable, value in values]
    compute = getattr(model, "_compute_loss", model.compute_loss)  # handles overrides without training=
    with backend.untracked(), keras.StatelessScope(state_mapping=held, collect_losses=True):
        model._clear_losses()
        predicted = model(x, training=False)
        return float(keras.ops.convert_to_numpy(compute(x=x, y=y, y_pred=predicted, sample_weight=weights)))


Arrays: TypeAlias = list[AnyArray]
ShardStep: TypeAlias = Callable[[Arrays, Arrays, Any], tuple[Sequence[AnyArray | None], Arrays]]
"""Function of trainable variables, other variables and rows; returns gradients and the new other variables."""


class VirtualWorkersCallback(keras.callbacks.Callback):
    """Training with the same bits on any number of ranks: each batch of ``fit`` is cut into ``count`` shards.

    >>> model.compile(keras.optimizers.Adam(1e-3), loss="mse")
    >>> model.fit(x, y, batch_size=64, shuffle=False, callbacks=[hvd.callbacks.VirtualWorkersCallback(8, seed=1)])

    Every rank must get the same global batches, and computes its shards of each; so ``count`` must be at least the
    number of ranks. Compile the model with the plain optimizer, not with a ``DistributedOptimizer``. Random layers draw
    by ``seed``, the optimizer's step number and the shard number; the running statistics of batch norm change by the
    mean change over the shards. Metrics of a rank are those of its shards. Use one callback for all calls of ``fit``,
    because it keeps the compiled step. The loss is the mean over the rows of a shard; a masked loss is the mean over
    shards of the shards' means. Raises ``UsageError`` for an optimizer that scales losses or is distributed, for
    ``steps_per_execution``, for a model with its own ``train_step``, for losses that are not means, and for layers that
    assign trainable variables (``SpectralNormalization``).
    """

    def __init__(self, count: int, seed: int = 0, process_set: ProcessSet = global_process_set) -> None:
        super().__init__()
        self._count, self._seed, self._process_set = count, seed, process_set
        self._made: tuple[Any, ...] = ()
        self._step: _ShardedStep | None = None

    def on_train_begin(self, logs: Any = None) -> None:
        """See ``Callback``."""
        backend.build(self.model)
        self._take_step()

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """See ``Callback``; another callback may have made the model trace its step again."""
        self._take_step()

    def _take_step(self) -> None:
        model = self.model
        compiled = model, model.optimizer, getattr(model, "_compile_loss", None), layer_tables.traces(model)
        if self._step is None or any(a is not b for a, b in zip(compiled, self._made, strict=True)):
            _require_plain(model)
            self._step = _ShardedStep(model, self._count, self._seed, self._process_set)
            self._made = compiled
        model.train_function = self._step.of_state if keras.backend.backend() == "jax" else self._step.of_variables

    def on_train_end(self, logs: Any = None) -> None:
        """See ``Callback``; a later ``fit`` without this callback compiles Keras's own step."""
        self.model.train_function = None


def _require_plain(model: Any) -> None:
    """Raise ``UsageError`` for a model whose steps cannot be computed by shards."""
    optimizer = model.optimizer
    if hasattr(optimizer, "_farandole"):
        raise UsageError(
            "VirtualWorkersCallback with a DistributedOptimizer: it adds up gradients by itself; compile the model "
            "with the optimizer alone, as keras.optimizers.Adam(1e-3)"
        )
    if optimizer.loss_scale_factor is not None or hasattr(optimizer, "inner_optimizer"):
        raise UsageError(
            "VirtualWorkersCallback with scaled losses: a step that is skipped would leave its shards; train in "
            "float32 or bfloat16"
        )
    if getattr(model.train_step, "__func__", None) is not keras.Model.train_step:
        # After a shard's step, variables hold gradients: code that reads or changes them there would be silently wrong.
        raise UsageError(
            f"VirtualWorkersCallback with a train_step() of {type(model).__name__}'s own: what that does around the "
            "optimizer's step would be done with each shard; override compute_loss() instead, which Keras's own "
            "train_step() calls"
        )
    for loss in keras.tree.flatten(model.loss):
        reduction = getattr(loss, "reduction", "mean")
        if reduction not in ("mean", "sum_over_batch_size") or getattr(loss, "ignore_class", None) is not None:
            is_mean = reduction in ("mean", "sum_over_batch_size")
            found = f"ignore_class={loss.ignore_class}" if is_mean else f"reduction={reduction!r}"
            raise UsageError(
                f"VirtualWorkersCallback with {type(loss).__name__}({found}): gradients of shards are averaged by "
                "their rows, which makes those of a batch where a loss is the mean over its rows: use "
                "reduction='sum_over_batch_size', and weigh samples by sample_weight"
            )
    layers = [layer for layer in model._flatten_layers() if isinstance(layer, keras.layers.SpectralNormalization)]
    if layers and keras.backend.backend() != "jax":
        raise UsageError(
            f"VirtualWorkersCallback with {layers[0].name}, which assigns its weights in each forward pass: the steps "
            "of shards would lose that. Use a DistributedOptimizer, or the JAX backend"
        )
    if model.steps_per_execution != 1:
        raise UsageError(f"VirtualWorkersCallback with steps_per_execution={model.steps_per_execution}: leave it at 1")


@final
class _GradientRecorder(keras.optimizers.Optimizer):
    """Optimizer whose step assigns each gradient to its variable; ``unused``: indices of variables without one."""

    def __init__(self) -> None:
        super().__init__(learning_rate=0.0, name="gradient_recorder")
        self.unused: frozenset[int] = frozenset()

    @backend.as_written
    def apply(self, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None) -> None:
        """See ``Optimizer``; called when a step is traced, and records which gradients are missing."""
        targets = self._trainable_variables if trainable_variables is None else list(trainable_variables)
        self.unused = frozenset(i for i, grad in enumerate(grads) if grad is None)
        for variable, grad in zip(targets, grads, strict=True):
            if grad is not None:
                variable.assign(backend.dense(grad))


@final
class _ShardedStep:
    """Training step of a model on a global batch; this rank computes its shards of the batch."""

    def __init__(self, model: Any, count: int, seed: int, process_set: ProcessSet) -> None:
        self._model, self._seed = model, seed
        self._recorder = _GradientRecorder()
        self._recorder.build(model.trainable_variables)
        others = model.non_trainable_variables
        self._statistics = [i for i, v in enumerate(others) if "float" in v.dtype]
        self._draws = [i for i, v in enumerate(others) if is_seed(v)]
        self._counts = [i for i, v in enumerate(others) if i not in (*self._statistics, *self._draws)]
        self._count, self._process_set = count, process_set
        shared = [*model.trainable_variables, *(others[i] for i in self._statistics)]
        like = {
            f"{i}.{variables.path_of(v)}": np.broadcast_to(np.zeros((), backend.dtype(v)), tuple(v.shape))
            for i, v in enumerate(shared)
        }
        self._sums = DistributedGradients(like, process_set=process_set, virtual_workers=count, seed=seed)
        self._names = list(like)
        model.make_train_function(force=True)
        self._keras_step = model.train_function
        self._apply = backend.compiled(model.optimizer.stateless_apply)
        self._logs: Any = None
        self._is_mean = False

    def of_variables(self, batches: Any) -> Any:
        """``train_function`` for PyTorch and TensorFlow, whose variables hold their values during ``fit``."""
        model = self._model
        trained, others = model.trainable_variables, model.non_trainable_variables

        def step(weights: Arrays, rest: Arrays, part: Any) -> tuple[Sequence[AnyArray | None], Arrays]:
            variables.write([*trained, *others], [*weights, *rest])
            self._logs = self._recorded(lambda: self._keras_step(iter([part]) if _takes_iterator() else [part]))
            return self._used(variables.read(trained)), variables.read(others)

        weights, rest, data = variables.read(trained), variables.read(others), _next(batches)
        self._require_mean(data, [*zip(trained, weights, strict=True), *zip(others, rest, strict=True)])
        try:
            sums, after = self._reduced(step, weights, rest, data, int(model.optimizer._iterations))
        except BaseException:
            variables.write([*trained, *others], [*weights, *rest])
            raise
        variables.write([*trained, *others], [*weights, *after])
        found = [None if each is None else keras.ops.convert_to_tensor(each) for each in sums]
        with backend.untracked():
            model.optimizer.apply(found, trained)
        return self._logs

    def of_state(self, state: Any, batches: Iterator[Any]) -> tuple[Any, Any]:
        """``train_function`` for JAX, which takes and returns all values."""
        trained, others, kept, metrics = state
        model, data = self._model, next(batches)
        of_model = [*model.trainable_variables, *model.non_trainable_variables, *model.metrics_variables]
        self._require_mean(data, list(zip(of_model, [*trained, *others, *metrics], strict=True)))
        of_recorder = [variable.value for variable in self._recorder.variables]

        def step(weights: Arrays, rest: Arrays, part: Any) -> tuple[Sequence[AnyArray | None], Arrays]:
            nonlocal metrics
            given = [[keras.ops.array(each) for each in values] for values in (weights, rest, of_recorder)]
            passed = (*given, metrics)
            self._logs, state = self._recorded(lambda: self._keras_step(passed, iter([part])))
            gradients, after, _, metrics = state
            return self._used([np.array(each) for each in gradients]), [np.array(each) for each in after]

        weights, rest = ([np.array(each) for each in values] for values in (trained, others))
        position = next(i for i, v in enumerate(model.optimizer.variables) if v is model.optimizer._iterations)
        sums, after = self._reduced(step, weights, rest, data, int(kept[position]))
        trained, kept = self._apply(kept, [keras.ops.array(each) for each in sums], trained)
        return self._logs, (trained, [keras.ops.array(each) for each in after], kept, metrics)

    def _require_mean(self, data: Any, values: Sequence[tuple[Any, Any]]) -> None:
        """In the first step, raise ``UsageError`` for a loss that is not a mean."""
        if not self._is_mean:
            require_mean(self._model, data, values)
            self._is_mean = True

    def _reduced(
        self, step: ShardStep, weights: Arrays, rest: Arrays, data: Any, number: int
    ) -> tuple[list[AnyArray | None], Arrays]:
        """Gradients of a global batch, and the new values of non-trainable variables. Collective."""
        rows = next(len(each) for each in keras.tree.flatten(data) if each is not None)
        self._sums.steps = number
        after = rest
        for shard in self._sums.shards(rows):
            with backend.drawing(self._drawn(shard, "global")):
                gradients, after = step(weights, self._drawing(rest, shard), _rows_of(data, shard))
            changes = [after[i] - rest[i] for i in self._statistics]
            self._sums.add(dict(zip(self._names, [*gradients, *changes], strict=True)))
        held = [*weights, *(rest[i] for i in self._statistics)]
        total = self._sums.total(dict(zip(self._names, held, strict=True)))
        found = [total[name] for name in self._names]
        if rows < self._count:  # a rank whose shards are all empty has run no step
            self._share([after[i] for i in self._counts])
        return found[: len(weights)], self._merged(rest, after, found[len(weights) :])

    def _share(self, counts: Arrays) -> None:
        """Broadcast the non-float variables of the rank with the first shard, which is never empty."""
        if counts and self._process_set.included() and len(self._process_set.ranks) > 1:
            root = self._process_set.ranks[0]
            verbs.broadcast(counts, root, "keras.virtual workers", self._process_set, in_place=True).run()

    def _merged(self, before: Arrays, after: Arrays, changes: Sequence[AnyArray]) -> Arrays:
        """Other variables after a step: statistics by their mean change, seeds unchanged, the rest from any shard."""
        merged = list(after)
        for i, change in zip(self._statistics, changes, strict=True):
            merged[i] = before[i] + change
        for i in self._draws:
            merged[i] = before[i]
        return merged

    def _drawing(self, rest: Arrays, shard: Shard) -> Arrays:
        """Non-trainable variables, with the seeds of random layers for this shard."""
        found = list(rest)
        for position, i in enumerate(self._draws):
            found[i] = np.zeros_like(rest[i])
            found[i][0] = self._drawn(shard, position)
        return found

    def _drawn(self, shard: Shard, what: int | str) -> int:
        """Seed of a generator for this step and shard."""
        text = f"{self._seed} {self._sums.steps} {shard.number} {what}"
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=4).digest(), "little") >> 1

    def _recorded(self, run: Callable[[], Any]) -> Any:
        """Result of ``run`` with the recorder as the model's optimizer, which tracing uses."""
        model, optimizer = self._model, self._model.optimizer
        model.optimizer = self._recorder
        try:
            return run()
        finally:
            model.optimizer = optimizer

    def _used(self, gradients: Arrays) -> Sequence[AnyArray | None]:
        return [None if i in self._recorder.unused else each for i, each in enumerate(gradients)]


def _takes_iterator() -> bool:
    name: str = keras.backend.backend()
    return name == "tensorflow"


def _next(batches: Any) -> Any:
    """Next batch from the argument of a ``train_function``: an iterator, or on PyTorch a list of one batch."""
    data = batches[0] if isinstance(batches, list | tuple) else next(batches)
    return keras.tree.map_structure(backend.present, data)


def _rows_of(data: Any, shard: Shard) -> Any:
    return keras.tree.map_structure(lambda each: None if each is None else each[shard.rows], data)
