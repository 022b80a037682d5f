"""Callbacks for ``model.fit`` on several ranks, among them Horovod's four.

model.fit(x, y, verbose=hvd.verbose(1), callbacks=[
    hvd.callbacks.BroadcastGlobalVariablesCallback(0),
    hvd.callbacks.MetricAverageCallback(),
    hvd.callbacks.LearningRateWarmupCallback(initial_lr=0.1 * hvd.size(), warmup_epochs=5),
])

Reports of ``model.fit`` to a trial of ``farandole.search``.

model.fit(x, y, validation_data=(u, v), epochs=trial.epochs, callbacks=[
    hvd.callbacks.MetricAverageCallback(),
    hvd.callbacks.ReportCallback(trial),
])
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any, Protocol, final

import keras
import numpy as np

from farandole.checkpoint.checkpoints import OnError
from farandole.errors import UsageError
from farandole.keras import variables
from farandole.keras.backends import backend
from farandole.keras.model_progress import progress_of
from farandole.keras.noise import NoiseScaleCallback
from farandole.keras.rates import (
    LearningRateScheduleCallback,
    LearningRateWarmupCallback,
    Logs,
    SamplesScheduleCallback,
    set_rate,
)
from farandole.keras.virtual_workers import VirtualWorkersCallback
from farandole.numpy.checkpoints import Checkpoints
from farandole.runtime.collectives.objects import allgather_object
from farandole.runtime.session.init import current, is_initialized, takes_part
from farandole.runtime.session.process_sets import ProcessSet, global_process_set
from farandole.runtime.session.training import training


class Reports(Protocol):
    """Methods of a trial that the callback uses."""

    @property
    def workers(self) -> int:
        """Maximum number of workers of the trial."""

    def named(self, metrics: Mapping[str, Any]) -> dict[str, Any]:
        """Metrics under names that ``report`` accepts."""

    def report(self, value: float, epoch: int, **metrics: Any) -> None:
        """Report the value after an epoch."""


@final
class ReportCallback(keras.callbacks.Callback):
    """Report of ``monitor`` to the ``trial`` after every epoch, with the other numbers of the logs as its metrics.

    >>> model.fit(x, y, validation_data=(u, v), epochs=trial.epochs, callbacks=[hvd.callbacks.ReportCallback(trial)])

    In trials of several workers put it after ``MetricAverageCallback``, so that the numbers are means over all ranks,
    and, if ``trial.resume`` has a state, after ``UpdateEpochStateCallback``, because a report commits. Epochs trained
    before a pause count. Raises ``UsageError`` if one of these callbacks is not before it, or if the logs lack
    ``monitor``. The report ends ``fit`` by an exception when the trial pauses or is complete.
    """

    def __init__(self, trial: Reports, monitor: str = "val_loss") -> None:
        super().__init__()
        self._trial, self._monitor = trial, monitor
        self._before = -1

    def on_train_begin(self, logs: Logs = None) -> None:
        """See ``Callback``."""
        self._before = -1

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        """See ``Callback``."""
        if self._before < 0:  # the first epoch of this ``fit``
            self._before = progress_of(self.model).epochs_before(epoch)

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """See ``Callback``."""
        own, done = dict(logs or {}), self._before + epoch + 1
        self._check(own, logs, done)
        value = own.pop(self._monitor)
        numbers = {name: number for name, number in own.items() if np.ndim(number) == 0}
        self._trial.report(value, done, **self._trial.named(numbers))

    def _check(self, own: Mapping[str, Any], logs: Logs, done: int) -> None:
        """Raise ``UsageError`` unless the logs have ``monitor``, as means over ranks, and the state is current."""
        if self._monitor not in own:
            raise UsageError(
                f"ReportCallback(monitor={self._monitor!r}): the logs of epoch {done} have "
                f"{', '.join(own) or 'nothing'}; give one of these, or fit() validation_data in every epoch"
            )
        progress = progress_of(self.model)
        most = max(self._trial.workers, current().topology.size if is_initialized() else 1)
        if most > 1 and progress.averaged is not logs:
            raise UsageError(
                f"ReportCallback in a trial of up to {most} workers: each has logs of its own; put "
                "hvd.callbacks.MetricAverageCallback() before it"
            )
        elastic = progress.elastic
        if elastic is not None and elastic.first_epoch(done - 1) < done:
            raise UsageError(
                f"ReportCallback: its report of epoch {done} commits a state that does not say that it is done; make "
                "it with KerasState(model, epoch=0), and put hvd.elastic.UpdateEpochStateCallback(state) before it"
            )


__all__ = [
    "BestModelCheckpoint",
    "BroadcastGlobalVariablesCallback",
    "CheckpointCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
    "NoiseScaleCallback",
    "ReportCallback",
    "SamplesScheduleCallback",
    "VirtualWorkersCallback",
    "set_rate",
    "verbose",
]


class BroadcastGlobalVariablesCallback(keras.callbacks.Callback):
    """Broadcast of the variables of a model and its optimizer from one rank, when training begins.

    >>> model.fit(x, y, callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(root_rank=0)])

    Includes the state of layers outside variables: vocabularies, boundaries of bins, buffers of PyTorch modules.
    ``local_variables`` and the seeds of random layers are not broadcast. ``device`` has no effect.
    """

    def __init__(
        self,
        root_rank: int,
        device: str = "",
        local_variables: Iterable[Any] = (),
        process_set: ProcessSet = global_process_set,
    ) -> None:
        super().__init__()
        self._root_rank, self._process_set = root_rank, process_set
        self._local = {id(variable) for variable in local_variables or ()}

    def register_local_var(self, var: Any) -> None:
        """Exclude a variable from the broadcast; to be called before training begins."""
        self._local.add(id(var))

    def on_train_begin(self, logs: Logs = None) -> None:
        """See ``Callback``."""
        backend.build(self.model)
        shared = [v for v in variables.of_both(self.model) if id(v) not in self._local]
        variables.broadcast_variables(shared, self._root_rank, self._process_set)
        variables.broadcast_tables(self.model, self._root_rank, self._process_set)


class MetricAverageCallback(keras.callbacks.Callback):
    """Average of the metrics of an epoch over all ranks. Put it before callbacks that read them.

    >>> model.fit(x, y, callbacks=[hvd.callbacks.MetricAverageCallback(), keras.callbacks.EarlyStopping("val_loss")])

    Every rank has the same weight, for any number of samples. The means are logged for the live view, too
    (``hvd.log``). ``device`` has no effect. Raises ``UsageError`` if metrics differ between ranks.
    """

    def __init__(self, device: str = "", process_set: ProcessSet = global_process_set) -> None:
        super().__init__()
        self._process_set = process_set

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """See ``Callback``."""
        if logs is None or not takes_part(self._process_set, "MetricAverageCallback"):
            return
        own = {name: np.asarray(value, np.float64) for name, value in sorted(logs.items())}
        each = allgather_object(own, "metrics", self._process_set)
        for rank, other in zip(self._process_set.ranks, each, strict=True):
            if _shapes(other) != _shapes(each[0]):
                raise UsageError(
                    "MetricAverageCallback where ranks have other metrics than others: rank "
                    f"{self._process_set.ranks[0]} has {_shapes(each[0])} and rank {rank} has {_shapes(other)}. "
                    "Give fit() validation_data on all ranks or on none, and compile() the same metrics"
                )
        averages = {name: sum(other[name] for other in each) / len(each) for name in own}
        means = {name: float(mean) for name, mean in averages.items() if np.ndim(mean) == 0}
        logs.update(averages | means)
        if self.model is not None:
            progress_of(self.model).averaged = logs
        rank = current("MetricAverageCallback").topology.rank
        if self._process_set.rank() == 0:  # the means are the same on all ranks
            training.logs += 1
            if training.is_heard:
                training.log(None, None, means, rank)


def _shapes(metrics: dict[str, Any]) -> str:
    """Names of metrics, with the shapes of array metrics."""
    return ", ".join(f"{name}{list(value.shape) or ''}" for name, value in metrics.items())


@final
class CheckpointCallback(keras.callbacks.Callback):
    """Durable checkpoints of a training; when ``fit`` begins, it continues from the newest complete one.

    >>> model.fit(x, y, epochs=90, callbacks=[hvd.callbacks.CheckpointCallback("runs/a")])

    After every epoch, saves the model, its optimizers, the epoch and the samples of a ``SamplesScheduleCallback``; rank
    0 writes, all ranks read. Optimizers that are attributes of the model must be built. ``local_layers`` are saved for
    each rank, and need the same number of ranks. A ``fit`` of epochs that are done already trains nothing, and loads
    the model from the checkpoint, even if it was trained since. For the other arguments see
    ``farandole.checkpoint.Checkpoints``. The callback broadcasts, too: no other callback is needed for this. Seeds of
    random layers are not saved. The model of a ``KerasState`` reads a checkpoint only in its first ``fit`` with this
    callback, which sets ``state.epoch``; afterwards commits are newer, and a loaded state is newer from the beginning:
    then no checkpoint is read.
    """

    def __init__(self, root: str | os.PathLike[str], keep: int = 3, on_error: OnError = "raise") -> None:
        super().__init__()
        self._checkpoints = Checkpoints(root, keep=keep, on_error=on_error)
        self._done = 0

    def on_train_begin(self, logs: Logs = None) -> None:
        """See ``Callback``."""
        self._done = -1
        backend.build(self.model)
        progress = progress_of(self.model)
        elastic = progress.elastic
        if elastic is not None and progress.is_restored:  # equal on all ranks, like the variables
            self.model._initial_epoch = None
            return
        shared, local = variables.shared_of(self.model), variables.local_of(self.model)
        variables.broadcast_variables(shared, 0)
        variables.broadcast_tables(self.model, 0)
        found = self._checkpoints.restore()
        self.model._initial_epoch = None  # if set, ``fit`` uses it instead of its argument
        if found is not None:
            kept = found.state["variables"]
            if [array.shape for array in kept] != [tuple(v.shape) for v in shared]:
                raise UsageError(
                    f"{self._checkpoints.root}: the checkpoint of step {found.step} is that of another model or "
                    "optimizer: give CheckpointCallback another folder"
                )
            self._refuse_another_method(found.step, found.state.get("methods"))
            variables.load(shared, kept)
            if local:
                variables.load(local, self._own_part(found.state["local"]))
            progress.load_state_dict(found.state.get("progress", {}))
            self.model._initial_epoch = found.step
            if elastic is not None:
                elastic.begin_at(found.step)
        progress.is_restored = elastic is not None

    def _refuse_another_method(self, step: int, kept: list[str] | None) -> None:
        """Raise ``UsageError`` for a checkpoint of other optimizer classes, whose state may have the same shapes."""
        here = variables.methods_of(self.model)
        if kept is not None and kept != here:  # ``None``: an older checkpoint without the names
            raise UsageError(
                f"{self._checkpoints.root}: the checkpoint of step {step} is that of the optimizers {', '.join(kept)}, "
                f"and the model has {', '.join(here)}: compile it with those, or give CheckpointCallback another folder"
            )

    def _own_part(self, parts: list[list[variables.AnyArray]]) -> list[variables.AnyArray]:
        """Local layers of this rank, from those of all ranks."""
        topology = current().topology
        if len(parts) != topology.size:
            raise UsageError(
                f"{self._checkpoints.root}: the checkpoint has the local layers of {len(parts)} ranks, and here are "
                f"{topology.size}: start as many, or give CheckpointCallback another folder"
            )
        return parts[topology.rank]

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        """See ``Callback``."""
        self.model._initial_epoch = None  # ``fit`` has read it; a failed ``fit`` must not leave it to the next
        if self._done < 0:  # the first epoch of this ``fit``
            self._done = progress_of(self.model).epochs_before(epoch)

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """See ``Callback``."""
        variables.settle(self.model)
        kept: dict[str, Any] = {"variables": variables.read(variables.shared_of(self.model))}
        kept["methods"] = variables.methods_of(self.model)
        local = variables.local_of(self.model)
        if local:
            kept["local"] = allgather_object(variables.read(local))
        progress = progress_of(self.model).state_dict()
        self._checkpoints.save(self._done + epoch + 1, {**kept, "progress": progress})

    def on_train_end(self, logs: Logs = None) -> None:
        """See ``Callback``."""
        self.model._initial_epoch = None
        self._checkpoints.wait()


@final
class BestModelCheckpoint(keras.callbacks.ModelCheckpoint):
    """Checkpoint of the model with the best value of ``monitor`` so far, in a file that rank 0 writes.

    >>> hvd.callbacks.BestModelCheckpoint(monitor="val_loss", filepath="best.keras")

    Put it after ``MetricAverageCallback``, so that the value is the mean over all ranks. With ``save_weights_only`` the
    default of ``filepath`` is ``best.weights.h5``.
    """

    def __init__(
        self,
        monitor: str = "val_loss",
        verbose: int = 0,
        save_weights_only: bool = False,
        mode: str = "auto",
        save_freq: str | int = "epoch",
        filepath: str | os.PathLike[str] = "",
    ) -> None:
        super().__init__(
            os.fspath(filepath) or ("best.weights.h5" if save_weights_only else "best.keras"),
            monitor=monitor,
            verbose=verbose,
            save_best_only=True,
            save_weights_only=save_weights_only,
            mode=mode,
            save_freq=save_freq,
        )

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        """See ``Callback``."""
        if current().topology.rank == 0:
            super().on_train_batch_end(batch, logs)

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """See ``Callback``."""
        if current().topology.rank == 0:
            super().on_epoch_end(epoch, logs)


def verbose(level: int | str) -> int | str:
    """``level`` on rank 0, 0 on other ranks: for ``fit(verbose=)``, so that only one rank prints progress.

    >>> model.fit(x, y, verbose=hvd.verbose(1))
    """
    return level if current("verbose").topology.rank == 0 else 0
