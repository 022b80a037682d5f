"""Checks of ``NoiseScale`` and ``SamplesLR``: the numbers that ride are those of the ranks' own gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

import farandole.torch as hvd
from farandole.adapters.torch_tensors import squared_norm
from farandole.largebatch import Estimate, NoEstimate, NoiseEstimator, NormPair, Polynomial, Schedule, across_ranks
from farandole.torch.optim import LARS

BATCHES = (4, 7, 1, 12)
STEPS = 10
Make = Callable[[Any], torch.optim.Optimizer]
Spoil = Callable[[list[torch.Tensor]], object]


def sgd(params: Any) -> torch.optim.Optimizer:
    """Of a small rate, so that nothing grows."""
    return torch.optim.SGD(params, lr=0.01)


def network() -> torch.nn.Module:
    """The same on every rank; one parameter is large enough for a bucket of its own in some jobs."""
    torch.manual_seed(5)
    return torch.nn.Sequential(torch.nn.Linear(6, 9), torch.nn.Tanh(), torch.nn.Linear(9, 3)).double()


def batch_of(rank: int) -> int:
    """Unequal on the ranks."""
    return BATCHES[rank % len(BATCHES)]


def inputs(step: int, number: int, rank: int) -> torch.Tensor:
    """One rank's samples in one pass."""
    generator = torch.Generator().manual_seed(1000 * step + 10 * rank + number)
    return torch.randn(batch_of(rank), 6, dtype=torch.float64, generator=generator)


def gradient(model: torch.nn.Module, step: int, number: int, rank: int) -> torch.Tensor:
    """The mean gradient of one rank's pass, computed apart."""
    loss = model(inputs(step, number, rank)).square().mean(0).sum()
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))])


def expected(
    each: Sequence[Sequence[torch.Tensor]], weights: Sequence[float], scale: torch.Tensor | None = None
) -> NormPair:
    """What the gradients of all ranks' passes say; passes count alike."""
    size, passes = len(each), len(each[0])

    def norm2(g: torch.Tensor) -> float:
        return float((g if scale is None else g / scale).square().sum())

    means = [torch.stack(list(mine)).mean(0) for mine in each]
    whole = sum((w * mean for w, mean in zip(weights, means, strict=True)), torch.zeros_like(means[0]))
    if size == 1:
        return NormPair(norm2(each[0][0]), 1 / batch_of(0), norm2(whole), 1 / batch_of(0) / passes)
    batches = [batch_of(rank) * passes for rank in range(size)]
    return across_ranks(batches, [norm2(g) for g in means], norm2(whole), weights)


def adams_scale(optimizer: torch.optim.Optimizer) -> torch.Tensor | None:
    """sqrt(v) + eps of all parameters, if there is such a thing."""
    states = [(optimizer.state.get(p, {}), group) for group in optimizer.param_groups for p in group["params"]]
    if not all("exp_avg_sq" in state for state, _ in states):
        return None
    moments = [s["exp_avg_sq"] / (1 - g["betas"][1] ** float(s["step"])) for s, g in states]
    return torch.cat([v.sqrt().flatten() + g["eps"] for v, (_, g) in zip(moments, states, strict=True)])


def applied(optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler | None, spoil: Spoil) -> None:
    """Unscale, do what the check does to gradients, step."""
    if scaler is not None:
        scaler.unscale_(optimizer)
    spoil([p for group in optimizer.param_groups for p in group["params"]])
    if scaler is None:
        optimizer.step()
    else:
        scaler.step(optimizer)
        scaler.update()


