"""Schedules at their boundaries, through resizes, and what they refuse."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farandole.largebatch import (
    BASE_RATES,
    RULES,
    Constant,
    Cosine,
    Exponential,
    Piecewise,
    Polynomial,
    Position,
    Schedule,
    gain,
    momentum_correction,
)

EPOCH = 51_200


def schedule(**changes: Any) -> Schedule:
    """BigEarthNet's figures: 0.2 at 512."""
    usual: dict[str, Any] = {"base_lr": 0.2, "base_batch": 512, "global_batch": 8192, "epochs": 90, "warmup_epochs": 5}
    return Schedule(**{**usual, **changes})


def at(plan: Schedule, epoch: float) -> float:
    """The rate after so many epochs."""
    samples = round(epoch * EPOCH)
    return plan.rate(replace(plan.begin(EPOCH), samples=samples, progress=samples))


@pytest.mark.parametrize(("batch", "rate"), [(512, 0.2), (8192, 3.2), (16384, 6.4), (32768, 12.8)])
def test_linear_scaling_gives_the_published_rates(batch: int, rate: float) -> None:
    assert at(schedule(global_batch=batch), 5) == pytest.approx(rate)


def test_the_rules() -> None:
    assert {name: rule.scale(16) for name, rule in RULES.items() if not rule.measured} == {
        "linear": 16,
        "sqrt": 4,
        "legw": 4,
    }
    assert BASE_RATES["adam"] == BASE_RATES["rmsprop"] == 1e-3
    assert BASE_RATES["sgd"] == BASE_RATES["adagrad"] == 1e-2
    assert BASE_RATES["adadelta"] == 1


@given(st.floats(0, 5), st.integers(1, 64))
def test_the_warm_up_is_horovods(epoch: float, ratio: int) -> None:
    multiplier = (epoch * (ratio - 1) / 5 + 1) / ratio  # of the scaled rate, Goyal et al. 2017
    samples = round(epoch * EPOCH)
    expected = ratio * 0.2 * (samples / EPOCH * (ratio - 1) / 5 + 1) / ratio
    assert at(schedule(global_batch=512 * ratio), epoch) == pytest.approx(expected)
    assert expected == pytest.approx(ratio * 0.2 * multiplier, rel=1e-3)


def test_the_warm_up_changes_every_step_and_begins_where_it_is_told() -> None:
    rates = [at(schedule(), 8192 * i / EPOCH) for i in range(20)]
    assert rates[0] == 0.2
    assert all(a < b for a, b in pairwise(rates))
    assert at(schedule(warmup_from=0.0), 0) == 0
    assert at(schedule(warmup_from=0.0), 5) == pytest.approx(3.2)
    assert at(schedule(warmup_epochs=0), 0) == pytest.approx(3.2)


def test_legw_warms_up_for_as_many_times_more_epochs() -> None:
    plan = schedule(rule="legw", warmup_epochs=0.3125, warmup_from=0.0)
    assert at(plan, 5) == pytest.approx(0.2 * 4)
    assert at(plan, 2.5) == pytest.approx(0.2 * 2)


def test_decays_at_their_boundaries() -> None:
    for decay in (Constant(), Polynomial(), Exponential(), Piecewise(), Cosine()):
        assert decay.factor(0, 90) == decay.factor(-1, 90) == 1
        assert decay.factor(91, 90) == decay.factor(90, 90)
    assert Polynomial(2).factor(45, 90) == 0.25
    assert Polynomial(2, end=0.2).factor(90, 90) == pytest.approx(0.2)
    assert [Exponential(0.5, 10).factor(e, 90) for e in (9.99, 10, 19.99, 20)] == [1, 0.5, 0.5, 0.25]
    assert Exponential(0.5, 10, staircase=False).factor(5, 90) == pytest.approx(0.5**0.5)
    assert [Piecewise().factor(e, 90) for e in (29.99, 30, 59.99, 60, 80)] == [1, 0.1, 0.1, 0.01, 0.001]
    assert [Cosine().factor(e, 90) for e in (45, 90)] == pytest.approx([0.5, 0])


def test_a_batch_that_grows_takes_the_rate_along() -> None:
    plan = schedule(warmup_batch=512, decay=Constant())
    position = plan.begin(EPOCH)
    assert (plan.batch(position), plan.rate(position)) == (512, 0.2)
    seen = []
    while position.epoch < 6:
        seen.append((plan.batch(position), plan.rate(position)))
        position = plan.advance(position)
    assert seen[-1][0] == 8192
    assert seen[-1][1] == pytest.approx(3.2)
    assert all(rate / batch == pytest.approx(0.2 / 512, rel=1e-3) for batch, rate in seen)
    assert len(seen) > 6 * EPOCH / 8192  # smaller steps are more steps


WORLDS = st.lists(st.tuples(st.integers(1, 80), st.sampled_from([256, 512, 1024, 4096, 8192])), max_size=5)


