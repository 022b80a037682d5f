"""Time of a step by number of workers: the model of Pollux, fitted to steps that were measured.

    model = fit([Timing(2, 1, 32, 1, 0.110, 0.100), Timing(4, 1, 32, 1, 0.116, 0.100)])
    model.step_s(8), model.reach                    # 0.128 s on 8 workers; it speaks of up to 16

Qiao et al. 2021 (Pollux, OSDI), section 3.2: T_iter = s T_grad + (T_grad^g + T_sync^g)^(1/g) with g from 1 (one after
the other) to 10 (fully overlapped), s passes that do not communicate, and T_sync = a + b max(K - 2, 0), fitted
separately for workers on one host and on several hosts. T_grad needs no model, because every step measures it.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import final

from farandole.errors import UsageError

FARTHEST = 4
"""The model is trusted up to this factor times the largest measured number of workers."""
ASSUMED = 2
"""The same factor if steps were timed on one number of workers only: the cost of more workers is assumed."""
FIRST_EXCHANGE = 0.5
"""Assumed share of a pass for the first exchange, if one worker has trained alone."""
_EXPONENTS = tuple(1.0 + i / 4 for i in range(37))


@final
@dataclass(frozen=True, slots=True)
class Prospect:
    """Expectation for a number of workers; times and samples are of the whole training."""

    workers: int
    batch: float
    samples: float
    seconds: float
    slowest_s: float
    """If the noise scale is at its lower bound."""
    fastest_s: float
    """If the noise scale is at its upper bound."""


@final
@dataclass(frozen=True, slots=True)
class Timing:
    """Measured steps: ``seconds`` for each, of which ``compute_s`` before the wait for communication began.

    ``batch``: samples of one worker in one pass. ``passes``: number of passes in a step.
    """

    workers: int
    hosts: int
    batch: float
    passes: int
    seconds: float
    compute_s: float

    def __post_init__(self) -> None:
        if min(self.workers, self.hosts, self.passes) < 1 or not 0 < self.compute_s <= self.seconds or self.batch <= 0:
            raise UsageError(f"{self}: there is no such step")


@final
@dataclass(frozen=True, slots=True)
class SyncTime:
    """T_sync = a + b max(K - 2, 0), fitted to the ``measured`` numbers of workers, all on one host or on several.

    ``beyond``: assumed seconds for each worker beyond the measured numbers; ``None``: no assumption.
    """

    a: float
    b: float
    measured: tuple[int, ...]
    beyond: float | None = None

    def seconds(self, workers: int) -> float:
        """T_sync of ``workers`` workers."""
        farther = max(workers - max(self.measured), 0)
        return self.a + self.b * max(workers - 2, 0) + (self.beyond or 0.0) * farther

    @property
    def reach(self) -> int:
        """Most workers for which the fit is trusted: beyond the measured numbers if a slope is known or assumed."""
        alone = 1 if self.beyond is None else ASSUMED
        return max(self.measured) * (FARTHEST if len(self.measured) > 1 else alone)


@final
@dataclass(frozen=True, slots=True)
class StepModel:
    """Result of ``fit``. Workers share a host up to ``workers_per_host`` of them."""

    pass_s: float
    """T_grad: one pass of ``batch`` samples on one worker."""
    batch: float
    passes: int
    overlap: float
    inside: SyncTime | None
    between: SyncTime | None
    workers_per_host: int

    def step_s(self, workers: int) -> float:
        """Seconds for one step on ``workers`` workers, each with the measured batch."""
        shares_host = self.inside is not None and workers <= self.workers_per_host
        return self.seconds(workers, self.inside if shares_host or self.between is None else self.between)

    def seconds(self, workers: int, sync: SyncTime | None) -> float:
        """Seconds for one step on ``workers`` workers that communicate with the time ``sync``."""
        exchange = 0.0 if sync is None or workers == 1 else sync.seconds(workers)
        last = math.pow(math.pow(self.pass_s, self.overlap) + math.pow(exchange, self.overlap), 1 / self.overlap)
        return (self.passes - 1) * self.pass_s + last

    def samples_per_s(self, workers: int) -> float:
        """Throughput of all workers together."""
        return self.global_batch(workers) / self.step_s(workers)

    def global_batch(self, workers: int) -> float:
        """Samples in a step of all workers together."""
        return workers * self.batch * self.passes

    @property
    def reach(self) -> int:
        """Most workers for which the model is trusted."""
        if self.between is not None:
            return self.between.reach
        return 1 if self.inside is None else min(self.inside.reach, self.workers_per_host)


def assuming(model: StepModel) -> StepModel:
    """The model with a pessimistic assumption if steps were timed on one number of workers only.

    The time of an exchange is assumed proportional to the number of workers (that of a ring would hardly grow); after
    one worker alone it is ``FIRST_EXCHANGE`` of a pass. Steps on the next number of workers then correct this.
    """
    known = model.between or model.inside
    if known is None:
        return dataclasses.replace(model, between=SyncTime(FIRST_EXCHANGE * model.pass_s, 0.0, (1,), 0.0))
    if len(known.measured) > 1:
        return model
    assumed = dataclasses.replace(known, beyond=known.a / max(known.measured))
    if model.between is not None:
        return dataclasses.replace(model, between=assumed)
    return dataclasses.replace(model, inside=assumed)


def fit(timings: Iterable[Timing], workers_per_host: int = 0) -> StepModel:
    """A model of steps like the last one of ``timings``; timings with other batches or passes are left out.

    ``workers_per_host``: number of workers that fit on one host; by default the measured number or, if all workers were
    on one host, any number.
    """
    every = list(timings)
    if not every:
        raise UsageError("no step was measured")
    last = every[-1]
    alike = [t for t in every if t.passes == last.passes and math.isclose(t.batch, last.batch, rel_tol=0.05)]
    pass_s = statistics.median(t.compute_s / t.passes for t in alike)
    spread = [t.workers // t.hosts for t in alike if t.hosts > 1]
    room = workers_per_host or (max(spread) if spread else max(t.workers for t in alike) * FARTHEST)
    inside = [t for t in alike if t.hosts == 1 and t.workers > 1]
    between = [t for t in alike if t.hosts > 1]
    models = [
        StepModel(pass_s, last.batch, last.passes, g, _fit_sync(inside, pass_s, g), _fit_sync(between, pass_s, g), room)
        for g in _EXPONENTS
    ]
    return min(models, key=lambda model: round(_error(model, alike), 12))  # of equal models the first: no overlap


def _fit_sync(timings: Sequence[Timing], pass_s: float, overlap: float) -> SyncTime | None:
    """Least squares for the values of T_sync that explain the timings, with a and b not below 0."""
    if not timings:
        return None
    points = [(max(t.workers - 2, 0), _exchange(t, pass_s, overlap)) for t in timings]
    mean_x, mean_y = statistics.fmean(x for x, _ in points), statistics.fmean(y for _, y in points)
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    b = sum((x - mean_x) * (y - mean_y) for x, y in points) / spread if spread else 0.0
    a = mean_y - max(0.0, b) * mean_x
    if a < 0:
        a, b = 0.0, sum(x * y for x, y in points) / sum(x * x for x, _ in points)
    return SyncTime(a, max(0.0, b), tuple(sorted({t.workers for t in timings})))


def _exchange(timing: Timing, pass_s: float, overlap: float) -> float:
    """The T_sync that explains the wait after the last pass of one measurement."""
    total = pass_s + timing.seconds - timing.compute_s
    return math.pow(math.pow(total, overlap) - math.pow(pass_s, overlap), 1 / overlap)


def _error(model: StepModel, timings: Sequence[Timing]) -> float:
    """Mean squared error of the logarithm of the time, as in Pollux."""
    return statistics.fmean(
        math.log(
            model.seconds(t.workers, model.inside if t.hosts == 1 else model.between)
            / (t.passes * model.pass_s + t.seconds - t.compute_s)
        )
        ** 2
        for t in timings
    )
