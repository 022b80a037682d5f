"""Reports of ``model.fit`` to a trial of ``farandole.search``.

model.fit(x, y, validation_data=(u, v), epochs=trial.epochs, callbacks=[
    hvd.callbacks.MetricAverageCallback(),
    hvd.callbacks.ReportCallback(trial),
])
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, final

import keras
import numpy as np

from farandole.errors import UsageError
from farandole.keras.model_progress import progress_of
from farandole.keras.rates import Logs
from farandole.runtime.session.init import current, is_initialized


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
