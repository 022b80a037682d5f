"""Execution of plans by ``farandole.keras`` on one rank, with the backend of Keras that ``KERAS_BACKEND`` names."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias, final

os.environ.setdefault("KERAS_BACKEND", "torch")

import keras
import numpy as np

import farandole.keras as hvd
from farandole.graphs.keras_variables import is_seed
from farandole.graphs.library import original
from farandole.runtime.collectives.objects import allgather_object
from workbench.differential.frameworks.exchange import verbs_of
from workbench.differential.frameworks.network import (
    BIN,
    HIDDEN,
    INPUTS,
    NOISE,
    OUTPUTS,
    adapted,
    batch,
    bins,
    initial,
    loss_and_gradients,
    metric,
    vocabulary,
)
from workbench.differential.frameworks.optimizers import CLIP, DECAY, EPSILON, MOMENTUM
from workbench.differential.frameworks.oracle import EPOCHS, WARMUP_EPOCHS
from workbench.differential.frameworks.plan import FrameworkPlan, PlanAction, PlanTerms, rows_of

Record: TypeAlias = Callable[[str, Any], None]
BACKEND = keras.backend.backend()
CLIPS = {"global": "global_clipnorm", "norm": "clipnorm", "value": "clipvalue"}


def start(plan: FrameworkPlan) -> Callable[[str, PlanAction, Record], None]:
    """Join the job, and return the function that executes an action."""
    keras.backend.clear_session()
    hvd.init(**plan.arguments)
    return KerasProgram(plan).act


def finish() -> None:
    """Wait for all ranks: a rank that leaves would end collectives that are under way on the others."""
    hvd.barrier()


def stop() -> None:
    """Leave the job."""
    hvd.shutdown()


def cause(error: BaseException) -> BaseException:
    """The error of Farandole that a backend has wrapped, or the error itself."""
    return original(error)


def plain_optimizer(terms: PlanTerms) -> Any:
    """The optimizer of Keras that a plan trains with."""
    given: dict[str, Any] = {CLIPS[terms.clip]: CLIP} if terms.clip else {}
    if terms.decay:
        given["weight_decay"] = DECAY
    if terms.passes > 1 and terms.passes_how == "keras":
        given["gradient_accumulation_steps"] = terms.passes
    if terms.optimizer == "adam":
        made: Any = keras.optimizers.Adam(terms.rate, epsilon=EPSILON, **given)
    else:
        momentum = 0.0 if terms.optimizer == "sgd" else MOMENTUM
        made = keras.optimizers.SGD(terms.rate, momentum, nesterov=terms.optimizer == "nesterov", **given)
    return keras.optimizers.LossScaleOptimizer(made) if terms.scaled else made


@final
class KerasProgram:
    """One plan on this rank: its model and optimizer."""

    def __init__(self, plan: FrameworkPlan) -> None:
        self._plan, self._terms = plan, plan.terms
        self._model = network(HIDDEN, plan.terms.prepares)
        given = initial(plan.seed + plan.index, hvd.rank() if plan.terms.initial == "broadcast" else 0)
        for layer, own in zip(self._dense, (given[:2], given[2:]), strict=True):
            layer.set_weights(own)
        if plan.terms.initial == "broadcast":
            hvd.broadcast_variables(self._model.variables, root_rank=0)
        self._set = hvd.global_process_set
        if len(plan.members(hvd.size())) < hvd.size():
            self._set = hvd.add_process_set(plan.members(hvd.size()))
        self._compile()

    def act(self, name: str, action: PlanAction, record: Record) -> None:
        """Execute one action, and record its results."""
        if action.kind == "reinit":
            hvd.shutdown()
            hvd.init(**self._plan.arguments)
        elif action.kind == "freeze":
            for i, layer in enumerate(self._dense):
                layer.trainable = str(i) not in action.how
            self._compile()
        elif action.kind == "save":
            self._save()
        elif action.kind == "structure" and hvd.size() > 1:
            hidden = HIDDEN + (hvd.rank() == action.rank % hvd.size())
            self._model = network(hidden, self._terms.prepares)
            self._compile()
        if action.kind in ("spoil", "heal"):
            self._spoil(action)
        acts = {"metrics": self._exchange, "batches": self._batches, "apply": self._apply, "broadcast": self._broadcast}
        acts |= dict.fromkeys(("fit", "heal", "spoil", "structure"), self._fit)
        if action.kind in acts:
            acts[action.kind](name, action, record)
        for i, weight in enumerate(self._weights()):
            record(f"{name}.weight{i}", weight)
        if self._terms.prepares == "draws":
            states = [keras.ops.convert_to_numpy(v).tolist() for v in self._model.variables if is_seed(v)]
            record(f"{name}.seeds", len(set(map(str, allgather_object(states)))))

    @property
    def _dense(self) -> list[Any]:
        return [layer for layer in self._model.layers if isinstance(layer, keras.layers.Dense)]

    def _weights(self) -> list[Any]:
        return [w for layer in self._dense for w in layer.get_weights()]

    def _distributed(self, optimizer: Any) -> Any:
        terms = self._terms
        passes = 1 if terms.passes_how == "keras" else terms.passes
        return hvd.DistributedOptimizer(
            optimizer,
            compression=getattr(hvd.Compression, terms.compression),
            gradient_predivide_factor=terms.predivide,
            op=getattr(hvd, terms.op),
            backward_passes_per_step=passes,
            average_aggregated_gradients=terms.passes_how == "mean",
            process_set=self._set,
            scale_local_gradients=terms.local == "scaled",
            local_layers=[self._dense[0]] if terms.local else None,
        )

    def _compile(self) -> None:
        optimizer = self._distributed(plain_optimizer(self._terms))
        each, eager = self._terms.steps_per_execution, self._terms.eager
        self._model.compile(optimizer, loss="mse", steps_per_execution=each, run_eagerly=eager)

    def _save(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "model.keras")
            self._model.save(path)
            self._model = hvd.load_model(path, wrap=self._distributed)

    def _data(self, action: PlanAction, step: int) -> tuple[Any, Any]:
        x, y = batch(action.number, step, hvd.rank(), rows_of(self._plan, hvd.rank()))
        return x.astype(np.float32), y.astype(np.float32)

    def _fit(self, name: str, action: PlanAction, record: Record) -> None:
        x, y = (
            np.concatenate(each) for each in zip(*(self._data(action, i) for i in range(action.steps)), strict=True)
        )
        callbacks: list[Any] = []
        if "broadcast" in action.how or action.kind == "heal":
            root = 0 if action.kind == "heal" else action.rank % hvd.size()
            callbacks.append(hvd.callbacks.BroadcastGlobalVariablesCallback(root))
        if "average" in action.how:
            callbacks.append(hvd.callbacks.MetricAverageCallback())
        if "warmup" in action.how:
            callbacks.append(hvd.callbacks.LearningRateWarmupCallback(self._terms.rate, WARMUP_EPOCHS))
        rows = rows_of(self._plan, hvd.rank())
        fitted = self._model.fit(x, y, batch_size=rows, epochs=EPOCHS, shuffle=False, verbose=0, callbacks=callbacks)
        record(f"{name}.loss", fitted.history["loss"][-1])

    def _batches(self, name: str, action: PlanAction, record: Record) -> None:
        loss = 0.0
        for i in range(action.steps):
            self._model.reset_metrics()
            loss = self._model.train_on_batch(*self._data(action, i))
        record(f"{name}.loss", loss)

    def _apply(self, name: str, action: PlanAction, record: Record) -> None:
        """Steps of a loop of the user's own, with gradients from elsewhere."""
        absent = action.number % 4 if "absent" in action.how and hvd.rank() == action.rank % hvd.size() else -1
        optimizer, variables = self._model.optimizer, self._model.trainable_variables
        if not optimizer.built:
            optimizer.build(variables)
        for i in range(action.steps):
            given = [np.asarray(each, np.float64) for each in self._weights()]
            x, y = batch(action.number, i, hvd.rank(), rows_of(self._plan, hvd.rank()))
            x = self._prepared(x)
            found: dict[str, Any] = dict(zip(self._all(), loss_and_gradients(given, x, y)[1], strict=True))
            scale = float(optimizer.dynamic_scale) if self._terms.scaled else 1.0
            arrays = {
                path: keras.ops.convert_to_tensor((each * scale).astype(np.float32)) for path, each in found.items()
            }
            if absent >= 0 and hvd.size() > 1:  # a graph needs all of them, or none
                path = list(arrays)[absent]
                arrays[path] = None if BACKEND == "torch" else arrays[path] * 0
            optimizer.apply([arrays[each.path] for each in variables], variables)

    def _prepared(self, x: Any) -> Any:
        """``x`` after the layers that prepare it."""
        found = x.astype(np.float32)
        for layer in self._model.layers[: -len(self._dense)]:
            found = layer(found)
        return np.asarray(keras.ops.convert_to_numpy(found), np.float64) if found is not x else x

    def _all(self) -> list[str]:
        return [v.path for layer in self._dense for v in layer.variables]

    def _broadcast(self, name: str, action: PlanAction, record: Record) -> None:
        optimizer = self._model.optimizer
        if not optimizer.built:
            optimizer.build(self._model.trainable_variables)
        hvd.broadcast_variables([*self._model.variables, *optimizer.variables], action.rank % hvd.size())

    def _spoil(self, action: PlanAction) -> None:
        members = self._plan.members(hvd.size())
        if hvd.rank() == members[action.rank % len(members)]:
            layer = self._dense[1]
            layer.set_weights([each + np.float32(0.25) for each in layer.get_weights()])

    def _exchange(self, name: str, action: PlanAction, record: Record) -> None:
        for verb in verbs_of(action.how):
            x = keras.ops.convert_to_tensor(
                metric(action.number, hvd.rank(), hvd.size(), action.how).astype(np.float32)
            )
            found = collective(verb, x, f"{action.number}.{verb}", hvd.size())
            record(f"{name}.{verb}", keras.ops.convert_to_numpy(found))


