"""The fit of a step: what it finds again, what it refuses, and how far it believes itself."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farandole.errors import UsageError
from farandole.predict import model
from farandole.predict.model import PARTS, Observation, features, fit, posterior

RANKS = (1, 2, 4, 8, 16, 32, 64, 128)


def truth(ranks: float, sigma: float = 0.02, beta: float = 0.05, hops: float = 0.004) -> float:
    """A step of 2 s whose parts are known, on one rank a host."""
    between = beta * (ranks - 1) / ranks + hops * math.log2(ranks)
    return 2 * (1 + between + sigma * math.sqrt(2 * math.log(ranks)))


def measured(unit: float = 1.0) -> list[Observation]:
    """Steps of ``truth`` with half a percent of noise."""
    random = np.random.default_rng(7)
    return [Observation(p, p, unit * truth(p) * (1 + 0.005 * random.standard_normal())) for p in RANKS]


def test_it_goes_on_as_the_truth_does() -> None:
    fitted = fit(measured())
    for ranks in (256, 1024, 8192):
        low, middle, high = fitted.quantiles(ranks, ranks)
        assert ranks > 1024 or abs(middle / truth(ranks) - 1) < 0.08
        assert low < truth(ranks) < high


def test_coefficients_are_never_negative() -> None:
    falling = [Observation(p, p, 3 - 0.1 * math.log2(p)) for p in RANKS]
    assert fit(falling).draws.min() >= 0


def test_the_interval_widens_with_the_distance() -> None:
    fitted = fit(measured())
    widths = [high / low for low, _, high in (fitted.quantiles(p, p) for p in (128, 256, 1024, 8192, 27360))]
    assert widths == sorted(widths)
    assert widths[0] < 1.05 < 1.3 < widths[-1]


@given(unit=st.floats(1e-3, 1e4))
@settings(max_examples=5, deadline=None)
def test_the_unit_of_time_does_not_matter(unit: float) -> None:
    one, other = fit(measured()).quantiles(512, 512), fit(measured(unit)).quantiles(512, 512)
    assert other == pytest.approx([unit * each for each in one], rel=1e-6)


def test_draws_of_the_posterior_agree_with_a_grid() -> None:
    """One coefficient, cut off at 0: its mean by summing up the density."""
    design, seen, sd = np.array([[1.0], [1.0]]), np.array([-0.3, 0.1]), np.array([0.5])
    draws, scales = posterior(design, seen, 0.04 * np.eye(2), np.zeros(1), sd)
    grid, scale2 = np.linspace(0, 3, 1500), np.linspace(0.05, 40, 4000)[:, None]
    off = sum((s - grid) ** 2 for s in seen) / 0.04
    free = model.FREEDOM
    log_density = -(off + free) / (2 * scale2) - (free / 2 + 2) * np.log(scale2) - grid**2 / (2 * 0.25)
    weights = np.exp(log_density).sum(axis=0)
    assert draws.min() >= 0 < scales.min()
    assert draws.mean() == pytest.approx(float(weights @ grid / weights.sum()), rel=0.08)


def test_a_column_of_dummy_data_tells_input_from_the_rest() -> None:
    both = [o for p in RANKS for o in (Observation(p, p, truth(p) + 0.5), Observation(p, p, truth(p), "dummy"))]
    parts = fit(both).parts(64, 64)
    loading = sum(float(np.median(parts[name])) for name in model.INPUT)
    assert loading == pytest.approx(0.5, rel=0.1)
    assert not fit(measured()).has_input


def test_a_loader_that_reads_ahead_is_waited_for_as_far_as_it_is_longer() -> None:
    given_ = [
        o
        for p in (1, 2)
        for o in (Observation(p, 1, 0.5), Observation(p, 1, 0.3, "dummy"), Observation(p, 1, 0.5, "load"))
    ]
    fitted = fit(given_)
    assert fitted.quantiles(2, 1).middle == pytest.approx(0.5, rel=0.05)
    assert float(np.median(fitted.parts(2, 1)["input"])) == pytest.approx(0.2, rel=0.1)
    slow = {name: float(np.median(each)) for name, each in fitted.parts(2, 1, load=1.0).items()}
    assert slow["compute"] == pytest.approx(0.3, rel=0.1)


@given(ranks=st.integers(1, 27360), per_host=st.integers(1, 8))
@settings(max_examples=50, deadline=None)
def test_features_grow_with_ranks(ranks: int, per_host: int) -> None:
    small, large = (features(p, max(1, p / per_host)) for p in (ranks, 2 * ranks))
    assert (large >= small - 1e-12).all()
    assert len(small) == len(PARTS)


def test_known_costs_are_where_the_search_begins() -> None:
    """With nothing between hosts measured, half of what the formula allows; the interval reaches from little to all."""
    one = [Observation(p, 1, 1 + 0.01 * p) for p in (1, 2, 4)]
    parts = fit(one, {"between": 0.4, "hops": 0.0}).parts(4 * 1024, 1024)
    assert float(np.median(parts["between"])) == pytest.approx(0.23, abs=0.05)
    assert float(np.median(parts["hops"])) < 1e-6


@pytest.mark.parametrize(
    "wrong", [(0, 1, 1.0), (2, 4, 1.0), (1, 1, 0.0), (1, 1, -1.0), (1, 1, math.nan), (1, 1, 1.0, "dumy")]
)
def test_there_is_no_such_step(wrong: tuple[float, float, float]) -> None:
    with pytest.raises(UsageError):
        Observation(*wrong)


def test_a_fit_needs_a_whole_step() -> None:
    with pytest.raises(UsageError, match="no whole step"):
        fit([Observation(1, 1, 1.0, "dummy")])
