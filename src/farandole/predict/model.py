"""Fit of the time of a step to measurements, with coefficients that are not negative, and intervals.

    model = fit([Observation(1, 1, 484.0), Observation(2, 2, 494.4), Observation(4, 4, 494.9)])
    low, middle, high = model.quantiles(1024, hosts=1024)

t(p) = compute + communication + stragglers + control plane + input. Of N hosts with m ranks each: (m-1)/m inside of a
host, (N-1)/N and log2 N between hosts (beta and alpha of an all-reduce), sqrt(2 ln p) stragglers, p-1 control plane;
input is constant, grows with m-1 because ranks share a host, and with log2 N because hosts share a storage.

Few points cannot separate such terms, and least squares with free signs then explode. So each coefficient has a
Gaussian prior cut off at 0 (``PRIORS``), and all are drawn from their posterior by Gibbs sampling (Geweke 1991).
Residuals are noise and a random walk over log2 p (kriging; Kennedy and O'Hagan 2001). Beyond the last point the slope
is uncertain by ``DRIFT`` for each doubling, and by half of that downwards: unmeasured levels of a network rather cost.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import NamedTuple, TypeAlias, final

import numpy as np
import numpy.typing as npt

from farandole.errors import UsageError

Floats: TypeAlias = npt.NDArray[np.float64]

PARTS = ("compute", "inside", "between", "hops", "stragglers", "control", "input", "input_host", "input_storage")
PRIORS = dict(zip(PARTS, (10.0, 0.2, 0.2, 0.05, 0.05, 3e-5, 0.3, 0.1, 0.03), strict=True))
"""Standard deviations of the coefficients, in steps on the fewest ranks: control is 3 messages of 10 us in a second.