def network(hidden: int, prepares: str = "") -> Any:
    """The two layers of ``network.py``, after layers that prepare their inputs, differently on each rank."""
    layers = [keras.layers.Dense(hidden, activation="tanh"), keras.layers.Dense(OUTPUTS)]
    first: list[Any] = []
    if prepares == "normalizes":
        first = [keras.layers.Normalization()]
        first[0].adapt(adapted(hvd.rank()).astype(np.float32))
    elif prepares == "bins":
        first = [keras.layers.Discretization(bin_boundaries=bins(hvd.rank())), keras.layers.Rescaling(BIN)]
    elif prepares == "looks up":
        number = keras.layers.Discretization(bin_boundaries=bins(0))
        first = [number, keras.layers.IntegerLookup(vocabulary=vocabulary(hvd.rank())), keras.layers.Rescaling(BIN)]
    elif prepares == "draws":
        first = [keras.layers.GaussianNoise(NOISE, seed=1 + hvd.rank())]
    return keras.Sequential([keras.Input((INPUTS,)), *first, *layers])


def collective(verb: str, x: Any, name: str, size: int) -> Any:
    """Call the collective that plans name ``verb``."""
    ops = {"mean": hvd.Average, "sum": hvd.Sum, "min": hvd.Min, "max": hvd.Max, "product": hvd.Product}
    if verb in ops:
        return hvd.allreduce(x, name=name, op=ops[verb])
    if verb == "gather":
        return hvd.allgather(x, name=name)
    if verb == "copy":
        return hvd.broadcast(x, size - 1, name=name)
    return hvd.reducescatter(x, name=name, op=hvd.Sum) if verb == "scatter" else hvd.alltoall(x, name=name)
