"""Gradient noise scale: number of samples in a step beyond which more samples are of little use.

    estimator = NoiseEstimator(horizon_samples=100_000)
    estimator.add(across_ranks([4, 7, 1, 12], norms2, mean_norm2), samples=24)      # once for each measured step
    estimator.estimate().b_simple

McCandlish et al. 2018 (arXiv 1812.06162). S is the trace of the covariance of one sample's gradient, |G|^2 the squared
norm of the true gradient, and B_simple = S / |G|^2 the batch at which noise and gradient are equally large. The squared
norm of a mean of b samples is |G|^2 + S/b on average: two such norms of different b give S and |G|^2, without bias
(appendix A.1). S and |G|^2 are averaged separately, and only averages are divided: a mean of ratios would be far off.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from statistics import NormalDist
from typing import Any, TypeAlias, final

from farandole.errors import UsageError

FEWEST = 8
"""Fewest measurements, of equal weight, for an interval."""
HORIZON_STEPS = 500
CONFIDENCE = 0.95


@final
@dataclass(frozen=True, slots=True)
class NormPair:
    """Squared norms of gradients averaged over few and over many samples; each is |G|^2 + S * (its inverse batch)."""

    small: float
    small_inverse_batch: float
    large: float
    large_inverse_batch: float

    @property
    def trace(self) -> float:
        """An estimate of S without bias; it may be negative."""
        return (self.small - self.large) / (self.small_inverse_batch - self.large_inverse_batch)

    @property
    def norm2(self) -> float:
        """An estimate of |G|^2 without bias; it may be negative."""
        return self.large - self.trace * self.large_inverse_batch


def across_ranks(
    batches: Sequence[int], norms2: Sequence[float], mean_norm2: float, weights: Sequence[float] | None = None
) -> NormPair:
    """Squared norms of one step's gradients, of each rank and of their mean, as a pair.

    >>> pair = across_ranks([2, 2], [5.0, 3.0], 3.0)
    >>> pair.trace, pair.norm2
    (4.0, 2.0)

    ``norms2``: of each rank's mean gradient over its batch; ``mean_norm2``: of their mean with ``weights`` (default:
    in proportion to the batches, as one process with all samples would). With A = sum(w_i |g_i|^2) and Q = |mean|^2
    that is S = (A - Q) / sum((w_i - w_i^2) / b_i), which for weights b_i / B is B (A - Q) / (N - 1).
    """
    if len(batches) < 2 or len(norms2) != len(batches):
        raise UsageError(f"{len(batches)} batches and {len(norms2)} norms: a pair needs those of at least two ranks")
    if weights is None:
        weights = [batch / sum(batches) for batch in batches]
    small = sum(w * norm for w, norm in zip(weights, norms2, strict=True))
    small_inverse = sum(w / batch for w, batch in zip(weights, batches, strict=True))
    large_inverse = sum(w * w / batch for w, batch in zip(weights, batches, strict=True))
    return NormPair(small, small_inverse, mean_norm2, large_inverse)


@final
@dataclass(frozen=True, slots=True)
class Estimate:
    """Noise scale as of now. ``low`` and ``high`` bound B_simple with 95 % confidence; ``high`` may be infinite."""

    trace: float
    norm2: float
    low: float
    high: float
    samples: int
    """Samples seen up to this estimate."""

    @property
    def b_simple(self) -> float:
        """S / |G|^2, not clamped: negative or infinite if |G|^2 is not above 0."""
        return self.trace / self.norm2 if self.norm2 else math.copysign(math.inf, self.trace)

    def __str__(self) -> str:
        return f"B_simple {self.b_simple:.4g} (95 %: {self.low:.4g} to {self.high:.4g}) after {self.samples} samples"


@final
@dataclass(frozen=True, slots=True)
class NoEstimate:
    """Reason why there is no estimate; false, while an ``Estimate`` is true."""

    reason: str

    def __bool__(self) -> bool:
        return False

    def __str__(self) -> str:
        return f"no estimate: {self.reason}"


Estimated: TypeAlias = Estimate | NoEstimate


@final
class NoiseEstimator:
    """Averages of S and |G|^2 over about the last ``horizon_samples`` samples, for any batches.

    The weight of a measurement is its number of samples, and falls by a factor e for each ``horizon_samples`` seen
    since. So a change of the batch or of the number of ranks needs no restart. Default: the samples of 500 steps like
    the first measured step. ``dataset_size``: number of samples from which each step draws different samples; |G|^2 is
    then that of the whole data set, which the norms alone underestimate by S / ``dataset_size``.
    """

    def __init__(self, horizon_samples: float | None = None, dataset_size: int | None = None) -> None:
        if horizon_samples is not None and not horizon_samples > 0:
            raise UsageError(f"horizon_samples={horizon_samples}: it must be above 0")
        if dataset_size is not None and not dataset_size > 0:
            raise UsageError(f"dataset_size={dataset_size}: it must be above 0")
        self.dataset_size = dataset_size
        self.samples = 0
        self._measured = 0
        self._horizon = horizon_samples
        self._sums = _Sums()

    def seen(self, samples: int) -> None:
        """Count ``samples`` of steps that were not measured."""
        self.samples += samples
        if self._horizon is not None:
            self._sums.fade(math.exp(-samples / self._horizon))

    def add(self, pair: NormPair, samples: int) -> None:
        """Add the measurement of one step; ignore one that is not finite, because its step was skipped, too."""
        if self._horizon is None:
            self._horizon = float(HORIZON_STEPS * samples)
        self.seen(samples)
        trace = pair.trace
        norm2 = pair.norm2 + (trace / self.dataset_size if self.dataset_size else 0.0)
        if math.isfinite(trace) and math.isfinite(norm2):
            self._sums.add(float(samples), trace, norm2)
            self._measured = self.samples

    def estimate(self) -> Estimated:
        """The estimate as of now, or the reason why there is none."""
        sums = self._sums
        effective = sums.effective
        if self._horizon is None:
            return NoEstimate("no step was measured yet")
        if effective < FEWEST:
            within = f"within the last {self._horizon:.0f} samples"
            return NoEstimate(f"{effective:.1f} measured steps count {within}, and it takes {FEWEST}")
        if self.samples - self._measured > self._horizon:
            return NoEstimate(f"nothing was measured for {self.samples - self._measured} samples")
        trace, norm2 = sums.trace / sums.weight, sums.norm2 / sums.weight
        low, high = fieller(trace, norm2, sums.covariance(), student(effective - 1.0))
        return Estimate(trace, norm2, low, high, self.samples)

    def state(self) -> dict[str, Any]:
        """Plain numbers, for a checkpoint, and for ranks that join later."""
        sums = asdict(self._sums)
        return {"samples": self.samples, "measured": self._measured, "horizon": self._horizon, "sums": sums}

    def load(self, state: dict[str, Any]) -> None:
        """Go on from the result of ``state``."""
        self.samples, self._measured, self._horizon = state["samples"], state["measured"], state["horizon"]
        self._sums = _Sums(**state["sums"])


@final
@dataclass(slots=True)
class _Sums:
    """Weighted sums over measurements."""

    weight: float = 0.0
    weight2: float = 0.0
    trace: float = 0.0
    norm2: float = 0.0
    trace_trace: float = 0.0
    norm2_norm2: float = 0.0
    trace_norm2: float = 0.0

    @property
    def effective(self) -> float:
        """Equivalent number of measurements of equal weight."""
        return self.weight**2 / self.weight2 if self.weight2 else 0.0

    def fade(self, factor: float) -> None:
        for each in fields(self):
            power = 2 if each.name == "weight2" else 1
            setattr(self, each.name, getattr(self, each.name) * factor**power)

    def add(self, weight: float, trace: float, norm2: float) -> None:
        self.weight += weight
        self.weight2 += weight**2
        self.trace += weight * trace
        self.norm2 += weight * norm2
        self.trace_trace += weight * trace**2
        self.norm2_norm2 += weight * norm2**2
        self.trace_norm2 += weight * trace * norm2

    def covariance(self) -> tuple[float, float, float]:
        """Variances and covariance of the two averages."""
        trace, norm2, share = self.trace / self.weight, self.norm2 / self.weight, 1.0 / (self.effective - 1.0)
        return (
            max(0.0, self.trace_trace / self.weight - trace**2) * share,
            max(0.0, self.norm2_norm2 / self.weight - norm2**2) * share,
            (self.trace_norm2 / self.weight - trace * norm2) * share,
        )


def fieller(
    numerator: float, denominator: float, covariance: tuple[float, float, float], quantile: float
) -> tuple[float, float]:
    """Bounds of a ratio of two averages that are not independent, from 0 up (Fieller 1954).

    ``covariance``: variance of the numerator, of the denominator, and covariance of both. The bounds are the ratios r
    for which numerator - r * denominator is not significantly different from 0; if the denominator itself is not
    significantly above 0, there is no upper bound.
    """
    var_n, var_d, cov = covariance
    square = quantile**2
    a = denominator**2 - square * var_d
    b = numerator * denominator - square * cov
    c = numerator**2 - square * var_n
    root = math.sqrt(max(0.0, b**2 - a * c))
    if a > 0 and denominator > 0:
        return max(0.0, (b - root) / a), max(0.0, (b + root) / a)
    if numerator <= 0 or c <= 0:
        return 0.0, math.inf
    return c / (b + root) if b + root > 0 else 0.0, math.inf


def student(freedom: float) -> float:
    """Approximate quantile of Student's distribution for ``CONFIDENCE`` (Cornish and Fisher; 1 % off at 5 degrees)."""
    z = NormalDist().inv_cdf(0.5 + CONFIDENCE / 2)
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
