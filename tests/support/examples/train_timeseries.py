"""Train the network of ``examples/timeseries`` on the ranks that there are: ``python train_timeseries.py DATA RESULT``.

Rank 0 writes what came of it, and alone what plain JAX and optax come to with the same global batches, and what a loop
in NumPy says that the network forecasts.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import farandole.jax as hvd
from examples.common.training import SEED_STRIDE
from examples.timeseries.data import LORENZ96, Windows, read
from examples.timeseries.model import forecast, initial, loss_of
from examples.timeseries.training import Plan, train
from farandole.elastic.worker.sampler import shuffled

PLAN = Plan(epochs=2, global_batch=100, hidden=12, seed=3)  # 1038 windows: the last batch has 38


def alone(windows: Windows) -> Any:
    """One process that knows nothing of ranks."""
    params = initial(jax.random.PRNGKey(PLAN.seed), 8, PLAN.hidden, len(LORENZ96.horizons))
    steps = PLAN.epochs * -(-len(windows) // PLAN.global_batch)
    optimizer = optax.adam(optax.cosine_decay_schedule(PLAN.rate, steps))
    state, (x, y) = optimizer.init(params), windows.all()
    for epoch in range(PLAN.epochs):
        order = np.array(shuffled(len(windows), SEED_STRIDE * PLAN.seed, epoch))
        for begin in range(0, len(order), PLAN.global_batch):
            rows = order[begin : begin + PLAN.global_batch]
            updates, state = optimizer.update(jax.grad(loss_of)(params, x[rows], y[rows]), state, params)
            params = optax.apply_updates(params, updates)
    return params


def by_loops(params: Any, lags: Any) -> Any:
    """Forecasts of a memory whose gates are written out (Hochreiter and Schmidhuber 1997; Gers et al. 2000)."""
    weights, found = {name: np.asarray(value, np.float64) for name, value in params.items()}, []
    hidden = len(weights["recurrent"])
    for window in lags.astype(np.float64):
        shown, kept = np.zeros(hidden), np.zeros(hidden)
        for now in window:
            z = now @ weights["input"] + shown @ weights["recurrent"] + weights["gates"]
            write, keep, show = (1 / (1 + np.exp(-z[i * hidden : (i + 1) * hidden])) for i in (0, 1, 3))
            kept = keep * kept + write * np.tanh(z[2 * hidden : 3 * hidden])
            shown = show * np.tanh(kept)
        added = (shown @ weights["output"] + weights["offset"]).reshape(-1, window.shape[1])
        found.append(window[-1] * (1 + weights["keeps"])[:, None] + added)
    return np.array(found)


def main(data: str, result: str) -> None:
    """Train, and write it down."""
    hvd.init()
    windows = Windows(read(Path(data), "train"), LORENZ96)
    losses: list[float] = []
    params = train(windows, PLAN, lambda _, loss: losses.append(loss))
    if hvd.rank() == 0:
        lags = windows.all()[0][::100]
        found: dict[str, Any] = {"losses": losses, "loops": by_loops(params, lags), **params}
        found["jax"] = forecast(params, jnp.asarray(lags))
        found |= {f"plain-{name}": value for name, value in alone(windows).items()}
        arrays: dict[str, Any] = {name: np.asarray(value) for name, value in found.items()}
        np.savez(result, **arrays)
    hvd.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
