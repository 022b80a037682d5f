"""``fit``: an elastic training of any Keras model on any data set that ``farandole.data`` loads.

model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(3e-3)), loss="mse")
fit(model, patches, epochs=8, global_batch=64, seed=0)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from typing import Any

from keras.callbacks import LambdaCallback

import farandole.keras as hvd
from examples.common.training import SEED_STRIDE
from farandole.keras.batches_dataset import BatchesDataset
from farandole.testing.ledger import Ledger

COMMIT_EVERY = 10
"""Steps that a fault costs at most."""


def fit(
    model: Any,
    dataset: Any,
    *,
    epochs: int,
    global_batch: int,
    seed: int = 0,
    augment: Sequence[Any] = (),
    after_epoch: Callable[[int, float], object] = lambda epoch, loss: None,  # noqa: ARG005 (who has nothing to say)
    checkpoints: str = "",
    ledger: str = "",
) -> None:
    """Train a model that is compiled with a distributed optimizer; all ranks call it together, after ``hvd.init()``.

    ``augment``: steps of ``hvd.data.augment``. ``after_epoch`` is told, on every rank, how many epochs have passed, and
    the mean loss of the last one.
    ``checkpoints``: a folder to write one into after each epoch, and to go on from; ``ledger``: a folder in which each
    worker writes down what it has computed.
    """
    model.optimizer.build(model.trainable_variables)
    sampler = hvd.elastic.ElasticSampler(dataset, seed=SEED_STRIDE * seed)
    batches = hvd.data.Batches(dataset, global_batch_size=global_batch, sampler=sampler, threads=1, augment=augment)
    state: Any = hvd.elastic.KerasState(model, sampler=sampler, epoch=0)
    always = [
        hvd.callbacks.MetricAverageCallback(),
        LambdaCallback(on_epoch_end=lambda epoch, logs: after_epoch(epoch + 1, logs["loss"])),
        *([hvd.callbacks.CheckpointCallback(checkpoints)] if checkpoints else []),
    ]
    with ExitStack() as stack:
        writing = stack.enter_context(closing(Ledger(ledger, state))) if ledger else None

        @hvd.elastic.run
        def train(state: Any) -> None:
            while state.epoch < epochs:
                sampler.set_epoch(state.epoch)
                left = BatchesDataset(batches)
                own = [
                    hvd.elastic.RecordSamplesCallback(left),
                    hvd.elastic.UpdateEpochStateCallback(state),
                    hvd.elastic.CommitStateCallback(state, batches_per_commit=COMMIT_EVERY),
                    *([_written(writing, left)] if writing else []),
                ]
                at = {"initial_epoch": state.epoch, "epochs": state.epoch + 1}
                model.fit(left, **at, shuffle=False, verbose=0, callbacks=[*always, *own])

        train(state)


def _written(ledger: Ledger, left: BatchesDataset) -> Any:
    def write(batch: int, logs: Any = None) -> None:  # noqa: ARG001 (Keras gives it by name)
        ledger.brought("sampler", left.sampler.epoch, left.rows(batch).tolist())

    return LambdaCallback(on_train_batch_begin=write)
