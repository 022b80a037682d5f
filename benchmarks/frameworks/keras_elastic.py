"""One elastic worker of Keras 3: ``FOLDER KILLS``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras

import farandole.keras as hvd
from benchmarks.frameworks.keras_runs import fitted
from benchmarks.frameworks.runs import CNN, batch
from benchmarks.frameworks.strikes import Strikes


class Strike(keras.callbacks.Callback):
    """Commits and strikes after every batch, and ends ``fit`` when all is survived."""

    def __init__(self, state: Any, strikes: Strikes) -> None:
        super().__init__()
        self._state, self._strikes = state, strikes

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """See ``Callback``."""
        self._state.commit()
        self.model.stop_training = self._strikes.stepped(hvd.rank(), hvd.size())


@hvd.elastic.run
def train(state: Any, strikes: Strikes) -> None:
    """Train in short epochs until all kills have been survived."""
    strikes.begin()
    state.model.fit(batches(), steps_per_epoch=1, epochs=10**6, verbose=0, callbacks=[Strike(state, strikes)])


def batches() -> Iterator[Any]:
    """The same batch for ever."""
    while True:
        yield batch(CNN)


def main() -> None:
    """Train, and leave in good order."""
    hvd.init()
    model, _ = fitted(CNN, hvd.DistributedOptimizer)
    model.optimizer.build(model.trainable_variables)
    train(hvd.elastic.KerasState(model), Strikes(Path(sys.argv[1]), int(sys.argv[2])))
    hvd.shutdown()


if __name__ == "__main__":
    main()
