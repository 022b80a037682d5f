"""Progress of a model's training outside its variables: samples counted by a schedule, tables of its layers.

progress = progress_of(model)                   # one for each model, shared by its callbacks
progress.measure(position)                      # position of a schedule, after the optimizer's steps so far

Callbacks change with each call of ``fit``. Their counts belong to the model and to the current step of its optimizer:
an elastic state and a ``CheckpointCallback`` save them with the variables.
"""

from __future__ import annotations

import weakref
from dataclasses import replace
from typing import Any, Protocol, final

import keras

from farandole.adapters import layer_tables
from farandole.errors import UsageError
from farandole.keras import variables
from farandole.largebatch.schedule import Position, Schedule

COUNTS_BATCHES = tuple(map(int, keras.__version__.split(".")[:2])) >= (3, 11)
"""True if Keras reports the last batch of a call of several batches, and not the first."""


def require_counted(model: keras.Model, asks: str) -> None:
    """Raise ``UsageError`` if calls have several batches and this Keras version does not report their number."""
    if model.steps_per_execution > 1 and not COUNTS_BATCHES:
        raise UsageError(
            f"{asks} with steps_per_execution={model.steps_per_execution} and Keras {keras.__version__}, which does "
            "not tell how many batches a call has had: leave it at 1, or type: pip install 'keras>=3.11'"
        )


class ElasticProgress(Protocol):
    """Methods of an elastic state that callbacks use."""

    @property
    def has_begun(self) -> bool:
        """True if there was a commit since the job began."""

    def begin_at(self, epoch: int) -> None:
        """Begin the training with ``epoch``, read from a checkpoint."""

    def first_epoch(self, epoch: int) -> int:
        """Number of the beginning epoch, which ``fit`` calls ``epoch``."""


@final
class ModelProgress:
    """Position in a schedule at a step of one model's optimizer."""

    def __init__(self, model: keras.Model) -> None:
        self._model = weakref.ref(model)
        self._optimizer: weakref.ref[Any] | None = None
        self._elastic: weakref.ref[Any] | None = None
        self._schedule, self._global_batch = "", 0
        self._position: Position | None = None
        self._iterations = 0
        self._is_given = False
        self.is_restored = False
        """True if the model is at least as new as every checkpoint: a checkpoint was read, or a state was loaded.

        Commits save this flag with the variables, and a fault restores it with them.
        """
        self.averaged: dict[str, Any] | None = None
        """Logs with means over ranks, of the last epoch that a ``MetricAverageCallback`` has processed."""

    @property
    def elastic(self) -> ElasticProgress | None:
        """Elastic state in which the model is registered, if there is one."""
        return None if self._elastic is None else self._elastic()

    def epochs_before(self, epoch: int) -> int:
        """Number of finished epochs that ``fit`` does not count, when it begins with ``epoch``.

        In an elastic job ``fit`` may count from 0 again after every change of the workers.
        """
        elastic = self.elastic
        return 0 if elastic is None else elastic.first_epoch(epoch) - epoch

    def register(self, state: ElasticProgress) -> None:
        """Set the model's elastic ``state``, which also saves this object."""
        self._elastic = weakref.ref(state)

    def begin(self, schedule: Schedule, epoch_samples: int, epoch: int, batch: int | None, known: bool) -> Position:
        """Position at which a ``fit`` that begins with ``epoch`` continues.

        ``known``: the callback was used before, and continues. Otherwise it begins at 0, or with ``epoch``, unless a
        state or a checkpoint has the model's position. If the number of samples per epoch has changed, the number of
        epochs passed is kept.
        """
        elastic, terms = self.elastic, _terms(schedule)
        is_under_way = known or self._is_given or (elastic is not None and elastic.has_begun)
        kept, goes_on = self._position, is_under_way or epoch > 0
        if kept is None or self._schedule != terms or not goes_on:
            kept = schedule.begin(epoch_samples)
            if epoch > 0:
                kept = schedule.advance(kept, epoch * epoch_samples)
        else:
            if self._optimizer is None or self._optimizer() is self._compiled:  # otherwise a new one counts its steps
                kept = _moved(schedule, kept, self._steps() - self._iterations, batch)
            kept = _measured_by(epoch_samples, kept)
            if self._global_batch != schedule.global_batch:  # changed by the number of ranks, not by ``resize``
                kept = schedule.resize(kept, schedule.global_batch)
        self._schedule, self._global_batch, self._position, self._is_given = terms, schedule.global_batch, kept, False
        self._note()
        return kept

    def place(self, position: Position) -> None:
        """Set the position of the next step."""
        self._position = position

    def measure(self, position: Position) -> None:
        """Record ``position`` as the result of all steps made so far."""
        self._position = position
        self._note()

    @property
    def steps_since(self) -> int:
        """Number of steps since the last ``measure``."""
        return self._steps() - self._iterations

    def state_dict(self) -> dict[str, Any]:
        """Plain values, for a state or a checkpoint."""
        state: dict[str, Any] = {"is_restored": self.is_restored}
        model = self._model()
        if model is not None and (tables := layer_tables.read(model)):
            state["tables"] = tables
        if self._position is not None:
            state |= {"schedule": self._schedule, "global_batch": self._global_batch, "iterations": self._iterations}
            state["position"] = self._position.state()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from ``state``, with variables saved at the same time."""
        model = self._model()
        if model is not None:
            layer_tables.write(model, state.get("tables", {}))  # absent in checkpoints of older versions
        self._optimizer, self._is_given = None, "position" in state
        self._position = Position.of(state["position"]) if self._is_given else None
        self._schedule, self._global_batch = state.get("schedule", ""), int(state.get("global_batch", 0))
        self._iterations, self.is_restored = int(state.get("iterations", 0)), bool(state.get("is_restored"))

    @property
    def _compiled(self) -> Any:
        return getattr(self._model(), "optimizer", None)

    def _steps(self) -> int:
        return variables.steps_of(self._compiled)

    def _note(self) -> None:
        self._optimizer, self._iterations = weakref.ref(self._compiled), self._steps()


def _terms(schedule: Schedule) -> str:
    """Description of a schedule without its global batch, which usually depends on the number of ranks."""
    return repr(replace(schedule, global_batch=schedule.base_batch))


def _moved(schedule: Schedule, position: Position, steps: int, batch: int | None) -> Position:
    """Position some steps later, or earlier if the model was restored."""
    if steps >= 0:
        for _ in range(steps):
            position = schedule.advance(position, batch)
        return position
    samples = max(0, position.samples + steps * (batch or schedule.batch(position)))
    progress = position.progress - (position.samples - samples)
    return replace(position, samples=samples, progress=max(0.0, progress), steps=max(0, position.steps + steps))


def _measured_by(epoch_samples: int, position: Position) -> Position:
    """Position after the same number of epochs with another number of samples each, so that no rate jumps."""
    ratio = epoch_samples / position.epoch_samples
    samples, progress = round(position.samples * ratio), position.progress * ratio
    return replace(position, epoch_samples=epoch_samples, samples=samples, progress=progress)


_known: weakref.WeakKeyDictionary[keras.Model, ModelProgress] = weakref.WeakKeyDictionary()


def progress_of(model: keras.Model) -> ModelProgress:
    """Progress of ``model``; the first call makes it."""
    if model not in _known:
        _known[model] = ModelProgress(model)
    return _known[model]
