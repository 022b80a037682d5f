"""Step times of a training, the share of waiting for other ranks, and the cost of measuring itself."""

from __future__ import annotations

import math
import statistics
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any, final

from farandole.largebatch.goodput import Timing

_STEPS = 64
_KEPT = 32


@final
class Stopwatch:
    """Medians of step times, so that a pause between two steps (a test, a checkpoint) does not count."""

    def __init__(self) -> None:
        self._begin_s = self._wait_s = math.nan
        self._ranks = self._passes = 0
        self._cost_s = 0.0
        self._steps: deque[tuple[float, float, float]] = deque(maxlen=_STEPS)
        self._costs: deque[float] = deque(maxlen=_STEPS)
        self._kept: dict[tuple[int, int, int, int], deque[Timing]] = {}

    def waits(self) -> None:
        """Note that the backward pass has ended."""
        self._wait_s = time.perf_counter()

    def stepped(self, ranks: int, passes: int, samples: int) -> None:
        """Note that the gradients of all ranks are reduced, after ``passes`` over ``samples`` samples of this rank."""
        now = time.perf_counter()
        if (ranks, passes) != (self._ranks, self._passes):
            self._ranks, self._passes = ranks, passes
            self._steps.clear()
        elif now > self._begin_s:
            self._steps.append((now - self._begin_s, min(now - self._begin_s, now - self._wait_s), samples))
        if self._cost_s:
            self._costs.append(self._cost_s)
        self._begin_s, self._cost_s = now, 0.0

    def pause(self) -> None:
        """Leave out the time until the next step ends."""
        self._begin_s = math.nan

    @contextmanager
    def cost(self) -> Iterator[None]:
        """Count the time inside as the cost of measuring."""
        begin = time.perf_counter()
        yield
        self._cost_s += time.perf_counter() - begin

    def read(self) -> tuple[float, float, float, float]:
        """Seconds of a step, seconds of waiting in it, its samples, and seconds of measuring; NaN if unknown."""
        cost = statistics.median(self._costs) if self._costs else math.nan
        if not self._steps:
            return math.nan, math.nan, math.nan, cost
        seconds, waited, samples = (statistics.median(each) for each in zip(*self._steps, strict=True))
        return seconds, waited, samples, cost

    def keep(self, timing: Timing) -> None:
        """Keep a timing, beside timings with other numbers of workers."""
        key = timing.workers, timing.hosts, timing.passes, round(timing.batch)
        kept = self._kept.pop(key, deque(maxlen=_KEPT))
        kept.append(timing)
        self._kept[key] = kept  # the current one is last

    def timings(self) -> list[Timing]:
        """Median timing for each number of workers, hosts, passes and batch; current ones are last."""
        return [_median(kept) for kept in self._kept.values()]

    def state(self) -> list[list[dict[str, Any]]]:
        """Plain numbers."""
        return [[asdict(timing) for timing in kept] for kept in self._kept.values()]

    def load(self, state: list[list[dict[str, Any]]]) -> None:
        """Go on from the result of ``state``."""
        self._kept.clear()
        for kept in state:
            for timing in kept:
                self.keep(Timing(**timing))


def _median(kept: deque[Timing]) -> Timing:
    last = kept[-1]
    seconds, compute_s = (statistics.median(getattr(t, name) for t in kept) for name in ("seconds", "compute_s"))
    return Timing(last.workers, last.hosts, last.batch, last.passes, seconds, min(seconds, compute_s))
