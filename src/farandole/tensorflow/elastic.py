"""Elastic training with TensorFlow: workers join and leave while the training continues.

state = TensorFlowKerasState(model, optimizer, epoch=0)

@run
def train(state):
    while state.epoch < 90:
        ...
        state.epoch += 1
        state.commit()

train(state)
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Concatenate, ParamSpec, TypeVar, final

import tensorflow as tf

from farandole.adapters.tensorflow import SessionVariable, adapter, is_variable
from farandole.elastic.worker.epoch_sampler import EpochSampler as ElasticSampler
from farandole.elastic.worker.run import run as run_on_workers
from farandole.elastic.worker.state import ObjectState, State
from farandole.elastic.worker.state_parts import HandlerRegistry, RandomPart, ReplaceablePart, random_parts
from farandole.errors import HorovodInternalError, HostsUpdatedInterrupt, UsageError
from farandole.graphs.keras_variables import is_seed
from farandole.graphs.library import original
from farandole.largebatch.report import report
from farandole.runtime.collectives.leaves import Leaves
from farandole.tensorflow.functions import refresh_layers

__all__ = [
    "ElasticSampler",
    "HorovodInternalError",
    "HostsUpdatedInterrupt",
    "ObjectState",
    "State",
    "TensorFlowKerasState",
    "TensorFlowState",
    "report",
    "run",
]

S = TypeVar("S", bound=State)
P = ParamSpec("P")
R = TypeVar("R")


def run(func: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """Call ``func(state, ...)``, and again after every change of the workers, until it returns.

    >>> @hvd.elastic.run
    ... def train(state): ...
    >>> train(hvd.elastic.TensorFlowKerasState(model, optimizer, epoch=0))

    A Farandole error that a TensorFlow graph has wrapped is unwrapped. All else is like ``elastic.run`` of the other
    frameworks: see ``farandole.elastic.worker.run.run``.
    """

    def translated(state: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return func(state, *args, **kwargs)
        except tf.errors.OpError as error:
            found = original(error)
            if found is error:
                raise
            raise found from error

    return functools.wraps(func)(run_on_workers(translated))


class VariablesPart(ReplaceablePart):
    """Variables in the order of a list; they keep their identity.

    Seeds of random layers are saved, too, but not shared between ranks, because masks should differ.
    """

    is_fixed: ClassVar[bool] = True

    def tree(self) -> Any:
        """See ``StatePart``."""
        return [variable for variable in self._variables() if not is_seed(variable)]

    def load(self, tree: Any) -> None:
        """See ``StatePart``; nothing to do: variables were assigned in place, or this worker runs another program."""

    def save(self) -> None:
        """See ``StateHandler``."""
        self._saved = [adapter.host_bytes(variable).owner for variable in self._variables()]
        self._saved_value = self.value

    def restore(self) -> None:
        """See ``StateHandler``."""
        self.value = self._saved_value
        for variable, values in zip(self._variables(), self._saved or (), strict=True):
            adapter.assign(variable, values)

    def _variables(self) -> Sequence[Any]:
        found: Sequence[Any] = [self.value] if is_variable(self.value) else self.value
        return found


@final
class KerasPart(VariablesPart):
    """Variables of a Keras model or optimizer; the variables of an optimizer must exist already."""

    def restore(self) -> None:
        """See ``StateHandler``; recomputes constants that layers derive from variables."""
        super().restore()
        refresh_layers(self._variables())

    def _variables(self) -> Sequence[Any]:
        found: Sequence[Any] = self.value.variables
        return found


registry = HandlerRegistry([])
"""Classes of values with their handlers; put your own in: ``registry.replace([(MyClass, MyPart)])``."""


class _TensorFlowStates(ObjectState):
    _leaves: ClassVar[Leaves[Any]] = Leaves(adapter)
    _registry: ClassVar[HandlerRegistry] = registry

    def _handler(self, value: Any) -> Any:
        is_list = isinstance(value, list | tuple) and bool(value) and all(map(is_variable, value))
        return VariablesPart(value) if is_list or is_variable(value) else super()._handler(value)

    def _generators(self) -> dict[str, RandomPart]:
        return random_parts()


@final
class _Variables(list[Any]):
    """Registered variables of a state."""


class TensorFlowState(_TensorFlowStates):
    """Training state of ``tf.Variable`` objects; other values are attributes.

    >>> state = TensorFlowState(model.variables + optimizer.variables, batch=0, epoch=0)

    In graphs of ``tf.compat.v1`` give the ``session``; the default of ``variables`` is all global variables. ``commit``
    copies everything, and after a fault the state goes back to the last commit.
    """

    def __init__(self, variables: Sequence[Any] | None = None, session: Any = None, **values: Any) -> None:
        listed = list(tf.compat.v1.global_variables() if variables is None else variables)
        if session is not None:
            listed = [SessionVariable(variable, session) for variable in listed]
        super().__init__(variables=_Variables(listed), **values)

    def _handler(self, value: Any) -> Any:
        return VariablesPart(value) if isinstance(value, _Variables) else super()._handler(value)


class TensorFlowKerasState(_TensorFlowStates):
    """Training state of a Keras model and its optimizer; other values are attributes.

    >>> state = TensorFlowKerasState(model, optimizer, batch=0, epoch=0)

    A ``tf.Variable``, or a list of them, keeps its identity. The default ``optimizer`` is the one of ``compile``. The
    model must be built: give it its input shape, or call it once. ``commit`` copies everything, and after a fault the
    state goes back to the last commit.
    """

    def __init__(self, model: Any, optimizer: Any = None, backend: Any = None, **values: Any) -> None:
        optimizer = optimizer if optimizer is not None else getattr(model, "optimizer", None)
        if not model.built:
            raise UsageError(
                "TensorFlowKerasState of a model that is not built: give its first layer an input shape, or call "
                "model(batch) once before"
            )
        parts = {"model": model} if optimizer is None else {"model": model, "optimizer": optimizer}
        if optimizer is not None and hasattr(optimizer, "build") and not getattr(optimizer, "built", True):
            optimizer.build(model.trainable_variables)
        self._kept = tuple(parts.values())
        from farandole.adapters import layer_tables  # imports Keras, which a script may not use

        if layer_tables.has_any(model):
            values["layer_tables"] = layer_tables.LayerTables(model)
        super().__init__(**parts, **values)

    def _handler(self, value: Any) -> Any:
        return KerasPart(value) if any(value is each for each in self._kept) else super()._handler(value)

    def sync(self) -> None:
        """See ``State``; recomputes constants that layers derive from received variables."""
        super().sync()
        for part in self._parts.values():
            if isinstance(part, KerasPart):
                refresh_layers(part.value.variables)