def measures(
    make: Make = sgd,
    passes: int = 1,
    summed: bool = False,
    weighted: bool = False,
    loss_scale: float = 1.0,
    tolerance: float = 1e-9,
    spoil: Spoil = len,
    before: NoiseEstimator | None = None,
    **options: Any,
) -> tuple[hvd.NoiseScale, torch.optim.Optimizer]:
    """Train and measure every step; compare with what gradients say that are computed apart."""
    batches = [batch_of(rank) for rank in range(hvd.size())]
    weights = [b / sum(batches) if weighted else 1 / hvd.size() for b in batches]
    factor = weights[hvd.rank()] * hvd.size()
    model, passes = network(), max(passes, 2 if hvd.size() == 1 else 1)
    optimizer = hvd.DistributedOptimizer(
        make(model.parameters()), model.named_parameters(), backward_passes_per_step=passes, **options
    )
    scaler = torch.amp.GradScaler("cpu", init_scale=loss_scale, growth_interval=5) if loss_scale != 1.0 else None
    noise = hvd.NoiseScale(optimizer, every=1, horizon_samples=1e12, scaler=scaler, summed_passes=summed)
    apart, adam = NoiseEstimator(horizon_samples=1e12), NoiseEstimator(horizon_samples=1e12)
    if before is not None:
        apart.load(before.state())
        noise.load_state_dict({**noise.state_dict(), "plain": before.state()})
    for step in range(STEPS):
        each = [[gradient(model, step, n, rank) for n in range(passes)] for rank in range(hvd.size())]
        if step or hvd.size() == 1:  # what the first step of several ranks has is not yet known to all
            apart.add(expected(each, weights), passes * sum(batches))
            if (scale := adams_scale(optimizer)) is not None:
                adam.add(expected(each, weights, scale), passes * sum(batches))
        optimizer.zero_grad()
        for number in range(passes):
            noise.saw(batch_of(hvd.rank()), weight=factor)
            loss = model(inputs(step, number, hvd.rank())).square().mean(0).sum() * factor / (1 if summed else passes)
            (loss if scaler is None else scaler.scale(loss)).backward()
        applied(optimizer, scaler, spoil)
    same(noise.estimate(), apart, tolerance)
    same_by_adam(noise, adam, tolerance)
    return noise, optimizer


def same_by_adam(noise: hvd.NoiseScale, adam: NoiseEstimator, tolerance: float) -> None:
    """Adam's estimate is that one, or is said not to be there."""
    if adam.estimate():
        same(noise.adam_estimate(), adam, tolerance)
    else:
        assert "no second moment" in str(noise.adam_estimate())


def same(found: object, apart: NoiseEstimator, tolerance: float) -> None:
    """The same numbers, on all ranks."""
    truth = apart.estimate()
    assert isinstance(found, Estimate), found
    assert isinstance(truth, Estimate)
    assert found.trace == pytest.approx(truth.trace, rel=tolerance)
    assert found.norm2 == pytest.approx(truth.norm2, rel=tolerance, abs=tolerance * truth.trace)
    assert len(set(hvd.allgather_object((found.trace, found.norm2, found.low, found.high)))) == 1


def check_norms_of_unequal_batches() -> None:
    measures()


def check_a_norm_is_the_same_in_any_order() -> None:
    """Of the parameters: ranks may have another one, and would come to other learning rates."""
    generator = torch.Generator().manual_seed(3)
    tensors = [torch.randn(n % 7 + 1, generator=generator, dtype=torch.float64) * 10.0 ** (n % 5) for n in range(100)]
    assert len({squared_norm(tensors[first:] + tensors[:first]) for first in range(100)}) == 1


def check_accumulation_by_mean_and_by_sum() -> None:
    measures(passes=3)
    measures(passes=3, summed=True)


def check_a_sum_over_ranks_and_a_weighted_loss() -> None:
    measures(op=hvd.Sum)
    measures(weighted=True)
    measures(weighted=True, passes=2, summed=True, op=hvd.Sum)
    if hvd.size() > 1:
        measures(gradient_predivide_factor=2.0)


def check_norms_are_taken_before_clipping_and_compression() -> None:
    measures(spoil=lambda params: torch.nn.utils.clip_grad_norm_(params, 1e-3))
    measures(compression=hvd.Compression.fp16, tolerance=2e-2)


def check_norms_are_those_of_unscaled_losses() -> None:
    measures(loss_scale=2.0**10)  # which doubles on the way


def check_adam_is_reported_beside() -> None:
    noise, _ = measures(lambda params: torch.optim.Adam(params, lr=0.001, betas=(0.8, 0.9), eps=1e-3))
    assert noise.adam_estimate()


def check_one_rank_alone_without_accumulation_says_so() -> None:
    if hvd.size() > 1:
        return
    model = network()
    optimizer = hvd.DistributedOptimizer(sgd(model.parameters()))
    noise = hvd.NoiseScale(optimizer, every=1)
    for step in range(20):
        noise.saw(4)
        model(inputs(step, 0, 0)).square().mean().backward()
        optimizer.step()
    found = noise.estimate()
    assert isinstance(found, NoEstimate)
    assert "needs backward_passes_per_step=2" in found.reason
    assert noise.gain(4, 8) == 1.0
    assert "needs backward_passes_per_step=2" in str(noise.advise(samples=1000))


