"""Elastic training with Keras: workers come and go, ``fit`` goes on in the middle of an epoch.

sampler = hvd.elastic.ElasticSampler(x)
state = hvd.elastic.KerasState(model, sampler=sampler, epoch=0)

@hvd.elastic.run
def train(state):
    while state.epoch < 90:
        sampler.set_epoch(state.epoch)
        batches = hvd.elastic.SampledBatches(sampler, lambda rows: (x[rows], y[rows]), batch_size=32)
        model.fit(batches, shuffle=False, initial_epoch=state.epoch, epochs=state.epoch + 1, callbacks=[
            hvd.elastic.RecordSamplesCallback(batches),
            hvd.elastic.UpdateEpochStateCallback(state),
            hvd.elastic.CommitStateCallback(state, batches_per_commit=10),
        ])

train(state)
"""

from __future__ import annotations

import functools
import math
import sys
from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Concatenate, ParamSpec, TypeVar, cast, final

import keras
import numpy as np
import numpy.typing as npt

from farandole.adapters.numpy import adapter
from farandole.elastic.worker.epoch_sampler import EpochSampler as ElasticSampler
from farandole.elastic.worker.run import run as _run
from farandole.elastic.worker.state import ObjectState, State
from farandole.elastic.worker.state_parts import HandlerRegistry, RandomPart, StatePart, random_parts
from farandole.errors import FarandoleError, HorovodInternalError, HostsUpdatedInterrupt, UsageError
from farandole.graphs.library import original
from farandole.keras import variables
from farandole.keras.backends import backend
from farandole.keras.model_progress import progress_of, require_counted
from farandole.keras.rates import Logs
from farandole.largebatch.report import report
from farandole.numpy.elastic import registry as arrays
from farandole.runtime.collectives.leaves import Leaves

