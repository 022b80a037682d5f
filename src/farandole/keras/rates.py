"""Callbacks for ``model.fit`` that set the learning rate: by epochs, like Horovod's, and by the samples seen.

model.fit(x, y, callbacks=[hvd.callbacks.LearningRateWarmupCallback(initial_lr=0.1 * hvd.size(), warmup_epochs=5)])
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias, final

import keras
import numpy as np

from farandole.errors import UsageError
from farandole.keras import variables
from farandole.keras.model_progress import progress_of, require_counted
from farandole.keras.optimizer_tree import leaves, passes_of
from farandole.largebatch.progress import ScheduleProgress
from farandole.largebatch.schedule import Schedule
from farandole.runtime.session.init import current

Multiplier: TypeAlias = Callable[[float], float]
Logs: TypeAlias = dict[str, Any] | None


class LearningRateScheduleCallback(keras.callbacks.Callback):
    """Learning rate ``initial_lr * multiplier(epoch)`` from ``start_epoch`` to before ``end_epoch``.

    >>> hvd.callbacks.LearningRateScheduleCallback(0.1 * hvd.size(), multiplier=lambda epoch: 0.1 ** (epoch // 30))

    ``multiplier`` is a number or a function. Without ``staircase`` the rate changes with every batch, and the function
    gets fractions of epochs; the default of ``steps_per_epoch`` is the number that ``fit`` knows.
    ``momentum_correction`` multiplies the velocities of SGD by the ratio of the new rate to the old one (Goyal et al.
    2017, equation 10). With ``steps_per_execution`` all batches of a call have the rate of the first. If the model has
    a ``KerasState`` with an ``epoch``, a ``fit`` that counts from 0 again continues with the rate of that epoch.
    """

    def __init__(
        self,
        initial_lr: float,
        multiplier: float | Multiplier,
        start_epoch: int = 0,
        end_epoch: int | None = None,
        staircase: bool = True,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
    ) -> None:
        super().__init__()
        if initial_lr is None:
            raise UsageError(f"{type(self).__name__}(initial_lr=None): give the rate that the multiplier is for")
        self._initial_lr, self._corrects = initial_lr, momentum_correction
        self._staircase = staircase or not callable(multiplier)
        self._start_epoch, self._end_epoch, self._steps_per_epoch = start_epoch, end_epoch, steps_per_epoch
        self._multiplier: Multiplier = multiplier if callable(multiplier) else lambda _: float(multiplier)
        self._epoch, self._done = 0, -1

    def on_train_begin(self, logs: Logs = None) -> None:
        """See ``Callback``."""
        self._done = -1
        if not self._staircase and not self._steps():
            raise UsageError(
                f"{type(self).__name__} changes the rate with every batch and fit() does not know how many an epoch "
                "has: pass steps_per_epoch"
            )

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        """See ``Callback``."""
        if self._done < 0:  # the first epoch of this ``fit``
            self._done = progress_of(self.model).epochs_before(epoch)
        self._epoch = self._done + epoch
        if self._staircase:
            self._move(float(self._epoch))

    def on_train_batch_begin(self, batch: int, logs: Logs = None) -> None:
        """See ``Callback``."""
        if not self._staircase:
            self._move(self._epoch + batch / self._steps())

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """See ``Callback``; adds the rate to the epoch's logs."""
        if logs is not None:
            logs["lr"] = float(keras.ops.convert_to_numpy(self.model.optimizer.learning_rate))

    def _steps(self) -> int:
        return self._steps_per_epoch or self.params.get("steps") or 0

    def _move(self, epoch: float) -> None:
        begun = epoch >= self._start_epoch
        if begun and (self._end_epoch is None or epoch < self._end_epoch):
            set_rate(self.model, self._initial_lr * self._multiplier(epoch), self._corrects)


class LearningRateWarmupCallback(LearningRateScheduleCallback):
    """Warm-up of the learning rate from ``initial_lr / size`` to ``initial_lr`` (Goyal et al. 2017).

    >>> hvd.callbacks.LearningRateWarmupCallback(initial_lr=0.1 * hvd.size(), warmup_epochs=5, verbose=1)

    ``initial_lr`` is the rate for all ranks together. It rises with every batch; see ``LearningRateScheduleCallback``
    for ``steps_per_execution``.
    """

    def __init__(
        self,
        initial_lr: float,
        warmup_epochs: float = 5,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
    ) -> None:
        self._warmup_epochs, self._verbose = warmup_epochs, verbose
        super().__init__(initial_lr, self._rise, 0, None, False, momentum_correction, steps_per_epoch)

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """See ``Callback``."""
        super().on_epoch_end(epoch, logs)
        if self._verbose and self._epoch + 1 == math.ceil(self._warmup_epochs) and current().topology.rank == 0:
            print(f"\nEpoch {self._epoch + 1}: finished gradual learning rate warmup to {self._initial_lr:g}.")

    def _move(self, epoch: float) -> None:
        # The last batch of the warm-up has the full rate; later batches belong to other schedules.
        if epoch < self._warmup_epochs:
            super()._move(min(epoch + 1 / self._steps(), self._warmup_epochs))

    def _rise(self, epoch: float) -> float:
        size = current().topology.size
        return 1 / size * (epoch * (size - 1) / self._warmup_epochs + 1)


@final
class SamplesScheduleCallback(ScheduleProgress, keras.callbacks.Callback):
    """Learning rate by the number of samples seen, from a schedule of ``farandole.largebatch``.

    >>> found = recipe(optimizer="sgd", base_lr=0.1, base_batch=256, global_batch=4096, epochs=90)
    >>> model.fit(x, y, callbacks=[hvd.callbacks.SamplesScheduleCallback(found.schedule, epoch_samples=len(x))])

    ``epoch_samples``: samples of an epoch over all ranks. ``batch``: samples of a batch over all ranks; by default the
    schedule's samples of a step, divided by the number of batches that the optimizer accumulates. The rate makes no
    jump if the number of ranks changes, or the schedule's ``global_batch`` (for example from ``hvd.size()``), or
    ``epoch_samples``. The count of samples belongs to the model: a ``KerasState`` (with this callback before
    ``CommitStateCallback``) and a ``CheckpointCallback`` save it, and a ``fit`` continues from it, or from its
    ``initial_epoch``.
    Raises ``UsageError`` for rules that need a measured gain, and for ``steps_per_execution`` with scaled losses,
    or before Keras 3.11.
    """

    def __init__(self, schedule: Schedule, epoch_samples: int, batch: int | None = None) -> None:
        keras.callbacks.Callback.__init__(self)
        ScheduleProgress.__init__(self, schedule, epoch_samples, None, ", which this callback has not")
        self._batch, self._passes = batch, 1
        self._is_known, self._is_beginning = False, True

    def on_train_begin(self, logs: Logs = None) -> None:
        """See ``Callback``."""
        self._is_beginning = True
        require_counted(self.model, "SamplesScheduleCallback")
        self._passes = passes_of(self.model.optimizer, "SamplesScheduleCallback")
        each = self.model.steps_per_execution
        if each > 1 and hasattr(self.model.optimizer, "inner_optimizer"):
            raise UsageError(
                f"SamplesScheduleCallback with scaled losses and steps_per_execution={each}: a step that is skipped is "
                "not counted, so nobody can say how many batches a call had: leave it at 1, or train in bfloat16"
            )

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        """See ``Callback``."""
        if self._is_beginning:
            variables.settle(self.model)
            asked = self.position.epoch_samples, epoch, self._batch_now(), self._is_known
            self.position = progress_of(self.model).begin(self.schedule, *asked)
            self._is_known, self._is_beginning = True, False

    def _batch_now(self) -> int | None:
        """Samples of the next Keras batch; several batches may make a step."""
        if self._batch is not None or self._passes == 1:
            return self._batch
        step = self.schedule.batch(self.position)
        if step % self._passes:
            raise UsageError(
                f"SamplesScheduleCallback with steps of {step} samples and an optimizer that accumulates "
                f"{self._passes} batches: say how many samples a batch has on all ranks together, by batch="
            )
        return step // self._passes

    def on_train_batch_begin(self, batch: int, logs: Logs = None) -> None:
        """See ``Callback``."""
        set_rate(self.model, self.rate, corrects_momentum=False)
        progress_of(self.model).place(self.position)

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        """See ``Callback``."""
        variables.settle(self.model)
        progress = progress_of(self.model)
        # The last call of an epoch may have fewer steps than others, which ``batch`` does not show.
        done = progress.steps_since if self.model.steps_per_execution > 1 else 1
        for _ in range(done):
            self.advance(self._batch_now())
        progress.measure(self.position)


def set_rate(model: Any, rate: float, corrects_momentum: bool) -> None:
    """Set the learning rate of the model's optimizer, and correct velocities, which contain the old rate."""
    variables.settle(model)
    optimizer = model.optimizer
    stepping = leaves(optimizer)
    if len(stepping) != 1 or not hasattr(stepping[0]._learning_rate, "assign"):
        what = "several optimizers with rates of their own" if len(stepping) != 1 else "a schedule as learning_rate"
        raise UsageError(
            f"a callback sets the learning rate of a {type(optimizer).__name__} that has {what}: compile the model "
            "with one optimizer and a number, or leave the callback away"
        )
    before = float(keras.ops.convert_to_numpy(optimizer.learning_rate))
    if before == np.float32(rate):
        return
    optimizer.learning_rate = rate
    inner = stepping[0]
    has_velocities = isinstance(inner, keras.optimizers.SGD) and inner.built and inner.momentum
    if corrects_momentum and before > 0 and has_velocities:
        for velocity in inner.momentums:
            if velocity is not None:
                velocity.assign(velocity * (rate / before))