def check_what_is_missing_is_named() -> None:
    model = network()
    optimizer = hvd.DistributedOptimizer(sgd(model.parameters()))
    with pytest.raises(ValueError, match="wrap the optimizer first"):
        hvd.NoiseScale(sgd(model.parameters()))
    with pytest.raises(ValueError, match="every=0"):
        hvd.NoiseScale(optimizer, every=0)
    with pytest.raises(ValueError, match="op=Max does not give it"):
        hvd.NoiseScale(hvd.DistributedOptimizer(sgd(network().parameters()), op=hvd.Max))
    noise = hvd.NoiseScale(optimizer, every=1)
    with pytest.raises(ValueError, match="one already"):
        hvd.NoiseScale(optimizer)
    with pytest.raises(ValueError, match="both must be above 0"):
        noise.saw(0)
    for step in range(2):
        model(inputs(step, 0, hvd.rank())).square().mean().backward()
        optimizer.step()
    assert "call noise.saw(len(x)) before backward()" in str(noise.estimate())
    assert str(noise.advise(samples=1000)).startswith("no advice: ")


def check_ranks_that_do_not_measure_hold_up_nobody() -> None:
    if hvd.size() == 1:
        return
    model = network()
    optimizer = hvd.DistributedOptimizer(sgd(model.parameters()))
    noise = hvd.NoiseScale(optimizer, every=1) if hvd.rank() == 0 else None
    for step in range(4):
        if noise is not None:
            noise.saw(4)
        model(inputs(step, 0, hvd.rank())).square().mean().backward()
        optimizer.step()
    assert noise is None or "not all ranks measure" in str(noise.estimate())


def check_an_overflow_is_no_measurement() -> None:
    noise, optimizer = measures()
    before = noise.estimate()
    params = [p for group in optimizer.param_groups for p in group["params"]]
    passes = 2 if hvd.size() == 1 else 1
    for _ in range(passes):
        noise.saw(4)
        (sum(p.sum() for p in params) * (float("inf") if hvd.rank() == 0 else 1.0)).backward()
    optimizer.step()
    after = noise.estimate()
    assert isinstance(before, Estimate)
    assert isinstance(after, Estimate)
    assert after.trace == pytest.approx(before.trace)


def check_a_pause_leaves_no_trace() -> None:
    noise, optimizer = measures()
    before, passes = noise.state_dict(), 2 if hvd.size() == 1 else 1
    params = [p for group in optimizer.param_groups for p in group["params"]]

    def train() -> None:
        for _ in range(3):
            optimizer.zero_grad()
            for _ in range(passes):
                noise.saw(4)
                sum(p.square().sum() for p in params).backward()
            optimizer.step()

    with noise.paused():
        train()
    assert noise.state_dict() == before
    train()
    assert noise.state_dict()["plain"]["samples"] == before["plain"]["samples"] + 3 * 4 * passes * hvd.size()


def check_the_state_is_carried_over() -> None:
    noise, _ = measures()
    state = noise.state_dict()
    states = hvd.allgather_object(state)
    assert all(other == states[0] for other in states)
    other = hvd.NoiseScale(hvd.DistributedOptimizer(sgd(network().parameters())))
    other.load_state_dict(state)
    assert other.estimate() == noise.estimate()
    assert other.timings() == noise.timings()
    assert other.every == 1
    timed = noise.timings()[-1]
    assert timed.workers == hvd.size()
    passes = 2 if hvd.size() == 1 else 1
    assert timed.passes == passes
    assert timed.batch == pytest.approx(sum(batch_of(r) for r in range(hvd.size())) / hvd.size())


def check_what_other_workers_have_measured_counts_on() -> None:
    """As after a resize: eight ranks measured, and these go on."""
    before = NoiseEstimator(horizon_samples=1e12)
    for i in range(20):
        before.add(across_ranks([5] * 8, [9.0 + i % 3] * 8, 2.0 + i % 2), 40)
    noise, _ = measures(before=before)
    found = noise.estimate()
    assert isinstance(found, Estimate)
    assert found.samples > 20 * 40


