"""Checks of predicted uncertainty against the true values: calibration of classes, coverage of intervals."""

from __future__ import annotations

from statistics import NormalDist
from typing import Any, NamedTuple, final

import numpy as np
import numpy.typing as npt

from farandole.errors import UsageError

Floats = npt.NDArray[np.float64]


@final
class Reliability(NamedTuple):
    """Bins of a reliability diagram: mean confidence, share of right classes, and number of ``samples`` of each.

    In a bin without samples the first two are NaN.
    """

    confidence: Floats
    accuracy: Floats
    samples: npt.NDArray[np.int64]

    @property
    def error(self) -> float:
        """Expected calibration error, from 0 to 1 (Guo et al. 2017, arXiv:1706.04599, eq. 3)."""
        filled = self.samples > 0
        gaps = np.abs(self.accuracy - self.confidence)[filled]
        return float(gaps @ self.samples[filled] / self.samples.sum())


def reliability(probabilities: Any, labels: Any, bins: int = 15) -> Reliability:
    """Compare the confidence of predicted classes with how often they are right.

    >>> found = reliability([[0.9, 0.1], [0.8, 0.2]], [0, 1], bins=2)
    >>> float(found.confidence[1].round(2)), float(found.accuracy[1]), int(found.samples[1])
    (0.85, 0.5, 2)

    ``probabilities`` are of shape (samples, classes), ``labels`` integers of shape (samples,). The confidence is the
    largest probability; the m-th of M ``bins`` has those in ((m - 1)/M, m/M]. Guo et al. 2017 (arXiv:1706.04599),
    section 2. Raises ``UsageError`` for other shapes.
    """
    p, y = np.asarray(probabilities, float), np.asarray(labels)
    if p.ndim != 2 or y.shape != p.shape[:1] or not len(p) or bins < 1:
        raise UsageError(
            f"reliability() of probabilities {p.shape}, labels {y.shape}, bins={bins}: give (samples, classes), "
            "(samples,) and at least one bin and sample"
        )
    confidence, right = p.max(axis=1), p.argmax(axis=1) == y
    bin_of = np.clip(np.ceil(confidence * bins).astype(int) - 1, 0, bins - 1)
    count = np.bincount(bin_of, minlength=bins)
    with np.errstate(invalid="ignore"):
        means = [np.bincount(bin_of, each, bins) / count for each in (confidence, right)]
    return Reliability(means[0], means[1], count)


def expected_calibration_error(probabilities: Any, labels: Any, bins: int = 15) -> float:
    """Mean gap between confidence and accuracy, from 0 to 1.

    >>> round(expected_calibration_error([[0.9, 0.1], [0.8, 0.2]], [0, 1], bins=2), 3)
    0.35

    Guo et al. 2017 (arXiv:1706.04599), eq. 3; for the arguments see ``reliability``.
    """
    return reliability(probabilities, labels, bins).error


def normal_interval(mean: Any, variance: Any, level: float = 0.9) -> tuple[Floats, Floats]:
    """Central interval with probability ``level`` of a normal distribution: lower and upper ends, shaped like ``mean``.

    >>> [round(float(end), 3) for end in normal_interval(0.0, 1.0, 0.9)]
    [-1.645, 1.645]

    An ensemble counts as one normal distribution, as in Lakshminarayanan et al. 2017 (arXiv:1612.01474), section
    2.4. Raises ``UsageError`` for a level that is not between 0 and 1, or a negative variance.
    """
    centre, spread = np.asarray(mean, float), np.asarray(variance, float)
    if not 0 < level < 1 or (spread < 0).any():
        raise UsageError(
            f"normal_interval(level={level}): give one between 0 and 1, and variances that are not negative"
        )
    half = NormalDist().inv_cdf((1 + level) / 2) * np.sqrt(spread)
    return centre - half, centre + half


def coverage(targets: Any, low: Any, high: Any) -> float:
    """Share of ``targets`` that lie between ``low`` and ``high``, ends included; arrays of one shape.

    >>> coverage([1.0, 2.0, 3.0, 4.0], [0, 0, 0, 0], [3, 3, 3, 3])
    0.75
    """
    y = np.asarray(targets)
    return float(np.mean((np.asarray(low) <= y) & (y <= np.asarray(high))))
