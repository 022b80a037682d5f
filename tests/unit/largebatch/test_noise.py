"""The noise scale against the truth, and every way of getting it wrong.

Gradients are drawn, not computed: g = G + noise whose covariance has the trace S, per sample.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterator, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farandole.largebatch import Estimate, NoEstimate, NoiseEstimator, NormPair, across_ranks
from farandole.largebatch.noise import fieller, student

Vector: TypeAlias = npt.NDArray[np.float64]

DIM, TRACE, NORM2 = 48, 96.0, 5.0
UNEQUAL = (4, 7, 1, 12)
TRUE = TRACE / NORM2


def norm2(vector: Vector) -> float:
    """Squared."""
    return float(vector @ vector)


def mean(vectors: Sequence[Vector], weights: Sequence[float]) -> Vector:
    """Weighted."""
    return np.asarray(weights) @ np.asarray(vectors)


def gradient(rng: np.random.Generator, batch: int) -> Vector:
    """The mean over so many samples."""
    return math.sqrt(NORM2 / DIM) + rng.normal(0.0, math.sqrt(TRACE / DIM / batch), DIM)


def steps(batches: tuple[int, ...], count: int, seed: int = 0) -> Iterator[NormPair]:
    """What so many steps give, reduced as one process with all samples would."""
    rng = np.random.default_rng(seed)
    weights = [b / sum(batches) for b in batches]
    for _ in range(count):
        each = [gradient(rng, b) for b in batches]
        yield across_ranks(batches, [norm2(g) for g in each], norm2(mean(each, weights)))


def estimated(batches: tuple[int, ...], count: int, seed: int = 0) -> Estimate:
    """After so many steps, all of which count."""
    estimator = NoiseEstimator(horizon_samples=1e12)
    for pair in steps(batches, count, seed):
        estimator.add(pair, sum(batches))
    found = estimator.estimate()
    assert isinstance(found, Estimate)
    return found


@pytest.mark.parametrize("batches", [(4, 4), (6, 6, 6, 6), UNEQUAL, (1, 31)])
def test_the_estimate_is_within_ten_percent_of_the_truth(batches: tuple[int, ...]) -> None:
    found = estimated(batches, 20_000 if len(batches) == 2 else 6000)
    assert found.trace == pytest.approx(TRACE, rel=0.05)
    assert found.norm2 == pytest.approx(NORM2, rel=0.1)
    assert found.b_simple == pytest.approx(TRUE, rel=0.1)
    assert found.low < TRUE < found.high


def test_the_formula_for_unequal_batches() -> None:
    batches, norms2, large = UNEQUAL, [9.0, 8.0, 30.0, 6.0], 5.5
    pair, whole, ranks = across_ranks(batches, norms2, large), sum(batches), len(batches)
    small = sum(b / whole * n for b, n in zip(batches, norms2, strict=True))
    assert pair.trace == pytest.approx(whole * (small - large) / (ranks - 1))
    assert pair.norm2 == pytest.approx((ranks * large - small) / (ranks - 1))


def test_two_batches_are_mccandlishs() -> None:
    pair = NormPair(small=9.0, small_inverse_batch=1 / 8, large=3.0, large_inverse_batch=1 / 64)
    assert pair.norm2 == pytest.approx((64 * 3.0 - 8 * 9.0) / (64 - 8))
    assert pair.trace == pytest.approx((9.0 - 3.0) / (1 / 8 - 1 / 64))


def test_ranks_that_count_alike_whatever_their_batches() -> None:
    rng, estimator = np.random.default_rng(1), NoiseEstimator(horizon_samples=1e12)
    equal = [1 / len(UNEQUAL)] * len(UNEQUAL)
    for _ in range(4000):
        each = [gradient(rng, b) for b in UNEQUAL]
        pair = across_ranks(UNEQUAL, [norm2(g) for g in each], norm2(mean(each, equal)), equal)
        estimator.add(pair, sum(UNEQUAL))
    found = estimator.estimate()
    assert isinstance(found, Estimate)
    assert found.b_simple == pytest.approx(TRUE, rel=0.1)


# -- traps ------------------------------------------------------------------------------------------------------------


def test_a_mean_of_ratios_is_far_too_high_and_a_ratio_of_means_is_not() -> None:
    pairs = list(steps(UNEQUAL, 10_000))
    of_means = statistics.fmean(p.trace for p in pairs) / statistics.fmean(p.norm2 for p in pairs)
    assert of_means == pytest.approx(TRUE, rel=0.02)
    assert estimated(UNEQUAL, 10_000).b_simple == pytest.approx(of_means)
    of_ratios = statistics.fmean(p.trace / p.norm2 for p in pairs if p.norm2 > 1)  # what dividing first comes to
    assert of_ratios > 1.12 * TRUE


def test_treating_unequal_batches_as_equal_is_wrong() -> None:
    rng, wrong = np.random.default_rng(2), NoiseEstimator(horizon_samples=1e12)
    equal = (sum(UNEQUAL) // len(UNEQUAL),) * len(UNEQUAL)
    weights = [b / sum(UNEQUAL) for b in UNEQUAL]
    for _ in range(4000):
        each = [gradient(rng, b) for b in UNEQUAL]
        wrong.add(across_ranks(equal, [norm2(g) for g in each], norm2(mean(each, weights))), sum(UNEQUAL))
    found = wrong.estimate()
    assert isinstance(found, Estimate)
    assert abs(found.b_simple / TRUE - 1) > 0.15


def test_sampling_without_replacement() -> None:
    """A step's noise is S (1 - B/D) / B then. S itself is not biased; |G|^2 is, by S/D, which the size puts back."""
    rng, size, batch = np.random.default_rng(3), 64, 32
    data = [gradient(rng, 1) for _ in range(size)]
    true = mean(data, [1 / size] * size)
    trace = sum(norm2(g - true) for g in data) / (size - 1)
    naive, told = NoiseEstimator(horizon_samples=1e12), NoiseEstimator(horizon_samples=1e12, dataset_size=size)
    spread = []
    for _ in range(2000):
        chosen = [data[i] for i in rng.permutation(size)[:batch]]
        halves = [mean(chosen[:16], [1 / 16] * 16), mean(chosen[16:], [1 / 16] * 16)]
        whole = mean(halves, [0.5, 0.5])
        spread.append(norm2(whole - true))
        pair = across_ranks((16, 16), [norm2(h) for h in halves], norm2(whole))
        naive.add(pair, batch)
        told.add(pair, batch)
    assert statistics.fmean(spread) * batch == pytest.approx(trace * (1 - batch / size), rel=0.05)
    without, found = naive.estimate(), told.estimate()
    assert isinstance(without, Estimate)
    assert isinstance(found, Estimate)
    assert found.trace == pytest.approx(trace, rel=0.05)
    assert found.norm2 == pytest.approx(norm2(true), rel=0.05)
    assert without.norm2 == pytest.approx(norm2(true) - trace / size, rel=0.05)
    assert norm2(true) - trace / size < 0.9 * norm2(true)


