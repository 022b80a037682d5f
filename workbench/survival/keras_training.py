"""Training under faults with ``fit``: ``python -m workbench.survival.keras_training FOLDER PLAN`` is one worker.

The backend is the one that ``KERAS_BACKEND`` names, by default PyTorch.
"""

from __future__ import annotations

import os

os.environ.setdefault("KERAS_BACKEND", "torch")

from typing import Any, final

import keras
import numpy as np
import numpy.typing as npt

import farandole.keras as hvd
from workbench.survival.counted_training import COMMIT_EVERY, GLOBAL_BATCH, ROWS, CountedTraining, plan_of_command


@final
class _PhasesCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Reports each batch to the training."""

    def __init__(self, training: KerasTraining, batches: Any) -> None:
        super().__init__()
        self._training, self._batches = training, batches

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """See ``Callback``."""
        self._training.begins(self._batches.rows(batch))

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """See ``Callback``."""
        self._training.applied()


@final
class KerasTraining(CountedTraining):
    """See ``CountedTraining``; a ``fit`` for what is left of each epoch."""

    def build(self) -> Any:
        """See ``CountedTraining``."""
        self._model = keras.Sequential(
            [keras.Input((len(ROWS),)), keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")]
        )
        optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(float(GLOBAL_BATCH)))
        self._model.compile(optimizer, loss=lambda _, found: found[:, 0])
        sampler = hvd.elastic.ElasticSampler(range(len(ROWS)), seed=3)
        return hvd.elastic.KerasState(self._model, sampler=sampler, epoch=0)

    def epoch(self) -> None:
        """See ``CountedTraining``."""
        state, share = self.state, GLOBAL_BATCH // hvd.size()
        batches = hvd.elastic.SampledBatches(state.sampler, lambda rows: (ROWS[rows], rows), batch_size=share)
        self._model.fit(
            batches,
            initial_epoch=state.epoch,
            epochs=state.epoch + 1,
            verbose=0,
            shuffle=False,
            callbacks=[
                _PhasesCallback(self, batches),
                hvd.elastic.RecordSamplesCallback(batches),
                hvd.elastic.UpdateEpochStateCallback(state),
                hvd.elastic.CommitStateCallback(state, batches_per_commit=COMMIT_EVERY),
            ],
        )

    def weights(self) -> npt.NDArray[np.float32]:
        """See ``CountedTraining``."""
        found: npt.NDArray[np.float32] = keras.ops.convert_to_numpy(self._model.trainable_variables[0])[:, 0]
        return found


def main() -> None:
    """Train as one worker."""
    folder, plan = plan_of_command()
    hvd.init()
    training = KerasTraining(folder, plan)
    train = hvd.elastic.run(training.train)
    train(training.state)
    training.finish()


if __name__ == "__main__":
    main()
