"""Limits for decisions about the membership of an elastic job.

>>> Policy(min_np=2).patience_s(step_s=0.1), Policy(min_np=2).patience_s(step_s=4.0)
(5.0, 20.0)
"""

from __future__ import annotations

import math
from typing import final

import msgspec

from farandole.runtime.coordination.stall import STEPS_OF_PATIENCE
from farandole.settings import Settings


@final
class Policy(msgspec.Struct, frozen=True):
    """Limits of one job: fields of ``Settings`` with the same names, and constants that users do not set.

    ``window_s``: joins and leaves within this time become one change. ``slot_failures``: failures in a row after which
    no worker is started in a slot for the longest cool-down. ``host_failures``: number of such slots on a host after
    which no worker is started on the whole host for the same time.
    """

    min_np: int = 1
    max_np: int = 0
    start_timeout_s: float = 30.0
    elastic_timeout_s: float = 600.0
    hang_timeout_s: float = 5.0
    stall_shutdown_s: float = 600.0
    cooldown_range_s: tuple[float, float] = (0.0, 60.0)
    reset_limit: int = 0
    window_s: float = 1.0
    slot_failures: int = 3
    host_failures: int = 2

    @classmethod
    def of(cls, settings: Settings) -> Policy:
        """The policy of a job with these settings."""
        return cls(
            min_np=max(1, settings.min_np),
            max_np=settings.max_np,
            start_timeout_s=settings.start_timeout_s,
            elastic_timeout_s=settings.elastic_timeout_s,
            hang_timeout_s=settings.hang_timeout_s,
            stall_shutdown_s=settings.stall_shutdown_s or math.inf,
            cooldown_range_s=settings.blacklist_cooldown_range,
            reset_limit=settings.reset_limit,
        )

    def patience_s(self, step_s: float) -> float | None:
        """Seconds that other ranks wait for a silent rank, if steps take ``step_s``; ``None``: without limit."""
        return max(self.hang_timeout_s, STEPS_OF_PATIENCE * step_s) if self.hang_timeout_s else None
