"""Elastic training with Keras: workers join and leave, and ``fit`` continues in the middle of an epoch.

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

    If a collective in a compiled step fails, ``fit`` raises an error of the backend; this function raises the original
    Farandole error instead. For all else see ``farandole.elastic.worker.run.run``.
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
    """Farandole error that an error of the backend wraps, or has as cause or context; ``None`` if there is none."""
    while error is not None and not isinstance(error, FarandoleError):
        found = original(error)
        error = found if found is not error else error.__cause__ or error.__context__
    return error


class _VariablesPart(StatePart):
    """Keras variables, as arrays."""

    is_copied = True
    is_fixed: ClassVar[bool] = True

    @abstractmethod
    def variables(self) -> list[Any]:
        """Variables, in the same order on all ranks."""

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

    Saves the rank's own variables, too, because JAX loses all variables in a ``fit`` that fails.
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
    """A built optimizer."""

    def variables(self) -> list[Any]:
        """See ``_VariablesPart``."""
        if not self.value.built:
            raise UsageError("KerasState of an optimizer that is not built: optimizer.build(model.trainable_variables)")
        return list(self.value.variables)


class KerasState(ObjectState):
    """Training state of a Keras model and its optimizers; other values are attributes.

    >>> state = hvd.elastic.KerasState(model, batch=0, epoch=0)

    The model must be built, and compiled with a ``DistributedOptimizer``. ``optimizer``: an additional optimizer;
    optimizers that are attributes of the model are included, and must be built. Seeds of random layers and local layers
    are not shared between ranks. ``commit`` copies all variables; after a fault the state goes back to the last commit.
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
        progress.is_restored = False  # a checkpoint read for another state of this model was for another training
        super().__init__(model=model, **values, schedule_progress=progress)

    def _connect(self) -> None:
        super()._connect()
        progress = progress_of(self._parts["model"].value)
        progress.register(self)
        self.schedule_progress = progress  # a new one if the script has assigned another model

    def _generators(self) -> dict[str, RandomPart]:
        return random_parts()

    @property
    def has_begun(self) -> bool:
        """True if there was a commit since the job began."""
        return self._step_vote.step > 0

    def load_state_dict(self, content: Mapping[str, Any]) -> None:
        """See ``ObjectState``; the loaded state counts as newer than any file of a ``CheckpointCallback``."""
        super().load_state_dict(content)
        progress_of(self._parts["model"].value).is_restored = True
        self.save()

    def begin_at(self, epoch: int) -> None:
        """Set the values named ``epoch`` and ``batch`` to the begin of ``epoch``, read from a checkpoint."""
        for name, value in (("epoch", epoch), ("batch", 0)):
            if name in self._saved:
                setattr(self, name, value)

    def first_epoch(self, epoch: int) -> int:
        """Number of the epoch that ``fit`` calls ``epoch``; after a change of workers ``fit`` may count from 0."""
        return max(epoch, int(vars(self)["epoch"])) if "epoch" in self._saved else epoch


class _CountingCallback(keras.callbacks.Callback):
    """Base class that counts the batches of each ``on_train_batch_end``: several with ``steps_per_execution``."""

    def __init__(self) -> None:
        super().__init__()
        self._last = -1

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        """See ``Callback``. Raises ``UsageError`` if Keras does not report the number of batches of a call."""
        require_counted(self.model, type(self).__name__)
        self._last = -1

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        """See ``Callback``."""
        first, self._last = self._last + 1, batch
        self._trained(first, batch + 1)

    def _trained(self, first: int, end: int) -> None:
        """Called after the batches ``first`` to ``end - 1``, of which the last ones may not exist."""
        raise NotImplementedError


class CommitStateCallback(_CountingCallback):
    """Commit of the state every ``batches_per_commit`` batches, and at the end of an epoch.

    >>> hvd.elastic.CommitStateCallback(state, batches_per_commit=10)

    Put it after callbacks that change the state, so that their changes are committed.
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
        # Not after the last batch: if workers join or leave at that commit, the epoch would have no samples left.
        if self._done >= self._every and end < (self.params.get("steps") or math.inf):
            self._commit()

    def _commit(self) -> None:
        self._done = 0
        self._state.commit()


class UpdateBatchStateCallback(_CountingCallback):
    """Count of an epoch's batches in ``state.batch``; put it before ``CommitStateCallback``, which commits the number.

    >>> hvd.elastic.UpdateBatchStateCallback(state)

    After a change of the workers ``fit`` begins an epoch again: pass the remaining batches, for example by
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
    """Count of epochs in ``state.epoch``; put it before ``CommitStateCallback``, which commits the number.

    >>> hvd.elastic.UpdateEpochStateCallback(state)

    Continue with ``fit(epochs=90, initial_epoch=state.epoch)``, or ``fit(epochs=90 - state.epoch)``.
    """

    def __init__(self, state: Any) -> None:
        super().__init__()
        self._state = state

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """See ``Callback``."""
        self._state.epoch += 1


class EpochDataset(keras.utils.PyDataset):
    """Batches of row indices for the rest of a sampler's epoch; subclasses load the rows.

    Raises ``UsageError`` if nothing is left, and in a ``fit`` that shuffles the batches (the default of Keras).
    """

    def __init__(self, sampler: ElasticSampler, batch_size: int, **others: Any) -> None:
        super().__init__(**others)
        self.sampler, self.batch_size = sampler, batch_size
        self.is_recorded = False
        """True with a ``RecordSamplesCallback``. Needed because Keras may read a whole short epoch to build a model."""
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
        """True if the sampler has not moved since ``indices`` were read."""
        return self.begin == self._position

    @property
    def _position(self) -> tuple[int, int, int]:
        return self.sampler.epoch, self.sampler.processed_num, self.sampler.num_replicas

    def _share_out(self) -> None:
        # Read all indices now, because Keras loads batches ahead on other threads while the sampler moves on.
        self.indices: npt.NDArray[np.int64] = np.fromiter(self.sampler, np.int64)
        self.begin = self._position

    def on_epoch_begin(self) -> None:
        """See ``PyDataset``."""
        # Only this order can be recorded: threads and processes load ahead, and callbacks get only the number of
        # trained batches. A data set does not know whether Keras shuffles, but the calling frame does.
        if getattr(sys._getframe(1).f_locals.get("self"), "shuffle", False):
            self._close()
            raise UsageError(
                f"fit() shuffles the batches of {type(self).__name__}, as it does by default, and the sampler could "
                "not tell which are done: call fit(..., shuffle=False). The samples are in random order already"
            )

    def _close(self) -> None:
        """Stop loading ahead."""


@final
class SampledBatches(EpochDataset):
    """Batches of the rest of a sampler's epoch, for one ``fit`` of one epoch.

    >>> batches = hvd.elastic.SampledBatches(sampler, lambda rows: (x[rows], y[rows]), batch_size=32)
    >>> model.fit(batches, shuffle=False, callbacks=[hvd.elastic.RecordSamplesCallback(batches), ...])

    ``load`` converts an array of indices to a batch for Keras. Make a new object after each ``set_epoch``, and after
    each change of the workers: every rank has the same number of batches. ``others``: arguments of
    ``keras.utils.PyDataset``, for example ``workers``. Raises ``UsageError`` if nothing is left, and in a ``fit`` that
    shuffles the batches (the default of Keras).
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
    """Record of the trained samples in the sampler; put it before ``CommitStateCallback``.

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