__all__ = [
    "CommitStateCallback",
    "ElasticSampler",
    "HorovodInternalError",
    "HostsUpdatedInterrupt",
    "KerasState",
    "ObjectState",
    "RecordSamplesCallback",
    "SampledBatches",
    "State",
    "UpdateBatchStateCallback",
    "UpdateEpochStateCallback",
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

    What ends a collective inside of a compiled step comes out of ``fit`` as an error of the backend, and is raised here
    as what it was. See ``farandole.elastic.worker.run.run`` for the rest.
    """

    @functools.wraps(func)
    def translated(state: S, *args: P.args, **kwargs: P.kwargs) -> R:
        backend.keep_programs()
        try:
            return func(state, *args, **kwargs)
        except Exception as error:
            cause = _ours(error)
            if cause is None or cause is error:
                raise
            raise cause from error

    return cast("Callable[Concatenate[S, P], R]", _run(cast("Callable[Concatenate[S, P], R]", translated)))


def _ours(error: BaseException | None) -> BaseException | None:
    """The error of Farandole's that one of a backend stands for, or that it came up in the handling of."""
    while error is not None and not isinstance(error, FarandoleError):
        found = original(error)
        error = found if found is not error else error.__cause__ or error.__context__
    return error


class _VariablesPart(StatePart):
    """Variables of Keras, as arrays."""

    is_copied = True
    is_fixed: ClassVar[bool] = True

    @abstractmethod
    def variables(self) -> list[Any]:
        """The variables, in an order that is the same on all ranks."""

    def tree(self) -> Any:
        """See ``StatePart``."""
        found = self.variables()
        names = [f"{i}.{variables.path_of(v)}" for i, v in enumerate(found)]
        return dict(zip(names, variables.read(found), strict=True))

    def load(self, tree: Any) -> None:
        """See ``StatePart``."""
        variables.load(self.variables(), list(tree.values()))


@final
class ModelPart(_VariablesPart):
    """A model and its optimizers.

    What each rank has for itself is remembered, too: in a ``fit`` that fails, JAX loses all variables.
    """

    def __init__(self, value: Any) -> None:
        super().__init__(value)
        self._own: list[variables.AnyArray] = []

    def save(self) -> None:
        """See ``StateHandler``."""
        super().save()
        self._own = variables.read(variables.own_of(self.value))

    def restore(self) -> None:
        """See ``StateHandler``."""
        super().restore()
        variables.load(variables.own_of(self.value), self._own)

    def variables(self) -> list[Any]:
        """See ``_VariablesPart``."""
        variables.settle(self.value)
        return variables.shared_of(self.value)


@final
class OptimizerVariablesPart(_VariablesPart):
    """An optimizer that is built."""

    def variables(self) -> list[Any]:
        """See ``_VariablesPart``."""
        if not self.value.built:
            raise UsageError("KerasState of an optimizer that is not built: optimizer.build(model.trainable_variables)")
        return list(self.value.variables)


class KerasState(ObjectState):
    """Training state of a Keras model, and of the optimizers that it has; other values are attributes.

    >>> state = hvd.elastic.KerasState(model, batch=0, epoch=0)

    The model must be built, and compiled with a ``DistributedOptimizer``. ``optimizer``: one that it is not compiled
    with; those that are attributes of the model are found, and must be built. States of random layers, and
    ``local_layers``, stay each rank's own. ``commit`` copies all variables, and a fault goes back to the last one.
    """

    _leaves: ClassVar[Leaves[Any]] = Leaves(adapter)
    _registry: ClassVar[HandlerRegistry] = HandlerRegistry(
        [(keras.Model, ModelPart), (keras.optimizers.Optimizer, OptimizerVariablesPart), *arrays.table]
    )

    def _await_values(self) -> None:
        """See ``ObjectState``."""
        for part in self._parts.values():
            if isinstance(part, _VariablesPart):
                backend.await_values(part.variables())

    def __init__(self, model: keras.Model, optimizer: Any = None, **values: Any) -> None:
        if "schedule_progress" in values:
            raise UsageError(
                "KerasState(schedule_progress=...): the state keeps what a SamplesScheduleCallback has counted under "
                "this name: give your value another one"
            )
        if optimizer is not None and optimizer is not getattr(model, "optimizer", None):
            values["optimizer"] = optimizer
        progress = progress_of(model)
        progress.is_restored = False  # what another state of this model has read was for another training
        super().__init__(model=model, **values, schedule_progress=progress)

    def _connect(self) -> None:
        super()._connect()
        progress = progress_of(self._parts["model"].value)
        progress.register(self)
        self.schedule_progress = progress  # another one where the script has assigned another model

    def _generators(self) -> dict[str, RandomPart]:
        return random_parts()

    @property
    def has_begun(self) -> bool:
        """True if something was committed since the job began."""
        return self._step_vote.step > 0

    def load_state_dict(self, content: Mapping[str, Any]) -> None:
        """See ``ObjectState``; it is newer than any file of a ``CheckpointCallback``."""
        super().load_state_dict(content)
        progress_of(self._parts["model"].value).is_restored = True
        self.save()

    def begin_at(self, epoch: int) -> None:
        """Let values that are named ``epoch`` and ``batch`` be those of an epoch that a checkpoint goes on with."""
        for name, value in (("epoch", epoch), ("batch", 0)):
            if name in self._saved:
                setattr(self, name, value)

    def first_epoch(self, epoch: int) -> int:
        """The number of an epoch that ``fit`` calls ``epoch``, where it counts from 0 again after a change."""
        return max(epoch, int(vars(self)["epoch"])) if "epoch" in self._saved else epoch


class _CountingCallback(keras.callbacks.Callback):
    """Tells how many batches each call of ``on_train_batch_end`` stands for: several, with ``steps_per_execution``."""

    def __init__(self) -> None:
        super().__init__()
        self._last = -1

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        """See ``Callback``. Raises ``UsageError`` where Keras does not tell how many batches a call has had."""
        require_counted(self.model, type(self).__name__)
        self._last = -1

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        """See ``Callback``."""
        first, self._last = self._last + 1, batch
        self._trained(first, batch + 1)

    def _trained(self, first: int, end: int) -> None:
        """Take note that the batches from ``first`` to before ``end`` are done; the last ones may not exist."""
        raise NotImplementedError


class CommitStateCallback(_CountingCallback):
    """Commits the state every so many batches, and when an epoch ends.

    >>> hvd.elastic.CommitStateCallback(state, batches_per_commit=10)

    Put it after callbacks that change the state: what they note is committed then.
    """

    def __init__(self, state: State, batches_per_commit: int = 1) -> None:
        super().__init__()
        if batches_per_commit < 1:
            raise UsageError(f"batches_per_commit={batches_per_commit}: it starts from 1")
        self._state, self._every, self._done = state, batches_per_commit, 0

    def on_train_begin(self, logs: Logs = None) -> None:
        """See ``Callback``."""
        self._done = 0

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """See ``Callback``."""
        self._commit()

    def _trained(self, first: int, end: int) -> None:
        """See ``_CountingCallback``."""
        self._done += end - first
        # Not after the last batch: workers that come or go at a commit would find an epoch of which nothing is left.
        if self._done >= self._every and end < (self.params.get("steps") or math.inf):
            self._commit()

    def _commit(self) -> None:
        self._done = 0
        self._state.commit()


class UpdateBatchStateCallback(_CountingCallback):
    """Counts the batches of an epoch in ``state.batch``: put it before ``CommitStateCallback``, which keeps the number.

    >>> hvd.elastic.UpdateBatchStateCallback(state)

    After a change of the workers ``fit`` begins an epoch again: give it the batches that are left, as with
    ``steps_per_epoch=STEPS // hvd.size() - state.batch``, or ``SampledBatches``.
    """

    def __init__(self, state: Any) -> None:
        super().__init__()
        self._state = state

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """See ``Callback``."""
        self._state.batch = 0

    def _trained(self, first: int, end: int) -> None:
        """See ``_CountingCallback``."""
        self._state.batch += end - first


class UpdateEpochStateCallback(keras.callbacks.Callback):
    """Counts epochs in ``state.epoch``: put it before ``CommitStateCallback``, which keeps the number.

    >>> hvd.elastic.UpdateEpochStateCallback(state)

    Go on with ``fit(epochs=90, initial_epoch=state.epoch)``, or ``fit(epochs=90 - state.epoch)``.
    """

    def __init__(self, state: Any) -> None:
        super().__init__()
        self._state = state

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """See ``Callback``."""
        self._state.epoch += 1


class EpochDataset(keras.utils.PyDataset):
    """Rows of what is left of a sampler's epoch, in batches; subclasses load them.

    Raises ``UsageError`` if nothing is left, and in a ``fit`` that shuffles the batches, which is its default.
    """

    def __init__(self, sampler: ElasticSampler, batch_size: int, **others: Any) -> None:
        super().__init__(**others)
        self.sampler, self.batch_size = sampler, batch_size
        self.is_recorded = False
        """True with a ``RecordSamplesCallback``: to build a model Keras may take all of a short epoch."""
        self._share_out()
        if not len(self.indices):
            raise UsageError(
                f"nothing is left of epoch {sampler.epoch}: call sampler.set_epoch() with the next one, and put "
                "UpdateEpochStateCallback before CommitStateCallback, so that its number is committed"
            )

    def __len__(self) -> int:
        return math.ceil(len(self.indices) / self.batch_size)

    def rows(self, index: int) -> npt.NDArray[np.int64]:
        """Indices of the samples of a batch."""
        return self.indices[index * self.batch_size : (index + 1) * self.batch_size]

    @property
    def is_current(self) -> bool:
        """True if the sampler is where it was when the rows were shared out."""
        return self.begin == self._position

    @property
    def _position(self) -> tuple[int, int, int]:
        return self.sampler.epoch, self.sampler.processed_num, self.sampler.num_replicas

    def _share_out(self) -> None:
        # Now, as Keras asks for batches ahead, and in other threads, while the sampler moves on.
        self.indices: npt.NDArray[np.int64] = np.fromiter(self.sampler, np.int64)
        self.begin = self._position

    def on_epoch_begin(self) -> None:
        """See ``PyDataset``."""
        # No order but this one can be noted: batches are asked for ahead, in threads and processes, and a callback is
        # told how many were trained on, not which. Keras tells a data set nothing of it, but its caller here knows.
        if getattr(sys._getframe(1).f_locals.get("self"), "shuffle", False):
            self._close()
            raise UsageError(
                f"fit() shuffles the batches of {type(self).__name__}, as it does by default, and the sampler could "
                "not tell which are done: call fit(..., shuffle=False). The samples are in random order already"
            )

    def _close(self) -> None:
        """End what loads batches ahead."""


@final
class SampledBatches(EpochDataset):
    """Batches of what is left of a sampler's epoch, for one ``fit`` of one epoch.

    >>> batches = hvd.elastic.SampledBatches(sampler, lambda rows: (x[rows], y[rows]), batch_size=32)
    >>> model.fit(batches, shuffle=False, callbacks=[hvd.elastic.RecordSamplesCallback(batches), ...])

    ``load`` makes what Keras takes as a batch of an array of indices. Make one after each ``set_epoch``, and begin anew
    when the workers have changed: every rank has as many batches as the others. ``others`` are those of
    ``keras.utils.PyDataset``, as ``workers``. Raises ``UsageError`` if nothing is left, and in a ``fit`` that shuffles
    the batches, which is its default.
    """

    def __init__(
        self, sampler: ElasticSampler, load: Callable[[npt.NDArray[np.int64]], Any], batch_size: int = 32, **others: Any
    ) -> None:
        super().__init__(sampler, batch_size, **others)
        self._load = load

    def __getitem__(self, index: int) -> Any:
        return self._load(self.rows(index))


@final
class RecordSamplesCallback(_CountingCallback):
    """Tells the sampler which samples have been trained on: put it before ``CommitStateCallback``.

    >>> hvd.elastic.RecordSamplesCallback(batches)

    Raises ``UsageError`` in a second epoch with the same batches.
    """

    def __init__(self, batches: EpochDataset) -> None:
        super().__init__()
        self._batches = batches
        batches.is_recorded = True

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        """See ``Callback``."""
        super().on_epoch_begin(epoch, logs)
        if not self._batches.is_current:
            raise UsageError(
                f"SampledBatches were made for what was left of epoch {self._batches.begin[0]} then, and the sampler "
                "has moved on: call sampler.set_epoch() and make new ones for each fit(), of one epoch "
                "(initial_epoch=state.epoch, epochs=state.epoch + 1)"
            )

    def _trained(self, first: int, end: int) -> None:
        """See ``_CountingCallback``."""
        for index in range(first, end):
            self._batches.sampler.record_batch(index, len(self._batches.rows(index)))
