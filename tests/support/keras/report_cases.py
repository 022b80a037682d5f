"""Cases of ``ReportCallback``: what a trial of a search is told of a ``fit``."""

from __future__ import annotations

import contextlib
from typing import Any

import keras
import numpy as np

import farandole.keras as hvd
from farandole.control.search_messages import TrialOrder, TrialReport, TrialVerdict
from farandole.errors import UsageError
from farandole.search.trial import Trial, TrialEnded
from tests.support.keras.cases import GLOBAL_BATCH, X, Y, case, compiled, fit, mine
from tests.support.raising import raises


def trial(epochs: int = 3, last: int = 3) -> tuple[Trial, list[TrialReport]]:
    """A trial of all ranks that ends after an epoch, and what it is told on rank 0."""
    said: list[TrialReport] = []

    def ask(report: TrialReport) -> TrialVerdict:
        said.append(report)
        return TrialVerdict(7, report.epoch, goes_on=report.epoch < last, reason="enough")

    order = TrialOrder(7, 0, {"loss": 1.0}, 1, epochs, [], "none", "none", hvd.size(), b"")
    return Trial(order, ask), said


def reporting(own: Trial, monitor: str = "val_loss", **how: Any) -> Any:
    """Train with reports, behind means; returns the history."""
    model = compiled(keras.optimizers.SGD(0.05))
    means = hvd.callbacks.MetricAverageCallback()
    share = GLOBAL_BATCH // hvd.size()
    told = {"validation_data": (mine(X), mine(Y)), "validation_batch_size": share, "epochs": own.epochs, **how}
    return fit(model, callbacks=[*told.pop("before", [means]), hvd.callbacks.ReportCallback(own, monitor)], **told)


@case
def reports_are_the_means_of_all_ranks_after_each_epoch() -> None:
    own, said = trial(last=9)
    history = reporting(own)
    assert [each.epoch for each in said] == ([1, 2, 3] if hvd.rank() == 0 else [])
    for i, each in enumerate(said):
        assert each.value == history.history["val_loss"][i]
        assert each.metrics == {"loss_now": history.history["loss"][i]}  # as the trial has a parameter of that name


@case
def a_trial_that_is_to_pause_leaves_fit_on_all_ranks() -> None:
    own, said = trial(last=2)
    with contextlib.suppress(TrialEnded):  # no error, so that no script takes it for one
        reporting(own)
        raise AssertionError("it went on")
    assert [each.epoch for each in said] == ([1, 2] if hvd.rank() == 0 else [])


@case
def epochs_of_before_count() -> None:
    own, said = trial(last=9)
    reporting(own, "loss", initial_epoch=1)
    assert [each.epoch for each in said] == ([2, 3] if hvd.rank() == 0 else [])
    for first, epochs in ((1, 3), (0, 2)):  # the two ways of going on of an elastic script
        own, said = trial(last=9)
        model = compiled(keras.optimizers.SGD(0.05))
        state = hvd.elastic.KerasState(model, epoch=1)
        counting = hvd.elastic.UpdateEpochStateCallback(state)
        means = hvd.callbacks.MetricAverageCallback()
        fit(
            model,
            callbacks=[means, counting, hvd.callbacks.ReportCallback(own, "loss")],
            epochs=epochs,
            initial_epoch=first,
        )
        assert [each.epoch for each in said] == ([2, 3] if hvd.rank() == 0 else [])
        own, said = trial(last=9)
        with raises(UsageError, "UpdateEpochStateCallback(state) before it"):
            fit(
                model, callbacks=[means, hvd.callbacks.ReportCallback(own, "loss"), counting], epochs=9, initial_epoch=3
            )
        assert not said


@case
def reports_without_what_they_need_are_refused() -> None:
    own, said = trial()
    with raises(UsageError, "the logs of epoch 1 have loss, val_loss; give one of these"):
        reporting(own, "accuracy")
    with raises(UsageError, "the logs of epoch 1 have loss; give one of these, or fit() validation_data"):
        reporting(own, validation_data=None, validation_batch_size=None)
    if hvd.size() > 1:
        with raises(UsageError, "put hvd.callbacks.MetricAverageCallback() before it"):
            reporting(own, before=[])
    assert not said


@case
def what_is_no_number_of_an_epoch_is_no_metric() -> None:
    own, said = trial(last=9)
    vectors = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda _, logs: logs.update({"each": np.zeros(3), "top-5": np.float32(0.5)})
    )
    reporting(own, before=[vectors, hvd.callbacks.MetricAverageCallback()])
    assert all(each.metrics.keys() == {"loss_now", "top_5"} for each in said)
