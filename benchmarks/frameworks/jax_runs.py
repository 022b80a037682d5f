"""Jitted steps of JAX with optax, undistributed and with Farandole, and all-reduces of four bytes inside of ``jit``."""

from __future__ import annotations

import jax
import jax.numpy as jnp

import farandole.jax as hvd
from benchmarks.frameworks.jax_training import CALL, ROW, params, sgd, trained
from benchmarks.frameworks.runs import Runs, copies, single


def runs() -> Runs:
    """All measurements of JAX that Farandole takes part in."""
    hvd.init()
    one = jnp.ones(1)
    empty, reduced = jax.jit(lambda x: x + 1), jax.jit(lambda x: hvd.allreduce(x, name="four bytes") + 1)
    ours = trained(hvd.DistributedOptimizer(sgd()))
    nbytes = sum(each.nbytes for each in jax.tree.leaves(params()))
    return {
        ("step", ROW, "none"): trained(sgd()),
        ("step", ROW, "farandole"): ours,
        ("call", CALL, "empty graph"): single(lambda: empty(one).block_until_ready()),
        ("call", CALL, "farandole"): single(lambda: reduced(one).block_until_ready()),
        ("copies", "JAX", "in"): copies(ours, "into_bytes", nbytes),
        ("copies", "JAX", "out"): copies(ours, "out_bytes", nbytes),
    }
