"""Outlooks: what-ifs, what cannot be answered, epochs, node-hours and advice."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from farandole.errors import UsageError
from farandole.predict import outlook as outlooks
from farandole.predict.costs import FABRICS, halving_doubling
from farandole.predict.model import Model, Observation, Quantiles, fit
from farandole.predict.outlook import Expectation, Question, advice, outlook, with_change
from farandole.predict.training import from_noise_scale, from_table

NBYTES, FABRIC = 553e6, FABRICS["25gbe"]
RANKS = (1, 2, 4, 8, 16, 32)


@pytest.fixture(scope="module")
def training() -> Model:
    """Half a second of compute, gradients of VGG-16 over 25 GbE, none of it hidden; 32 samples on a rank."""
    steps = [Observation(p, p, 0.5 + halving_doubling(NBYTES, p, FABRIC), batch=32) for p in RANKS]
    return fit(steps, outlooks.known(asked()))


def asked(**changes: str) -> Question:
    """Question about 64 ranks."""
    return Question(ranks=[64], nbytes=NBYTES, fabric=FABRIC, changes=changes)


def middle(model: Model, question: Question) -> float:
    """Seconds of a step on the most ranks asked for."""
    return outlook(model, question).rows[-1].step.middle


def test_as_it_is(training: Model) -> None:
    assert middle(training, asked()) == pytest.approx(0.5 + halving_doubling(NBYTES, 64, FABRIC), rel=0.03)


def test_another_network(training: Model) -> None:
    faster = 0.5 + halving_doubling(NBYTES, 64, FABRICS["slingshot-11"])
    assert middle(training, asked(network="slingshot-11")) == pytest.approx(faster, rel=0.08)
    assert middle(training, asked(network="25gbe")) == pytest.approx(middle(training, asked()), rel=0.02)
    assert middle(training, asked(network="50,1")) > middle(training, asked())


def test_overlap(training: Model) -> None:
    now, hidden = middle(training, asked()), middle(training, asked(overlap="on"))
    assert hidden == pytest.approx(0.5 + halving_doubling(NBYTES, 64, FABRIC) / 8, rel=0.15)
    assert middle(training, asked(overlap="off")) == pytest.approx(now, rel=0.1)
    seen = dataclasses.replace(asked(overlap="off"), hidden_s=0.2)
    assert middle(training, seen) == pytest.approx(now + 0.2, rel=0.03)


def test_another_batch(training: Model) -> None:
    assert middle(training, asked(batch="64")) == pytest.approx(middle(training, asked()) + 0.5, rel=0.05)


def test_a_tree_in_place_of_a_flat_coordinator() -> None:
    flat = fit([Observation(p, p, 1 + 2e-4 * (p - 1)) for p in (64, 256, 1024, 4096)])
    now, tree = (middle(flat, Question(ranks=[27360], changes=c)) for c in ({}, {"control": "tree"}))
    assert now > 3 > 2 > tree


@pytest.mark.parametrize(
    ("change", "lack"),
    [
        ("network=aries", "--bytes and --network"),
        ("overlap=off", "--timeline"),
        ("input=none", "column dummy"),
        ("batch=64", "column batch"),
        ("overlap=maybe", "what-ifs are"),
        ("weather=good", "what-ifs are"),
    ],
)
def test_what_cannot_be_answered_says_what_is_lacking(change: str, lack: str) -> None:
    model = fit([Observation(p, p, 1.0 + 0.01 * p) for p in RANKS])
    with pytest.raises(UsageError, match=lack):
        outlook(model, with_change(Question(ranks=[64]), change))


def test_a_what_if_has_a_value() -> None:
    for wrong in ("input", "network=carrier-pigeon"):
        with pytest.raises(UsageError):
            with_change(Question(), wrong)


def test_epochs_time_and_node_hours(training: Model) -> None:
    epochs = from_noise_scale(900, epochs=20, batch=32, bounds=(899, 901))
    row = outlook(training, Question(ranks=[64], per_host=4, samples=1e5, epochs=epochs)).rows[0]
    assert row.epochs is not None
    assert row.training is not None
    needed = 20 * (1 + 64 * 32 / 900) / (1 + 32 / 900)
    assert row.epochs.middle == pytest.approx(needed, rel=0.01)
    assert row.training.middle == pytest.approx(needed * 1e5 / (64 * 32) * row.step.middle, rel=0.01)
    assert row.node_hours == pytest.approx(16 * row.training.middle / 3600)


def test_advice_names_where_doubling_no_longer_pays() -> None:
    """Steps of any size take a second: time goes with 1 + 1100 / B, so to double 32 x 128 saves 11 %, 32 x 256 6 %."""

    def row(ranks: int) -> Expectation:
        one, hours = Quantiles(1, 1, 1), 1 + 1100 / (32 * ranks)
        return Expectation(ranks, ranks, one, one, {}, 32 * ranks, one, Quantiles(hours, hours, hours))

    rows = [row(2**i) for i in range(12)]
    assert advice(rows) == "Above 256 ranks you buy 6 % for 1.9 times the price (512 ranks)."
    assert advice(rows[:7]) == "Up to 64 ranks each doubling saves at least 10% of the time."
    assert advice(rows[:1]) == "One number of ranks leaves nothing to choose."


def test_advice_without_epochs_goes_by_efficiency(training: Model) -> None:
    found = outlook(training, dataclasses.replace(asked(), ranks=[1, 2, 4, 8]))
    assert found.advice.startswith("Up to 1 ranks each does at least 80%")
    assert "--noise-scale" in found.advice
    assert found.rows[0].training is None
    assert math.isnan(found.rows[0].node_hours)


def test_caveats() -> None:
    one_host = fit([Observation(1, 1, 1.0), Observation(2, 1, 1.02)])
    text = " ".join(outlook(one_host, Question(ranks=[2, 64, 27360], per_host=2)).caveats)
    for said in ("spans two hosts", "2 numbers of ranks", "Beyond 16 ranks", "counted as compute", "cannot be known"):
        assert said in text
    known = outlooks.known(Question(nbytes=1e9, fabric=FABRIC, per_host=2, steps=3))
    assert known["between"] == pytest.approx(3 * 2 / 3.1)


def test_parts_sum_up_to_the_step(training: Model) -> None:
    row = outlook(training, asked()).rows[0]
    assert sum(row.parts.values()) == pytest.approx(row.step.middle, rel=0.05)
    assert np.isfinite(list(row.parts.values())).all()


@pytest.mark.parametrize("wrong", [[(32, 8)], [(32, 8), (32, 9)], [(0, 8), (32, 9)]])
def test_epochs_need_two_batches(wrong: list[tuple[float, float]]) -> None:
    with pytest.raises(UsageError, match="two batches"):
        from_table(wrong)


def test_a_noise_scale_is_above_zero() -> None:
    with pytest.raises(UsageError, match="noise scale"):
        from_noise_scale(-3, 10, 32)