@given(WORLDS, st.sampled_from(["linear", "sqrt", "legw"]), st.sampled_from([Constant(), Polynomial(), Cosine()]))
def test_no_resize_makes_the_rate_jump(worlds: list[tuple[int, int]], rule: str, decay: Any) -> None:
    plan = schedule(rule=rule, decay=decay, warmup_epochs=2.0 if rule == "linear" else 0.1)
    position, most = plan.begin(EPOCH), 0.0
    for steps, batch in worlds:
        before = plan.rate(position)
        position = plan.resize(position, batch)
        assert plan.rate(position) == pytest.approx(before)
        for _ in range(steps):
            before, position = plan.rate(position), plan.advance(position)
            most = max(most, abs(plan.rate(position) - before) / (position.global_batch / EPOCH))
    slope = 0.2 * 16 / 0.1  # the steepest ramp there can be, in rate per epoch, and the decay's
    assert most <= slope + 3.2 * 0.1


@given(st.lists(st.integers(1, 30), min_size=1, max_size=6))
def test_the_rate_depends_on_samples_and_not_on_how_they_came(parts: list[int]) -> None:
    plan = schedule(decay=Cosine())
    position = plan.begin(EPOCH)
    for part in parts:
        position = plan.advance(position, samples=part * 1000)
    once = plan.advance(plan.begin(EPOCH), samples=sum(parts) * 1000)
    assert plan.rate(position) == plan.rate(once)


def test_after_a_resize_the_rate_arrives_where_the_batch_wants_it() -> None:
    plan = schedule(decay=Constant())
    position = plan.resize(plan.advance(plan.begin(EPOCH), samples=10 * EPOCH), 4096)
    assert plan.rate(position) == pytest.approx(3.2)
    assert plan.rate(plan.advance(position, samples=5 * EPOCH // 2)) == pytest.approx(2.4)
    assert plan.rate(plan.advance(position, samples=5 * EPOCH)) == pytest.approx(1.6)
    assert plan.resize(position, 4096) is position


def test_a_position_survives_a_checkpoint() -> None:
    plan = schedule()
    position = plan.resize(plan.advance(plan.begin(EPOCH)), 1024)
    assert Position.of(json.loads(json.dumps(position.state()))) == position


# -- AdaScale ---------------------------------------------------------------------------------------------------------


@given(st.floats(0, 1e6), st.floats(0, 1e6), st.integers(1, 64))
def test_the_gain_is_between_one_and_the_ratio(trace: float, norm2: float, ratio: int) -> None:
    assert 1 <= gain(trace, norm2, 32, 32 * ratio) <= ratio


def test_the_gain_is_adascales() -> None:
    noise, signal, ratio = 7.0, 2.0, 8
    expected = (noise + signal) / (noise / ratio + signal)
    assert gain(noise * 32, signal, 32, 32 * ratio) == pytest.approx(expected)
    assert gain(1, 0, 32, 256) == gain(1, -5, 32, 256) == 8  # nothing but noise: as good as eight steps
    assert gain(0, 1, 32, 256) == gain(-5, 1, 32, 256) == 1
    assert gain(0, 0, 32, 256) == 1


def test_adascale_runs_on_what_steps_are_worth() -> None:
    plan = schedule(rule="adascale", warmup_epochs=0, epochs=1, decay=Polynomial(1))
    position = plan.begin(EPOCH)
    for _ in range(50):
        position = plan.advance(position, samples=8192, gain=1.0)
    assert plan.rate(position) == pytest.approx(0.2 * (1 - 50 * 512 / EPOCH))
    assert not plan.finished(position)
    position = plan.advance(position, samples=8192, gain=16.0)
    assert plan.rate(position) == pytest.approx(0.2 * 16 * (1 - 66 * 512 / EPOCH))
    root = schedule(rule="sqrt_adascale", warmup_epochs=0, epochs=1, decay=Polynomial(1))
    assert root.rate(position) == pytest.approx(plan.rate(position) / 4)


def test_momentum_correction() -> None:
    assert momentum_correction(0.1, 0.4) == pytest.approx(4)
    assert momentum_correction(0.0, 0.4) == 1  # nothing is in the buffer yet


# -- what cannot be ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"base_lr": -0.1}, "base_lr=-0.1: it must be above 0"),
        ({"base_lr": math.nan}, "base_lr=nan"),
        ({"global_batch": 0}, "global_batch=0"),
        ({"warmup_epochs": -1}, "warmup_epochs=-1"),
        ({"warmup_epochs": 91}, "warm-up of 91 epochs is longer than the training of 90"),
        (
            {"rule": "legw", "warmup_epochs": 6},
            "96 epochs is longer than .* 90: warmup_epochs=6 times 16",
        ),
        ({"rule": "cubic"}, "rule='cubic': expected one of linear, sqrt, legw, adascale, sqrt_adascale"),
        ({"rule": "adascale"}, "begins near 1 by itself"),
        ({"warmup_from": 0.0, "warmup_batch": 512}, "give one"),
    ],
)
def test_what_cannot_be_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        schedule(**changes)


def test_steps_and_decays_that_cannot_be_are_refused() -> None:
    plan = schedule()
    for wrong in (
        lambda: plan.begin(0),
        lambda: plan.advance(plan.begin(EPOCH), samples=-1),
        lambda: plan.resize(plan.begin(EPOCH), 0),
        lambda: Polynomial(0),
        lambda: Exponential(1.5),
        lambda: Exponential(0.5, every=0),
        lambda: Piecewise({-1: 0.1}),
        lambda: Cosine(end=2),
    ):
        with pytest.raises(ValueError, match="must be"):
            wrong()
