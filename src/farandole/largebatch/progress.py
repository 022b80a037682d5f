"""Progress of a training along its schedule, for the schedules and callbacks of frameworks.

class SamplesLR(ScheduleProgress, LRScheduler):
    def step(self, samples=None):
        self.advance(samples)
        ...                                     # set ``self.rate``
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from farandole.errors import UsageError
from farandole.largebatch.scaling import rule_named
from farandole.largebatch.schedule import Position, Schedule

Gain: TypeAlias = Callable[[int, int], float]
"""AdaScale's gain, from the samples in a base step and the samples in the step."""


class ScheduleProgress:
    """Mixin that holds a ``schedule`` and the ``position`` on it, of a training with ``epoch_samples`` in an epoch.

    Raises ``UsageError`` for a rule that measures without a ``gain``; ``missing`` is the advice in this error.
    """

    def __init__(self, schedule: Schedule, epoch_samples: int, gain: Gain | None, missing: str) -> None:
        if rule_named(schedule.rule).measured and gain is None:
            raise UsageError(f"rule={schedule.rule!r} needs a measured gain{missing}")
        self.schedule, self.position = schedule, schedule.begin(epoch_samples)
        self._gain = gain

    @property
    def rate(self) -> float:
        """The learning rate of the next step."""
        return self.schedule.rate(self.position)

    @property
    def batch(self) -> int:
        """Number of samples that the next step should have, all ranks together."""
        return self.schedule.batch(self.position)

    def advance(self, samples: int | None = None) -> float:
        """Count a step of ``samples``, all ranks together (default: ``batch``). Returns the rate before this step."""
        rate, seen = self.rate, self.batch if samples is None else samples
        gain = 1.0 if self._gain is None else self._gain(self.schedule.base_batch, seen)
        self.position = self.schedule.advance(self.position, seen, gain)
        return rate

    def resize(self, global_batch: int) -> None:
        """Set ``global_batch`` samples of all ranks together from the next step on; the rate changes gradually."""
        self.position = self.schedule.resize(self.position, global_batch)

    def load_position(self, state: Mapping[str, Any]) -> None:
        """Go on from the ``state()`` of a position; if the schedule is for another global batch, that is a resize."""
        self.position = Position.of(dict(state))
        self.resize(self.schedule.global_batch)
