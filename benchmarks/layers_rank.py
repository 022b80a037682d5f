"""One rank of ``benchmarks.layers``: a rank of ``releases_rank`` in which one layer is off (``WITHOUT``)."""

from __future__ import annotations

import os
from collections.abc import Callable

import jax
import jax.numpy as jnp
import torch
from torch.nn.functional import cross_entropy

import farandole.jax as hvd_jax
import farandole.torch as hvd
from benchmarks import releases_rank
from benchmarks.frameworks.jax_training import loss_of, params, sgd
from benchmarks.frameworks.runs import WIDTHS, batch
from benchmarks.layers_numpy_rank import turn_off
from benchmarks.models import make

TINY = (784, 64, 10)


def logged(work: str) -> Callable[[], None]:
    """Training step of PyTorch that all-reduces its loss by name."""
    task = make(work)
    optimizer = hvd.DistributedOptimizer(task.optimizer(), named_parameters=task.network.named_parameters())

    def step() -> None:
        optimizer.zero_grad()
        loss = cross_entropy(task.network(task.inputs), task.labels)
        loss.backward()
        optimizer.step()
        hvd.allreduce(loss.detach(), name="loss")

    return step


def jitted(widths: tuple[int, ...]) -> Callable[[], None]:
    """Jitted training step of JAX that all-reduces its loss by name, inside of the graph."""
    optimizer = hvd_jax.DistributedOptimizer(sgd())
    weights = jax.tree.map(jnp.asarray, params(widths))
    held = weights, optimizer.init(weights)
    inputs, labels = map(jnp.asarray, batch("MLP, 40 MB, batch 64"))

    @jax.jit
    def update(weights: object, state: object) -> tuple[object, object, object]:
        loss, gradients = jax.value_and_grad(loss_of)(weights, inputs, labels)
        updates, state = optimizer.update(gradients, state, weights)
        moved = jax.tree.map(jnp.add, weights, updates)
        return moved, state, hvd_jax.allreduce(loss, name="loss")

    def step() -> None:
        nonlocal held
        *rest, loss = update(*held)
        held = rest[0], rest[1]
        jax.block_until_ready(loss)

    return step


def stepper(work: str) -> Callable[[], None]:
    """What one call of ``time`` repeats."""
    if work == "named":
        four_bytes = torch.ones(1)
        return lambda: hvd.allreduce_(four_bytes, name="four", op=hvd.Max)  # type: ignore[return-value]
    if work == "graph":
        one, reduced = jnp.ones(1), jax.jit(lambda x: hvd_jax.allreduce(x, name="four bytes"))
        return lambda: reduced(one).block_until_ready()
    network = work.partition("-")[2]
    return logged(network) if work.startswith("torch-") else jitted(WIDTHS if network == "large" else TINY)


if __name__ == "__main__":
    turn_off(os.environ["WITHOUT"])
    hvd.init()
    torch.set_num_threads(1)
    releases_rank.serve(stepper)
    hvd.shutdown()
