"""Named calls in programs, again and again: ``farandole run -np 2 python stress.py STEPS [arrival]``.

Six gradients of one shape, each reduced by a call of its own, on few threads. With ``arrival`` calls get names by the
order in which XLA begins them: this is what matching by name protects from.
"""

from __future__ import annotations

import os
import sys
from typing import Any

os.environ["NPROC"] = "2"  # threads of XLA

import itertools

import jax
import jax.numpy as jnp
import msgspec
import numpy as np

import farandole.jax as hvd
from farandole.graphs import calls
from farandole.graphs.library import AnyCall

LAYERS, WIDTH = 6, 512


def by_arrival() -> None:
    """Let names be numbers, in the order of the calls' arrival."""
    numbers, begin = itertools.count(), calls._BEGIN["allreduce"]

    def renamed(call: AnyCall, spec: calls.Spec, process_set: hvd.ProcessSet) -> calls.Begun:
        return begin(call, msgspec.structs.replace(spec, name=f"arrival {next(numbers)}"), process_set)

    calls._BEGIN["allreduce"] = renamed


def main(steps: int) -> None:
    """Train, and compare all bits."""
    hvd.init()
    rank = hvd.rank()
    random = np.random.default_rng(0)
    weights = {f"w{i}": jnp.asarray(random.normal(size=(WIDTH, WIDTH)) / 12, "float32") for i in range(LAYERS)}

    def loss(weights: dict[str, jax.Array], x: jax.Array) -> jax.Array:
        branches = [jnp.tanh(x @ weights[f"w{i}"]).sum() * (i + 1) for i in range(LAYERS)]
        return sum(branches, jnp.zeros(())) / WIDTH

    gradients_of = hvd.value_and_grad(loss, bucket_bytes=1)

    @jax.jit
    def step(weights: Any, x: jax.Array) -> Any:
        return jax.tree.map(lambda w, g: w - 0.01 * g, weights, gradients_of(weights, x)[1])

    for i in range(steps):
        x = np.random.default_rng([i, rank]).normal(size=(64, WIDTH)).astype("float32")
        weights = step(weights, jnp.asarray(x))
    mine = [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(weights)]
    equal = all(theirs == mine for theirs in hvd.allgather_object(mine))
    hvd.shutdown()
    print("equal" if equal else "different", flush=True)


if __name__ == "__main__":
    if "arrival" in sys.argv:
        by_arrival()
    main(int(sys.argv[1]))
