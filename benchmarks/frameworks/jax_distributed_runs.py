"""Steps of JAX over the devices of both processes, by ``jax.distributed`` and its Gloo collectives."""

from __future__ import annotations

import os
from functools import partial

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from benchmarks.fleet import RANK, SIZE
from benchmarks.frameworks.jax_training import CALL, ROW, sgd, trained
from benchmarks.frameworks.runs import MLP, Runs, batch, single
from benchmarks.frameworks.start import PORTS


def runs() -> Runs:
    """The step, in which XLA puts all-reduces where the sharding of the data asks for them, and a sum of four bytes."""
    port = os.environ[PORTS].split(",")[0]
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"localhost:{port}", int(os.environ[SIZE]), int(os.environ[RANK]))
    mesh = Mesh(np.array(jax.devices()), ("rank",))
    everywhere, by_rank = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("rank"))
    data = [jax.make_array_from_process_local_data(by_rank, each) for each in batch(MLP)]
    parts = jax.make_array_from_process_local_data(by_rank, np.ones(1, np.float32))
    total = jax.jit(lambda x: x.sum(), out_shardings=everywhere)
    return {
        ("step", ROW, "jax.distributed"): trained(sgd(), partial(jax.device_put, device=everywhere), data),
        ("call", CALL, "jax.distributed"): single(lambda: total(parts).block_until_ready()),
    }
