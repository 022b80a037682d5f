"""One elastic worker of JAX with optax: ``FOLDER KILLS``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax

import farandole.jax as hvd
from benchmarks.frameworks.jax_training import loss_of, params, sgd
from benchmarks.frameworks.runs import MLP, batch
from benchmarks.frameworks.strikes import Strikes
from farandole.jax import elastic

SMALL = (784, 400, 10)
"""A network of 1.2 MB, as that of the other frameworks here."""


@elastic.run
def train(state: Any, optimizer: Any, strikes: Strikes) -> None:
    """Train until all kills have been survived."""

    @jax.jit
    def update(weights: Any, held: Any, inputs: Any, labels: Any) -> tuple[Any, Any]:
        gradients = jax.grad(loss_of)(weights, inputs, labels)
        updates, held = optimizer.update(gradients, held, weights)
        return optax.apply_updates(weights, updates), held

    inputs, labels = map(jnp.asarray, batch(MLP))
    strikes.begin()
    while True:
        state.weights, state.held = update(state.weights, state.held, inputs, labels)
        state.commit()
        if strikes.stepped(hvd.rank(), hvd.size()):
            return


def main() -> None:
    """Train, and leave in good order."""
    hvd.init()
    optimizer, weights = hvd.DistributedOptimizer(sgd()), jax.tree.map(jnp.asarray, params(SMALL))
    state = elastic.JaxState(weights=weights, held=optimizer.init(weights))
    train(state, optimizer, Strikes(Path(sys.argv[1]), int(sys.argv[2])))
    hvd.shutdown()


if __name__ == "__main__":
    main()
