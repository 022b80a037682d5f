"""Training under faults with JAX and optax: ``python -m workbench.survival.jax_training FOLDER PLAN`` is a worker."""

from __future__ import annotations

from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
import optax

import farandole.jax as hvd
from farandole.jax.elastic import ElasticSampler, JaxState, run
from workbench.survival.counted_training import COMMIT_EVERY, GLOBAL_BATCH, ROWS, CountedTraining, plan_of_command

OPTIMIZER = hvd.DistributedOptimizer(optax.chain(optax.scale_by_schedule(lambda _: 1.0), optax.sgd(GLOBAL_BATCH)))
"""Optimizer with this rate, whose state counts the steps."""


@jax.jit
def step(params: Any, opt_state: Any, rows: Any) -> tuple[Any, Any]:
    """One step of all ranks."""
    gradients = jax.grad(lambda params: (rows @ params["w"]).mean())(params)
    updates, opt_state = OPTIMIZER.update(gradients, opt_state, params)
    return optax.apply_updates(params, updates), opt_state


@final
class JaxTraining(CountedTraining):
    """See ``CountedTraining``; a compiled step, and a loop around it."""

    def build(self) -> Any:
        """See ``CountedTraining``."""
        params = {"w": jnp.zeros(len(ROWS))}
        state: Any = JaxState(
            params=params, opt_state=OPTIMIZER.init(params), sampler=ElasticSampler(range(len(ROWS)), seed=3), epoch=0
        )
        return state

    def epoch(self) -> None:
        """See ``CountedTraining``."""
        state, share = self.state, GLOBAL_BATCH // hvd.size()
        mine = np.fromiter(state.sampler, np.int64)
        batches = [mine[begin : begin + share] for begin in range(0, len(mine), share)]
        for i, rows in enumerate(batches):
            self.begins(rows)
            state.params, state.opt_state = step(state.params, state.opt_state, ROWS[rows])
            jax.block_until_ready(state.params)
            self.applied()
            state.sampler.record_batch(i, len(rows))
            if (i + 1) % COMMIT_EVERY == 0 and i + 1 < len(batches):
                state.commit()
        state.epoch += 1
        state.commit()

    def weights(self) -> npt.NDArray[np.float32]:
        """See ``CountedTraining``."""
        return np.asarray(self.state.params["w"])


def main() -> None:
    """Train as one worker."""
    folder, plan = plan_of_command()
    hvd.init()
    training = JaxTraining(folder, plan)
    train = run(training.train)
    train(training.state)
    training.finish()


if __name__ == "__main__":
    main()
