"""A training of an elastic job with Keras, for tests: ``python elastic_training.py FOLDER``.

Rank 1 is killed in the middle of an epoch, in the middle of a step between two commits, in its first generation. The
training goes on in the middle of the epoch, until another worker has come and trained for an epoch more. The batch of
all ranks together stays what it is, so the oracle, ``undisturbed``, is one process that knows nothing of this.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np

import farandole.keras as hvd
from farandole.keras import variables
from farandole.runtime.session.init import current

EPOCHS, ROWS, GLOBAL_BATCH, COMMIT_EVERY, KILLED_AT = 3, 96, 8, 3, 16
UNHURRIED_S = 0.05
"""Pause of a step while another worker is awaited, who needs the processor to load Keras."""

random = np.random.default_rng(0)
X = random.normal(size=(ROWS, 5)).astype(np.float32)
Y = (X @ random.normal(size=(5, 2))).astype(np.float32)


def network() -> Any:
    """A model with an optimizer that remembers."""
    keras.utils.set_random_seed(1)
    layers = [keras.layers.Dense(8, activation="tanh"), keras.layers.Dropout(0.0), keras.layers.Dense(2)]
    return keras.Sequential([keras.Input((5,)), *layers])


def optimizer() -> Any:
    """An optimizer that remembers, and averages weights at the end of an epoch."""
    return keras.optimizers.Adam(0.01)


def values(model: Any) -> list[Any]:
    """Of the model and of its optimizer."""
    return [array.tolist() for array in variables.read(variables.of_both(model))]


class Ledger(keras.callbacks.Callback):  # type: ignore[misc]
    """Samples that this rank has trained on since the last commit, and at the end all that were committed."""

    def __init__(self, batches: Any, state: Any) -> None:
        super().__init__()
        self._batches, self._state = batches, state

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        topology = current().topology
        if (self._state.step, topology.rank, topology.generation) == (KILLED_AT, 1, 1):
            os.kill(os.getpid(), signal.SIGKILL)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        used = hvd.allgather_object([int(row) for row in self._batches.rows(batch)])
        self._state.seen = [*self._state.seen, sorted(row for rows in used for row in rows)]
        self._state.step += 1
        if hvd.size() == 1:
            time.sleep(UNHURRIED_S)


def noted_sizes(state: Any) -> tuple[list[tuple[float, int]], Callable[[], None]]:
    """Of a compiled model that the state does not have: a newcomer calls it while it is alone, others in a callback."""
    sized = keras.Sequential([keras.Input((1,)), keras.layers.Lambda(lambda x: x * hvd.size())])
    sizes: list[tuple[float, int]] = []

    def note() -> None:
        sizes.append((float(sized.predict_on_batch(np.ones((1, 1), np.float32))[0, 0]), hvd.size()))

    note()
    state.register_reset_callbacks([note])
    return sizes, note


def undisturbed(epochs: int) -> list[Any]:
    """Train alone."""
    model = network()
    model.compile(optimizer(), loss="mse")
    for epoch in range(epochs):
        sampler = hvd.elastic.ElasticSampler(X)
        sampler.set_epoch(epoch)
        rows = list(sampler.remaining_indices)
        model.fit(X[rows], Y[rows], batch_size=GLOBAL_BATCH, shuffle=False, verbose=0)
    return values(model)


def main(folder: str) -> None:
    """One worker."""
    hvd.init()
    model = network()
    model.compile(hvd.DistributedOptimizer(optimizer()), loss="mse")
    sampler = hvd.elastic.ElasticSampler(X)
    state: Any = hvd.elastic.KerasState(model, sampler=sampler, epoch=0, batch=0, step=0, seen=[], until=-1, sizes=[])

    numbers, note = noted_sizes(state)

    @hvd.elastic.run
    def train(state: Any) -> None:
        topology = current().topology
        note()
        if topology.generation > 1 and topology.size == 2 and state.until < 0:
            state.until = state.epoch + 2
        while state.epoch < max(EPOCHS, state.until) or state.until < 0:
            sampler.set_epoch(state.epoch)
            state.sizes = [*state.sizes, [hvd.size(), sampler.processed_num]]
            batches = hvd.elastic.SampledBatches(
                sampler, lambda rows: (X[rows], Y[rows]), batch_size=GLOBAL_BATCH // hvd.size()
            )
            model.fit(
                batches, initial_epoch=state.epoch, epochs=state.epoch + 1, verbose=0, shuffle=False,
                callbacks=[
                    Ledger(batches, state),
                    hvd.elastic.RecordSamplesCallback(batches),
                    hvd.elastic.UpdateBatchStateCallback(state),
                    hvd.elastic.UpdateEpochStateCallback(state),
                    hvd.elastic.CommitStateCallback(state, batches_per_commit=COMMIT_EVERY),
                ],
            )  # fmt: skip

    train(state)
    generation = current().topology.generation
    hvd.shutdown()
    said = {
        "epochs": state.epoch, "generation": generation, "seen": state.seen, "batch": state.batch, "step": state.step,
        "sizes": state.sizes, "numbers": numbers, "values": values(model),
    }  # fmt: skip
    Path(folder, f"result-{os.getpid()}.json").write_text(json.dumps([said, undisturbed(state.epoch)]))


if __name__ == "__main__":
    main(sys.argv[1])
