"""Parts of uncertainty, calibration and coverage, beside sums in plain Python."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farandole.errors import UsageError
from farandole.inference import (
    Draw,
    classification,
    coverage,
    ensemble,
    entropy_parts,
    expected_calibration_error,
    monte_carlo,
    normal_interval,
    regression,
    reliability,
    variance_parts,
)

WEIGHTS = st.lists(st.lists(st.integers(0, 9), min_size=3, max_size=3).filter(any), min_size=1, max_size=6)
NUMBERS = st.lists(st.tuples(st.floats(-9, 9), st.floats(0, 5)), min_size=1, max_size=6)


def h(p: list[float]) -> float:
    return -sum(x * math.log(x) for x in p if x > 0)


@given(WEIGHTS)
def test_entropy_has_two_parts(weights: list[list[int]]) -> None:
    members = [[w / sum(row) for w in row] for row in weights]
    mean = [sum(p[k] for p in members) / len(members) for k in range(3)]
    aleatoric = sum(map(h, members)) / len(members)
    # Mutual information of class and member, as the mean divergence from the mean distribution.
    information = sum(p[k] * math.log(p[k] / mean[k]) for p in members for k in range(3) if p[k]) / len(members)
    parts = entropy_parts(np.array(members)[:, None])
    assert parts["mean"][0] == pytest.approx(mean)
    assert parts["total"][0] == pytest.approx(h(mean), abs=1e-12)
    assert parts["aleatoric"][0] == pytest.approx(aleatoric, abs=1e-12)
    assert parts["epistemic"][0] == pytest.approx(information, abs=1e-9)
    assert 0 <= parts["epistemic"][0] <= parts["total"][0] + 1e-12
    assert parts["total"][0] <= math.log(3) + 1e-12


@given(NUMBERS)
def test_variance_is_that_of_all_the_values_there_are(members: list[tuple[float, float]]) -> None:
    """Each member says that the value is one of two, of equal probability: the mixture has all of them."""
    values = [value for mean, spread in members for value in (mean - spread, mean + spread)]
    centre = sum(values) / len(values)
    variance = sum((value - centre) ** 2 for value in values) / len(values)
    means, spreads = np.array(members).T[:, :, None]
    parts = variance_parts(means, spreads**2)
    assert parts["mean"][0] == pytest.approx(centre, abs=1e-9)
    assert parts["variance"][0] == pytest.approx(variance, abs=1e-9)
    assert parts["variance"] == pytest.approx(parts["aleatoric"] + parts["epistemic"])
    assert variance_parts(means)["aleatoric"][0] == 0


@given(st.lists(st.tuples(st.integers(0, 100), st.booleans()), min_size=1, max_size=40), st.integers(1, 12))
def test_calibration_error_is_the_gap_weighted_by_samples(found: list[tuple[int, bool]], bins: int) -> None:
    confidence = [0.5 + percent / 200 for percent, _ in found]
    p = np.array([[c, 1 - c] for c in confidence])
    labels = np.array([0 if right else 1 for _, right in found])
    edges, expected = [m / bins for m in range(bins + 1)], 0.0
    for low, high in pairwise(edges):
        inside = [i for i, c in enumerate(confidence) if low < c <= high]
        if inside:
            gap = sum(found[i][1] for i in inside) - sum(confidence[i] for i in inside)
            expected += abs(gap) / len(found)
    near_edge = any(abs(c * bins - round(c * bins)) < 1e-9 for c in confidence)
    if not near_edge:  # there a rounding may put it into either bin
        assert expected_calibration_error(p, labels, bins) == pytest.approx(expected)
    table = reliability(p, labels, bins)
    assert table.samples.sum() == len(found)
    assert 0 <= table.error <= 1


def test_calibrated_classes_have_no_error_and_sure_ones_have_it() -> None:
    rng = np.random.default_rng(0)
    p = rng.dirichlet([1, 1, 1], 20_000)
    labels = (rng.random(20_000)[:, None] > p.cumsum(axis=1)).sum(axis=1)
    assert expected_calibration_error(p, labels) < 0.02
    sure = p**4 / (p**4).sum(axis=1, keepdims=True)
    assert expected_calibration_error(sure, labels) > 0.1


@pytest.mark.parametrize(("p", "labels"), [([[1.0]], [0, 0]), ([1.0], [0]), (np.empty((0, 2)), [])])
def test_shapes_that_do_not_fit_are_refused(p: Any, labels: Any) -> None:
    with pytest.raises(UsageError, match=r"\(samples, classes\)"):
        reliability(p, labels)


@pytest.mark.parametrize("level", [0.5, 0.9, 0.99])
def test_intervals_have_their_share_of_a_normal_distribution(level: float) -> None:
    low, high = normal_interval(2.0, 9.0, level)
    assert math.erf((float(high) - 2) / 3 / math.sqrt(2)) == pytest.approx(level)
    assert float(high) - 2 == pytest.approx(2 - float(low))
    targets = np.random.default_rng(1).normal(2, 3, 20_000)
    inside = sum(float(low) <= each <= float(high) for each in targets)
    assert coverage(targets, low, high) == inside / 20_000
    assert inside / 20_000 == pytest.approx(level, abs=0.01)
    with pytest.raises(UsageError, match="between 0 and 1"):
        normal_interval(0, 1, 90)


def test_members_are_asked_one_by_one() -> None:
    x = np.array([1.0, 2.0])
    asked = ensemble([lambda batch: batch, lambda batch, draw: batch + draw.number])
    assert asked(x, Draw(0, range(2))).tolist() == [[1, 2], [2, 3]]
    pairs = ensemble([lambda batch: (batch, batch * 0 + 1), lambda batch: (batch + 2, batch * 0 + 3)])
    parts = regression(pairs)(x, Draw(0, range(2)))
    assert {name: part.tolist() for name, part in parts.items()} == {
        "mean": [2, 3],
        "variance": [3, 3],
        "aleatoric": [2, 2],
        "epistemic": [1, 1],
    }
    with pytest.raises(UsageError, match="no member"):
        ensemble([])
    with pytest.raises(UsageError, match="pair"):
        regression(ensemble([lambda batch: (batch, batch, batch)]))(x, Draw(0, range(2)))


def test_logits_become_probabilities() -> None:
    logits = np.array([[[700.0, 699.0]], [[0.0, 1.0]]])  # large ones, which overflow where nobody takes care
    p = [1 / (1 + math.exp(-1)), 1 / (1 + math.exp(1))]
    found = classification(ensemble([lambda _: logits[0], lambda _: logits[1]]), logits=True)
    parts = found(np.zeros(1), Draw(0, range(1)))
    assert parts["mean"][0] == pytest.approx([0.5, 0.5])
    assert parts["aleatoric"][0] == pytest.approx(h(p))


def drawn(batch: Any, draw: Draw) -> Any:
    return batch + [draw.rng(i).normal() for i in draw.samples]


def test_passes_of_a_function_have_numbers_of_their_own() -> None:
    asked = monte_carlo(drawn, passes=5)
    first, again = (asked(np.zeros(3), draw=Draw(7, range(4, 7))) for _ in range(2))
    assert first.shape == (5, 3)
    assert len(set(first.ravel())) == 15
    assert (first == again).all()
    assert (asked(np.zeros(1), draw=Draw(7, range(5, 6)))[:, 0] == first[:, 1]).all()
    for wrong in (lambda batch: batch, 3):
        with pytest.raises(UsageError, match="parameter draw"):
            monte_carlo(wrong)
    with pytest.raises(UsageError, match="passes=0"):
        monte_carlo(drawn, passes=0)
