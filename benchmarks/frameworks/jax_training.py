"""A network in JAX and its training, the same for all contenders."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from benchmarks.frameworks.runs import MLP, MOMENTUM, RATE, WIDTHS, Run, batch, timed

ROW, CALL = f"JAX with optax: {MLP}", "JAX, in jit"


def sgd() -> Any:
    """The optimizer of all contenders."""
    return optax.sgd(RATE, momentum=MOMENTUM)


def params(widths: Sequence[int] = WIDTHS) -> list[dict[str, np.ndarray[Any, Any]]]:
    """Weights of the network, the same on all ranks."""
    random = np.random.default_rng(0)
    return [
        {"w": random.standard_normal((a, b), np.float32) / np.float32(a) ** 0.5, "b": np.zeros(b, np.float32)}
        for a, b in itertools.pairwise(widths)
    ]


def loss_of(weights: Any, inputs: Any, labels: Any) -> Any:
    """Cross-entropy of the network."""
    for layer in weights[:-1]:
        inputs = jax.nn.relu(inputs @ layer["w"] + layer["b"])
    logits = inputs @ weights[-1]["w"] + weights[-1]["b"]
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def trained(optimizer: Any, placed: Any = jnp.asarray, data: Any = None) -> Run:
    """Steps of a training whose weights and state are ``placed``, on one batch or the ``data``."""

    @jax.jit
    def update(weights: Any, state: Any, inputs: Any, labels: Any) -> tuple[Any, Any]:
        gradients = jax.grad(loss_of)(weights, inputs, labels)
        updates, state = optimizer.update(gradients, state, weights)
        return optax.apply_updates(weights, updates), state

    weights = jax.tree.map(placed, params())
    held = weights, optimizer.init(weights)
    given = data if data is not None else tuple(map(jnp.asarray, batch(MLP)))

    def step() -> Any:
        nonlocal held
        held = update(*held, *given)
        return held

    return timed(step, jax.block_until_ready)
