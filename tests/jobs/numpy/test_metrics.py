"""Metrics that come by themselves: the noise scale of a loop of one's own, and the samples of an elastic sampler."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import farandole.numpy as hvd
from farandole import events
from farandole.elastic.worker.sampler import SampleCursor
from farandole.largebatch.noise import Estimate
from farandole.numpy.elastic import NumpyState
from farandole.runtime.session import training as module
from farandole.testing.rank import RankContext
from tests.support.patience import PATIENCE_S
from workbench.jobs import run_job

STEPS = 12


def _noise(member: RankContext) -> tuple[list[dict[str, float]], tuple[float, float, float]]:
    """The noise scales that a rank has told of, and the last estimate."""
    hvd.init()
    chance = np.random.default_rng(member.rank)
    heard: list[events.Event] = []
    cancel = events.listen(heard.append)
    average = hvd.DistributedGradients({"w": np.zeros(64)})
    noise = hvd.NoiseScale(average, every=1)
    for _ in range(STEPS):
        noise.saw(8)
        average({"w": 1.0 + chance.normal(size=64)})
    found = noise.estimate()
    assert isinstance(found, Estimate)
    cancel()
    hvd.shutdown()
    told = [each.values for each in heard if isinstance(each, events.Metric) and "noise_scale" in each.values]
    return told, (found.b_simple, found.low, found.high)


def test_rank_0_tells_of_the_noise_scale_with_its_interval() -> None:
    (told, found), (by_rank_1, same) = run_job(_noise, 2, timeout_s=PATIENCE_S)
    assert found == same
    assert by_rank_1 == []
    last = dict(zip(("noise_scale", "noise_scale_low", "noise_scale_high"), found, strict=True))
    assert told[-1] == {name: value for name, value in last.items() if math.isfinite(value)}
    assert 1 < len(told) < STEPS  # the first steps are too few for an estimate


def test_committed_steps_count_the_samples_of_this_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    training = module.Training()
    monkeypatch.setattr("farandole.elastic.worker.sampler.training", training)
    cursor = SampleCursor(10, seed=3, rank=1, size=2)
    for batch in list(cursor.batches(0, 4))[:2]:
        cursor.hand_out(batch)
        assert training.samples == batch.start / 2
        cursor.advance(4)
    assert training.samples == 4


def test_the_rate_of_samples_is_even_however_many_steps_a_script_counts_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    heard: list[events.Event] = []
    cancel, clock = events.listen(heard.append), [100.0]
    monkeypatch.setattr(f"{module.__name__}.time", SimpleNamespace(monotonic=lambda: clock[0]))
    training = module.Training()
    for step in range(1, 400):
        clock[0] += 0.015
        if step == 200:
            clock[0] += 60.0
            training.rested()  # a pause
        training.stepped(0)
        if step % 6 == 0:
            training.log(None, 32 * step, {}, 0)
    cancel()
    rates = [each.values.get("samples_per_s") for each in heard if isinstance(each, events.Metric)]
    found = [rate for rate in rates if rate is not None]
    assert len(found) > len(rates) * 0.8
    np.testing.assert_allclose(found, 32 / 0.015)


def _joins(member: RankContext) -> int:
    """The number of steps of a rank after a sync with one that has trained."""
    hvd.init()
    state: Any = NumpyState(weights=np.zeros(1))
    average = hvd.DistributedGradients([np.zeros(1)])
    for _ in range(3):
        average([np.ones(1)])
    module.training.step += 10 * (member.rank == 0)
    state.sync()
    average([np.ones(1)])
    hvd.shutdown()
    return module.training.step


def test_ranks_count_steps_from_the_one_whose_state_they_get() -> None:
    assert run_job(_joins, 2, timeout_s=PATIENCE_S) == [14, 14]


def test_what_is_logged_without_a_session_is_told_to_nobody() -> None:
    heard: list[events.Event] = []
    cancel = events.listen(heard.append)
    hvd.log(loss=1.0, samples=32)
    cancel()
    assert not hvd.is_initialized()
    assert heard == []
