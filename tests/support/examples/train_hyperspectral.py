"""Train the network of ``examples/hyperspectral`` on the ranks that there are, and take it to another scene.

``python train_hyperspectral.py RESULT``: rank 0 writes what came of it to ``RESULT.npz``; and, on one rank, what Keras
alone comes to with the same global batches.
"""

from __future__ import annotations

import os
import sys
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "torch")

import keras
import numpy as np

from examples.common.training import SEED_STRIDE
from examples.hyperspectral import transfer
from examples.hyperspectral.data import Patches, by_region, few
from examples.hyperspectral.model import NETWORKS
from examples.hyperspectral.scene import make
from farandole import keras as hvd
from farandole.elastic.worker.sampler import shuffled
from farandole.graphs.gradients import GraphGradients

PIXELS, BATCH, EPOCHS, SEED = 512, 64, 2, 3
reduced: list[int] = []
"""Numbers that each step has reduced."""


def watch() -> None:
    """Count what is reduced from now on."""
    reduce = GraphGradients.reduce

    def counted(self: Any, gradients: Any, *others: Any, **named: Any) -> Any:
        reduced.append(sum(int(np.prod(np.shape(each))) for each in gradients))
        return reduce(self, gradients, *others, **named)

    GraphGradients.reduce = counted  # type: ignore[method-assign]


def alone(train: Patches) -> Any:
    """Keras, and nothing of ours but the network and the order of the samples."""
    model = NETWORKS["small"].built(train, SEED)
    model.compile(keras.optimizers.Adam(3e-3), loss="categorical_crossentropy")
    for epoch in range(EPOCHS):
        order = list(shuffled(len(train), SEED_STRIDE * SEED, epoch))
        for begin in range(0, len(order), BATCH):
            x, y = zip(*(train[int(i)] for i in order[begin : begin + BATCH]), strict=True)
            model.train_on_batch(np.stack(x), np.stack(y))
    return model


def main(result: str) -> None:
    """Train, and write it down."""
    from examples.common.keras_fit import fit

    hvd.init()
    scene, there = make(1), make(51)
    seen, _ = by_region(scene, np.random.default_rng(0))
    train = Patches(scene, seen[:PIXELS])
    model, losses = NETWORKS["small"].built(train, SEED), list[float]()
    fit(model, train, epochs=EPOCHS, global_batch=BATCH, seed=SEED, after_epoch=lambda _, loss: losses.append(loss))
    found: dict[str, Any] = {"losses": losses, **_weights("trained", model)}
    watch()
    labeled = Patches(there, few(there, by_region(there, np.random.default_rng(0))[0], 4))
    for name, step in (("frozen", transfer.frozen), ("thawed", transfer.thawed)):
        reduced.clear()
        model = step(model, labeled, SEED)
        found |= _weights(name, model) | {f"{name}-reduced": reduced.copy()}
        found[f"{name}-kept"] = sum(int(np.prod(each.shape)) for each in model.optimizer.variables)
    everywhere = hvd.allgather_object([weight.tobytes() for weight in model.get_weights()])
    found["is-alike"] = all(each == everywhere[0] for each in everywhere)
    if hvd.rank() == 0:
        found |= _weights("plain", alone(train)) if hvd.size() == 1 else {}
        np.savez(result, **found)
    hvd.shutdown()


def _weights(name: str, model: Any) -> dict[str, Any]:
    return {f"{name}-{i}": weight for i, weight in enumerate(model.get_weights())}


if __name__ == "__main__":
    main(*sys.argv[1:])