def test_averages_are_over_samples_and_not_over_steps() -> None:
    """Half of the samples saw a trace of 1 in small steps, half one of 3 in large ones."""
    estimator = NoiseEstimator(horizon_samples=1e12)
    for i in range(160):
        estimator.add(NormPair(1.0 + i % 2 / 100, 1.0, 0.0, 0.0), samples=8)
    for i in range(20):
        estimator.add(NormPair(3.0 + i % 2 / 100, 1.0, 0.0, 0.0), samples=64)
    found = estimator.estimate()
    assert isinstance(found, Estimate)
    assert found.trace == pytest.approx(2.0, rel=0.01)  # over steps it would be 1.2


def test_old_measurements_fade_by_samples_whatever_the_batch() -> None:
    def after(batch: int) -> float:
        estimator = NoiseEstimator(horizon_samples=1000)
        for value in (1.0, 3.0):
            for _ in range(2000 // batch):
                estimator.add(NormPair(value, 1.0, 0.0, 0.0), samples=batch)
        found = estimator.estimate()
        assert isinstance(found, Estimate)
        return found.trace

    assert after(10) == pytest.approx(after(40), rel=0.02)
    assert 2.5 < after(10) < 3.0


def test_a_noise_scale_without_signal_has_no_upper_bound_and_is_not_clamped() -> None:
    rng, estimator = np.random.default_rng(4), NoiseEstimator(horizon_samples=1e12)
    for _ in range(50):
        estimator.add(NormPair(2.0 + rng.normal(0, 0.1), 1 / 8, 0.25 + rng.normal(0, 0.1), 1 / 64), samples=64)
    found = estimator.estimate()
    assert isinstance(found, Estimate)
    assert found.high == math.inf
    assert 0 < found.low < math.inf
    assert found.b_simple < 0 or found.b_simple > found.low


def test_the_interval_covers_the_truth() -> None:
    covered = 0
    for seed in range(60):
        found = estimated((6, 6), 40, seed)
        covered += found.low <= TRUE <= found.high
    assert covered >= 51  # of 60 with 95 %: fewer than 52 happen once in a thousand


def test_what_is_not_finite_is_left_out() -> None:
    estimator = NoiseEstimator(horizon_samples=1e12)
    for pair in steps((4, 4), 20):
        estimator.add(pair, 8)
    before = estimator.estimate()
    estimator.add(NormPair(math.inf, 1 / 4, math.inf, 1 / 8), 8)
    after = estimator.estimate()
    assert isinstance(before, Estimate)
    assert isinstance(after, Estimate)
    assert (after.trace, after.norm2) == pytest.approx((before.trace, before.norm2))


def test_without_enough_it_says_so() -> None:
    estimator = NoiseEstimator(horizon_samples=1000)
    assert "1.0 measured steps count" in str(_after(estimator, 1))
    found = _after(estimator, 100)
    assert found
    estimator.seen(999)
    assert estimator.estimate()
    estimator.seen(2)
    stale = estimator.estimate()
    assert str(stale) == "no estimate: nothing was measured for 1001 samples"
    assert not NoiseEstimator().estimate()
    for wrong in (lambda: NoiseEstimator(0), lambda: NoiseEstimator(dataset_size=0), lambda: across_ranks([4], [1], 1)):
        with pytest.raises(ValueError, match=r"above 0|at least two"):
            wrong()


def _after(estimator: NoiseEstimator, count: int) -> Estimate | NoEstimate:
    for pair in steps((4, 4), count):
        estimator.add(pair, 8)
    return estimator.estimate()


@given(st.integers(1, 40))
def test_the_state_goes_on_where_it_was(split: int) -> None:
    pairs = list(steps((2, 5), 41))
    whole, first, second = (NoiseEstimator(horizon_samples=100) for _ in range(3))
    for i, pair in enumerate(pairs):
        whole.add(pair, 7)
        (first if i < split else second).add(pair, 7)
        if i == split - 1:
            second.load(json.loads(json.dumps(first.state())))
    assert second.estimate() == whole.estimate()


# -- statistics -------------------------------------------------------------------------------------------------------


def test_students_quantiles() -> None:
    for freedom, quantile in ((5, 2.571), (10, 2.228), (30, 2.042), (1000, 1.962)):
        assert student(freedom) == pytest.approx(quantile, rel=0.01)


@given(st.floats(0.1, 10), st.floats(0.1, 10), st.floats(1e-4, 1), st.floats(1e-4, 1), st.floats(-0.9, 0.9))
def test_fiellers_bounds_hold_the_ratio(n: float, d: float, var_n: float, var_d: float, rho: float) -> None:
    low, high = fieller(n, d, (var_n, var_d, rho * math.sqrt(var_n * var_d)), 1.96)
    assert low <= n / d * (1 + 1e-9)
    assert n / d <= high * (1 + 1e-9)


def test_fieller_becomes_the_usual_interval_where_the_denominator_is_known() -> None:
    assert fieller(10.0, 2.0, (1.0, 0.0, 0.0), 2.0) == pytest.approx((4.0, 6.0))