def check_how_often_it_measures_is_the_same_on_all_ranks() -> None:
    model = network()
    optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), backward_passes_per_step=2)
    noise = hvd.NoiseScale(optimizer)
    assert noise.every == 16
    for step in range(36):
        for number in range(2):
            noise.saw(batch_of(hvd.rank()))
            model(inputs(step, number, hvd.rank())).square().mean().backward()
        optimizer.step()
    assert len(set(hvd.allgather_object(noise.every))) == 1
    assert noise.every & (noise.every - 1) == 0
    assert noise.timings()


# -- schedules --------------------------------------------------------------------------------------------------------


def plan(**changes: Any) -> Schedule:
    """Twice the base batch."""
    usual: dict[str, Any] = {"base_lr": 0.2, "base_batch": 8, "global_batch": 16, "epochs": 4, "warmup_epochs": 1}
    return Schedule(**{**usual, **changes})


def trained(optimizer: torch.optim.Optimizer, model: torch.nn.Module, schedule: hvd.SamplesLR, steps: int) -> None:
    """As a script does."""
    for step in range(steps):
        optimizer.zero_grad()
        model(inputs(step, 0, hvd.rank())).square().mean().backward()
        optimizer.step()
        schedule.step()


def check_a_schedule_by_samples() -> None:
    model = network()
    groups = [{"params": [p]} for p in model.parameters()]
    groups[0]["lr"] = 0.4  # type: ignore[assignment] # keeps its ratio
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(groups, lr=0.2))
    schedule = hvd.SamplesLR(optimizer, plan(decay=Polynomial(1)), epoch_samples=160)
    assert schedule.get_last_lr()[:2] == [0.4, 0.2]
    trained(optimizer, model, schedule, 10)
    assert schedule.rate == pytest.approx(0.4 * 0.75)
    assert optimizer.param_groups[1]["lr"] == pytest.approx(0.4 * 0.75)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(2 * 0.4 * 0.75)
    schedule.resize(32)
    assert schedule.rate == pytest.approx(0.4 * 0.75)
    state = schedule.state_dict()
    trained(optimizer, model, schedule, 1)
    assert schedule.batch == 32
    assert len(set(hvd.allgather_object(schedule.rate))) == 1
    fresh = torch.optim.SGD(network().parameters(), lr=0.2)
    other = hvd.SamplesLR(fresh, plan(decay=Polynomial(1), global_batch=8), epoch_samples=160)
    other.load_state_dict(state)  # on fewer workers: goes on there, and turns
    assert fresh.param_groups[0]["lr"] == pytest.approx(0.4 * 0.75)
    assert other.batch == 8


def check_momentum_is_corrected_where_it_holds_the_rate() -> None:
    for make, holds in ((LARS, True), (torch.optim.SGD, False)):
        model = network()
        optimizer = hvd.DistributedOptimizer(make(model.parameters(), lr=0.2, momentum=0.9))
        schedule = hvd.SamplesLR(optimizer, plan(), epoch_samples=160)
        trained(optimizer, model, schedule, 1)
        before = [s["momentum_buffer"].clone() for s in optimizer.state.values()]
        rate = schedule.rate
        schedule.step()
        factor = schedule.rate / rate if holds else 1.0
        assert schedule.rate > rate
        for buffer, state in zip(before, optimizer.state.values(), strict=True):
            torch.testing.assert_close(state["momentum_buffer"], buffer * factor)


def check_adascale_measures() -> None:
    with pytest.raises(ValueError, match=r"pass noise=NoiseScale\(optimizer\)"):
        hvd.SamplesLR(sgd(network().parameters()), plan(base_lr=0.01, rule="adascale", warmup_epochs=0), 160)
    noise, optimizer = measures()
    schedule = hvd.SamplesLR(optimizer, plan(base_lr=0.01, rule="adascale", warmup_epochs=0), 160, noise)
    optimizer.step()
    schedule.step()
    assert 1 < schedule.rate / 0.01 <= 2
    assert schedule.rate == pytest.approx(0.01 * noise.gain(8, 16))
    assert schedule.position.progress == pytest.approx(8 * noise.gain(8, 16))


def check_an_optimizer_with_another_rate_is_refused() -> None:
    with pytest.raises(ValueError, match=r"base_lr=0.2: make the optimizer with lr=0.2, not 0.01"):
        hvd.SamplesLR(sgd(network().parameters()), plan(), epoch_samples=160)
