"""Schedules of ``farandole.largebatch`` as optax schedules: functions of the number of steps.

found = recipe(optimizer="lars", base_lr=0.2, base_batch=512, global_batch=8192, epochs=90)
rate = learning_rate(found.schedule, epoch_samples=len(dataset))
optimizer = hvd.DistributedOptimizer(optax.lars(rate, **found.settings))
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from farandole.errors import UsageError
from farandole.largebatch.scaling import rule_named
from farandole.largebatch.schedule import Position, Schedule


def learning_rate(
    schedule: Schedule, epoch_samples: int, position: Position | None = None, first_step: int = 0
) -> Callable[[Any], Any]:
    """Optax schedule: the learning rate of each step, with ``schedule.batch`` samples per step.

    >>> optimizer = optax.sgd(learning_rate(recipe(...).schedule, epoch_samples=len(dataset)), momentum=0.9)

    The rates are precomputed in float64 for all steps of the training; after the last step the rate is constant.
    ``position`` and ``first_step``: continue from there, with ``first_step`` from the optimizer's restored state; after
    ``schedule.resize(position, batch)`` a job continues with other workers this way. Raises ``UsageError`` for rules
    that measure a gain, which is not known beforehand.
    """
    if rule_named(schedule.rule).measured:
        raise UsageError(
            f"rule={schedule.rule!r} follows a measured gain, and optax wants the rates beforehand: call "
            "schedule.rate(position) in every step, and pass it by optax.inject_hyperparams"
        )
    position = schedule.begin(epoch_samples) if position is None else position
    rates = [schedule.rate(position)]
    while not schedule.finished(position):
        position = schedule.advance(position)
        rates.append(schedule.rate(position))
    table = np.array(rates)

    def rate(step: Any) -> Any:
        return jnp.asarray(table)[jnp.clip(jnp.asarray(step) - first_step, 0, len(table) - 1)]

    return rate
