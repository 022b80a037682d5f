"""A long short-term memory in plain JAX: parameters are a dict, the recurrence is a scan.

>>> params = initial(jax.random.PRNGKey(0), sites=8, hidden=48, horizons=8)
>>> forecast(params, jnp.zeros((5, 12, 8))).shape
(5, 8, 8)

Hochreiter and Schmidhuber (1997), with forget gates that begin open (Gers et al. 2000; Jozefowicz et al. 2015).
"""

from __future__ import annotations

from typing import TypeAlias

import jax
import jax.numpy as jnp

Params: TypeAlias = dict[str, jax.Array]


def initial(key: jax.Array, sites: int, hidden: int, horizons: int) -> Params:
    """Random weights: variance 1 / inputs, and little of it in the last layer, which forecasts a change."""
    keys = jax.random.split(key, 3)
    return {
        "input": jax.random.normal(keys[0], (sites, 4 * hidden)) / jnp.sqrt(sites),
        "recurrent": jax.random.normal(keys[1], (hidden, 4 * hidden)) / jnp.sqrt(hidden),
        "gates": jnp.zeros(4 * hidden).at[hidden : 2 * hidden].set(1.0),
        "output": 0.1 * jax.random.normal(keys[2], (hidden, horizons * sites)) / jnp.sqrt(hidden),
        "offset": jnp.zeros(horizons * sites),
        "keeps": jnp.zeros(horizons),
    }


def forecast(params: Params, lags: jax.Array) -> jax.Array:
    """Windows x horizons x sites, of windows x lags x sites.

    A learned part of the last state, by horizon, and what the memory adds to it: a series that hardly changes from one
    step to the next is forecast by its last value before anything is learned about it.
    """
    given = jnp.swapaxes(lags @ params["input"] + params["gates"], 0, 1)
    nothing = jnp.zeros((lags.shape[0], params["recurrent"].shape[0]))

    def cell(memory: tuple[jax.Array, jax.Array], at: jax.Array) -> tuple[tuple[jax.Array, jax.Array], None]:
        shown, kept = memory
        write, keep, new, show = jnp.split(at + shown @ params["recurrent"], 4, axis=-1)
        kept = jax.nn.sigmoid(keep) * kept + jax.nn.sigmoid(write) * jnp.tanh(new)
        return (jax.nn.sigmoid(show) * jnp.tanh(kept), kept), None

    (shown, _), _ = jax.lax.scan(cell, (nothing, nothing), given)
    added = (shown @ params["output"] + params["offset"]).reshape(lags.shape[0], -1, lags.shape[-1])
    return lags[:, -1:] * (1.0 + params["keeps"])[:, None] + added


def loss_of(params: Params, lags: jax.Array, targets: jax.Array) -> jax.Array:
    """Mean squared error."""
    return ((forecast(params, lags) - targets) ** 2).mean()