They and ``DRIFT`` were chosen among about ten settings, by errors on the published tables, which are therefore no
independent test of them: docs/how-to/predict-scaling.md has the results of other settings.
"""
INPUT, COMMUNICATION = PARTS[6:], PARTS[1:4]
KINDS = {
    "step": PARTS,
    "dummy": PARTS[:6],  # the step without its input
    "wait": PARTS[1:6],  # all but compute and input
    "input": INPUT,
    "load": INPUT,  # of a loader that reads ahead: a step waits for what exceeds its rest
    "jitter": ("stragglers",),  # standard deviation of a rank's own steps
}
"""Parts that each kind of measurement consists of."""
WHOLE = ("step", "dummy")

NOISE, WALK, DRIFT, DOWNWARD = 0.005, 0.01, 0.03, 0.5
"""Shares of a step: noise, random walk and drift for a doubling; share of a drift that is downwards."""
FREEDOM = 4.0
"""Weight of the assumed ``NOISE`` and ``WALK`` against the residuals, in measurements."""
IGNORED = 1e6
"""Variance of a measurement that a fit ignores."""
DRAWS, BURNT = 2000, 200
CONFIDENCE = 0.9
_NORMAL = NormalDist()


@final
@dataclass(frozen=True, slots=True)
class Observation:
    """Measurement on ``ranks`` that are spread over ``hosts``; ``batch`` of one rank, 0 if unknown."""

    ranks: float
    hosts: float
    seconds: float
    kind: str = "step"
    batch: float = 0.0
    noise: float = NOISE
    """Share of a step by which a repeated measurement would differ."""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise UsageError(f"{self.kind!r} is no kind of measurement: use one of {', '.join(KINDS)}")
        positive = self.seconds > 0 if self.kind in WHOLE else self.seconds >= 0
        if not (1 <= self.hosts <= self.ranks and positive and math.isfinite(self.seconds)):
            raise UsageError(f"{self}: there is no such step")


@final
class Quantiles(NamedTuple):
    """Median, and bounds of an interval of nominal probability ``CONFIDENCE``."""

    low: float
    middle: float
    high: float


def features(ranks: float, hosts: float, load: float = 1.0, kind: str = "step") -> Floats:
    """Factors of the coefficients, in the order of ``PARTS``; ``load``: batch relative to the measured batch."""
    m, n = ranks / hosts, hosts
    slowest = math.sqrt(2 * math.log(ranks)) if kind != "jitter" else 1.0
    comm = ((m - 1) / m, (n - 1) / n, math.log2(n), slowest, ranks - 1)
    values = (load, *comm, load, load * (m - 1), load * math.log2(n))
    return np.array([value if part in KINDS[kind] else 0.0 for part, value in zip(PARTS, values, strict=True)])


def posterior(
    design: Floats, seen: Floats, covariance: Floats, mean: Floats, sd: Floats, seed: int = 0
) -> tuple[Floats, Floats]:
    """Draws of coefficients, ``(DRAWS, k)``, and of the scale of the ``covariance``: seen = design @ c + residuals.

    Each coefficient has a Gaussian prior, cut off at 0; the squared scale an inverse chi-square with ``FREEDOM``.
    """
    random = np.random.default_rng(seed)
    lower = np.linalg.cholesky(covariance)
    x, y = np.linalg.solve(lower, design), np.linalg.solve(lower, seen)
    gram, moment = x.T @ x, x.T @ y
    c, variance = np.maximum(mean, 0.1 * sd), 1.0
    c[0] = max(0.0, float(moment[0] / gram[0, 0])) if gram[0, 0] else c[0]
    draws, scales = np.empty((DRAWS, len(c))), np.empty(DRAWS)
    for i in range(-BURNT, DRAWS):
        for j in range(len(c)):
            precision = gram[j, j] / variance + 1 / sd[j] ** 2
            centre = (moment[j] - gram[j] @ c + gram[j, j] * c[j]) / variance + mean[j] / sd[j] ** 2
            c[j] = _above_zero(centre / precision, precision**-0.5, random)
        residual = y - x @ c
        variance = float((FREEDOM + residual @ residual) / random.chisquare(FREEDOM + len(y)))
        if i >= 0:
            draws[i], scales[i] = c, math.sqrt(variance)
    return draws, scales


def _above_zero(mean: float, sd: float, random: np.random.Generator) -> float:
    """Draw from a Gaussian that is cut off at 0."""
    below = _NORMAL.cdf(-mean / sd)
    if below > 1 - 1e-12:  # far out its tail is an exponential
        return float(sd * sd / -mean * random.exponential())
    share = below + (1 - below) * random.random()
    return max(0.0, mean + sd * _NORMAL.inv_cdf(min(max(share, 1e-15), 1 - 1e-15)))


@final
@dataclass(frozen=True)
class Model:
    """Result of ``fit``: draws of the coefficients, in seconds, and corrections near measurements."""

    observations: tuple[Observation, ...]
    draws: Floats
    scales: Floats
    residuals: Floats
    """Errors of each draw, as shares of steps, ``(observations, draws)``."""
    covariance: Floats
    noise: Floats = field(repr=False)
    """Random numbers of ``spread``, the same for any number of ranks, so that curves are smooth."""

    @property
    def steps(self) -> list[Observation]:
        """Measured whole steps, by ranks."""
        return sorted((o for o in self.observations if o.kind == "step"), key=lambda o: o.ranks)

    @property
    def has_input(self) -> bool:
        """True if measurements separate input from the rest."""
        return any(o.kind in ("dummy", "input") for o in self.observations)

    @property
    def reads_ahead(self) -> bool:
        """True if loading overlaps with the rest of the step."""
        return any(o.kind == "load" for o in self.observations)

    @property
    def most(self) -> float:
        """The most ranks that were measured."""
        return self.steps[-1].ranks

    @property
    def batch(self) -> float:
        """Samples of one rank in a step of the first measurement; 0 if unknown."""
        return self.observations[0].batch

    def parts(self, ranks: float, hosts: float, load: float = 1.0) -> dict[str, Floats]:
        """Seconds of each part of a step, one for each draw."""
        parts = dict(zip(PARTS, (features(ranks, hosts, load) * self.draws).T, strict=True))
        if self.reads_ahead:
            loading, rest = (sum(parts[name] for name in names) for names in (INPUT, KINDS["dummy"]))
            parts |= {name: np.zeros(DRAWS) for name in INPUT} | {"input": np.maximum(0.0, loading - rest)}
        return parts

    def spread(self, ranks: float) -> Floats:
        """Factor of each draw: corrections by near measurements, noise, and the drift beyond the measurements."""
        octaves = np.log2([o.ranks for o in self.observations])
        at = math.log2(ranks)
        alike = np.array([o.kind == ("dummy" if self.reads_ahead else "step") for o in self.observations])
        near = WALK**2 * np.minimum(octaves, at) * alike
        weights = np.linalg.solve(self.covariance, near)
        variance = max(0.0, WALK**2 * at - float(near @ weights)) + max(o.noise for o in self.steps) ** 2
        walk, drift = self.noise
        drift = DRIFT * max(0.0, at - math.log2(self.most)) * np.where(drift < 0, DOWNWARD * drift, drift)
        values = 1 + weights @ self.residuals + self.scales * math.sqrt(variance) * walk + drift
        return np.asarray(np.maximum(values, 0.05))

    def quantiles(self, ranks: float, hosts: float) -> Quantiles:
        """Seconds of a step on so many ranks and hosts."""
        return quantiles(sum(self.parts(ranks, hosts).values()) * self.spread(ranks))


def quantiles(draws: Floats) -> Quantiles:
    """Median of draws, and their interval."""
    tail = (1 - CONFIDENCE) / 2
    return Quantiles(*(float(q) for q in np.quantile(draws, (tail, 0.5, 1 - tail))))


def fit(observations: Sequence[Observation], known: Mapping[str, float] | None = None) -> Model:
    """Fit to measurements, some of them whole steps; ``known``: most seconds that a part can take, by formula.

    Raises ``UsageError`` if there is no whole step.
    """
    given = tuple(sorted(observations, key=lambda o: (o.kind != "step", o.ranks)))
    if not given or given[0].kind != "step":
        raise UsageError("no whole step was measured: give at least one row with ranks and seconds")
    base, batch = given[0].seconds, given[0].batch
    totals = {(o.ranks, o.hosts): o.seconds for o in reversed(given) if o.kind in WHOLE}
    unit = np.array([totals.get((o.ranks, o.hosts), base) if o.kind not in WHOLE else o.seconds for o in given])
    rows = [features(o.ranks, o.hosts, o.batch / batch if batch and o.batch else 1.0, o.kind) for o in given]
    design, seen = np.array(rows) / unit[:, None], np.array([o.seconds for o in given]) / unit
    octaves = np.log2([o.ranks for o in given])
    kinds = np.array([o.kind for o in given])
    walk = np.minimum.outer(octaves, octaves) * (kinds[:, None] == kinds[None, :])
    covariance = np.diag([o.noise**2 for o in given]) + WALK**2 * walk
    if "load" in kinds:  # a step is then no sum of its parts, and adds nothing to its rest and its loading
        covariance[kinds == "step", kinds == "step"] = IGNORED
    sd = base * np.array([PRIORS[part] for part in PARTS])
    mean = np.zeros(len(PARTS))
    for part, most_s in (known or {}).items():
        mean[PARTS.index(part)] = sd[PARTS.index(part)] = max(most_s / 2, 1e-9 * base)
    # If no measurement separates input from compute, input is counted as compute.
    used = len(PARTS) if {"dummy", "input", "load"} & {*kinds} else PARTS.index("input")
    draws = np.zeros((DRAWS, len(PARTS)))
    draws[:, :used], scales = posterior(design[:, :used], seen, covariance, mean[:used], sd[:used])
    noise = np.random.default_rng(1).standard_normal((2, DRAWS))
    return Model(given, draws, scales, seen[:, None] - design @ draws.T, covariance, noise)
