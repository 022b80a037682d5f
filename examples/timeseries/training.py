"""One elastic training of the network, on the ranks that there are.

params = train(windows, Plan(epochs=15, seed=0), after_epoch=print)

``train.py`` is the script around it, and ``experiment.py`` what compares it with baselines.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import jax
import numpy as np
import optax

import farandole.jax as hvd
from examples.common.training import SEED_STRIDE, kept
from examples.timeseries.data import Windows
from examples.timeseries.lorenz96 import Array
from examples.timeseries.model import Params, forecast, initial, loss_of
from farandole.jax.checkpoints import Checkpoints
from farandole.jax.elastic import ElasticSampler, JaxState, run

COMMIT_EVERY = 20
"""Steps; what a fault costs is at most so many."""
TESTED_AT_ONCE = 1000


@final
@dataclass(frozen=True)
class Plan:
    """What to train; ``rate`` decays to zero by a cosine, over the global batches that one worker would take."""

    epochs: int = 15
    global_batch: int = 256
    hidden: int = 48
    rate: float = 1e-2
    seed: int = 0


def train(
    windows: Windows,
    plan: Plan,
    after_epoch: Callable[[int, float], object] = lambda epoch, loss: None,  # noqa: ARG005 (who has nothing to say)
    *,
    checkpoints: str = "",
    ledger: str = "",
) -> Params:
    """Parameters after ``plan.epochs``. All ranks call it together, after ``hvd.init()``.

    ``after_epoch`` is told, on every rank, how many epochs have passed, and the mean loss of the last one.
    ``checkpoints``: a folder to write one into after each epoch, and to go on from; ``ledger``: a folder in which each
    worker writes down what it has computed.
    """
    rate = optax.cosine_decay_schedule(plan.rate, plan.epochs * -(-len(windows) // plan.global_batch))
    optimizer = hvd.DistributedOptimizer(optax.adam(rate))
    params = initial(jax.random.PRNGKey(plan.seed), windows.x.shape[-1], plan.hidden, len(windows.task.horizons))
    sampler = ElasticSampler(windows, seed=SEED_STRIDE * plan.seed)
    batches = hvd.data.Batches(windows, global_batch_size=plan.global_batch, sampler=sampler, threads=1)
    state: Any = JaxState(params=params, opt_state=optimizer.init(params), sampler=sampler, epoch=0, losses=[])
    step = _compiled(optimizer)
    with kept(Checkpoints, state, checkpoints, ledger) as (saving, writing):

        @run
        def elastic(state: Any) -> None:
            while state.epoch < plan.epochs:
                batches.set_epoch(state.epoch)
                for number, (lags, targets) in enumerate(batches, 1):
                    if writing is not None:
                        writing.brought("sampler", state.epoch, sampler.cursor.own_indices())
                    weight = sampler.cursor.weigh()  # the last batch may be shared out unevenly
                    state.params, state.opt_state, loss = step(state.params, state.opt_state, lags, targets, weight)
                    state.losses = [*state.losses, weight * float(loss)]
                    batches.commit()
                    if number % COMMIT_EVERY == 0:
                        state.commit()
                state.epoch += 1
                loss, state.losses = hvd.allreduce(np.float32(np.mean(state.losses)), name="loss"), []
                after_epoch(state.epoch, float(loss))
                state.commit()
                if saving is not None:
                    saving.save(state.epoch, state.state_dict())

        elastic(state)
    return state.params  # type: ignore[no-any-return]


def _compiled(optimizer: Any) -> Any:
    """A step of all ranks; ``weight`` makes the mean over ranks one over samples."""

    @jax.jit
    def step(params: Params, opt_state: Any, lags: Any, targets: Any, weight: Any) -> tuple[Params, Any, Any]:
        loss, gradients = jax.value_and_grad(loss_of)(params, lags, targets)
        updates, opt_state = optimizer.update(jax.tree.map(lambda each: weight * each, gradients), opt_state, params)
        return optax.apply_updates(params, updates), opt_state, loss

    return step


def forecasts(params: Params, lags: Array) -> Array:
    """Windows x horizons x sites, a part at a time."""
    one = jax.jit(forecast)
    parts = [np.asarray(one(params, lags[i : i + TESTED_AT_ONCE])) for i in range(0, len(lags), TESTED_AT_ONCE)]
    return np.concatenate(parts)
