"""Checks of the optimizers for large batches on many ranks: by their equations, with lag, and in half precision."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import pytest
import torch

import farandole.torch as hvd
from farandole.collective import ReduceOp
from farandole.torch import optim
from farandole.torch.amp import GradScaler
from tests.support.rank_gradients import parameters
from tests.support.torch.equations import STEPS, Layer, advance, make, rate_at

ROWS = 4


def network(dtype: torch.dtype = torch.float64) -> torch.nn.Sequential:
    """The same on every rank and in every check; with biases and a normalization."""
    torch.manual_seed(5)
    layers = [torch.nn.Linear(6, 8), torch.nn.LayerNorm(8), torch.nn.Tanh(), torch.nn.Linear(8, 3)]
    return torch.nn.Sequential(*layers).to(dtype)


def loss_of(model: torch.nn.Module, step: int, rank: int | None = None) -> torch.Tensor:
    """On one rank's batch, or on all ranks' batches together."""
    generator = torch.Generator().manual_seed(step)
    dtype = next(model.parameters()).dtype
    x = torch.randn(hvd.size(), ROWS, 6, dtype=torch.float64, generator=generator).to(dtype)
    y = torch.randn(hvd.size(), ROWS, 3, dtype=torch.float64, generator=generator).to(dtype)
    mine = slice(None) if rank is None else slice(rank, rank + 1)
    return torch.nn.functional.mse_loss(model(x[mine].flatten(0, 1)), y[mine].flatten(0, 1))


def gradients(model: torch.nn.Module, layers: Sequence[Layer], step: int) -> list[torch.Tensor]:
    """Those of all ranks' batches at the weights of ``layers``."""
    with torch.no_grad():
        for param, layer in zip(model.parameters(), layers, strict=True):
            param.copy_(torch.from_numpy(layer.w))
    return list(torch.autograd.grad(loss_of(model, step), list(model.parameters())))


def layers_of(model: torch.nn.Module) -> list[Layer]:
    """The weights of a model, for the equations."""
    return [Layer(p.detach().numpy()) for p in model.parameters()]


def same(model: torch.nn.Module, layers: Sequence[Layer]) -> None:
    """Weights are as the equations have them."""
    for param, layer in zip(model.parameters(), layers, strict=True):
        torch.testing.assert_close(param.detach(), torch.from_numpy(layer.w), rtol=1e-6, atol=1e-6)


def distributed(optimizer: torch.optim.Optimizer, **options: Any) -> Any:
    """``DistributedOptimizer``, whose type is that of the optimizer."""
    return hvd.DistributedOptimizer(optimizer, **options)


def check_optimizers_by_their_equations() -> None:
    for name in ("lars", "larc clip", "larc scale", "lamb", "rmsprop warm-up"):
        model, alone = network(), network()
        layers, optimizer = layers_of(alone), distributed(make(name, model.parameters()))
        for step in range(STEPS):
            for group in optimizer.param_groups:
                group["lr"] = rate_at(step)
            optimizer.zero_grad()
            loss_of(model, step, hvd.rank()).backward()
            optimizer.step()
            advance(name, layers, gradients(alone, layers, step), step)
        same(model, layers)


def check_gradient_lag_is_delayed_sgd() -> None:
    for lag in (0, 1, 2):
        for options in ({}, {"groups": 2}, {"op": hvd.Sum}, {"backward_passes_per_step": 2}):
            model, alone = network(), network()
            sgd = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=0.01)
            optimizer = optim.GradientLag(distributed(sgd, **options), lag)
            assert optimizer.gradient_lag == lag
            factor = hvd.size() if options.get("op") == hvd.Sum else 1
            passes = options.get("backward_passes_per_step", 1)
            weights = [p.detach().clone() for p in alone.parameters()]
            velocities = [torch.zeros_like(w) for w in weights]
            line = deque([[torch.zeros_like(w) for w in weights] for _ in range(lag)])
            for step in range(8):
                optimizer.zero_grad(set_to_none=step % 2 == 0)
                for _ in range(passes):
                    loss_of(model, step, hvd.rank()).backward()
                optimizer.step()
                now = gradients(alone, [Layer(w.numpy()) for w in weights], step)
                line.append([g * factor * passes for g in now])
                for w, v, g in zip(weights, velocities, line.popleft(), strict=True):
                    v.mul_(0.9).add_(g + 0.01 * w)
                    w.sub_(0.05 * v)
            for param, weight in zip(model.parameters(), weights, strict=True):
                torch.testing.assert_close(param.detach(), weight, rtol=1e-9, atol=1e-12)


def check_that_layer_rates_and_clipping_see_the_lagged_gradient() -> None:
    model, alone = network(), network()
    layers = layers_of(alone)
    optimizer = optim.GradientLag(distributed(make("larc clip", model.parameters())), 1)
    last = [torch.zeros_like(p) for p in alone.parameters()]
    for step in range(6):
        for group in optimizer.param_groups:
            group["lr"] = rate_at(step)
        optimizer.zero_grad()
        loss_of(model, step, hvd.rank()).backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        expected = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(g) for g in last]))
        torch.testing.assert_close(norm, expected)
        clipped = [g * min(1.0, 0.1 / (float(expected) + 1e-6)) for g in last]
        last = gradients(alone, layers, step)
        advance("larc clip", layers, clipped, step)
    same(model, layers)


def check_lag_with_a_rank_that_has_no_batch_and_unused_parameters() -> None:
    params = [torch.nn.Parameter(torch.ones(3, dtype=torch.float64)) for _ in range(3)]
    optimizer = optim.GradientLag(distributed(torch.optim.SGD(params, lr=1.0)), 1)
    for step in range(4):
        optimizer.zero_grad()
        if hvd.rank() == 0 or step == 3:
            (params[0].sum() + (step == 2) * params[1].sum()).backward()
        optimizer.step()
    assert torch.allclose(params[0].detach(), torch.full((3,), 1.0 - 3.0 / hvd.size(), dtype=torch.float64))
    assert torch.allclose(params[1].detach(), torch.full((3,), 1.0 - 1.0 / hvd.size(), dtype=torch.float64))
    assert torch.equal(params[2].detach(), torch.ones(3, dtype=torch.float64))
    params[0].sum().backward()
    with pytest.raises(ValueError, match="zero_grad"):
        params[0].sum().backward()


def check_that_a_lag_begins_anew_after_a_load() -> None:
    param = torch.nn.Parameter(torch.zeros(2, 2))
    optimizer = optim.GradientLag(distributed(torch.optim.SGD([param], lr=1.0)), 2)
    for step in range(5):
        if step == 3:
            optimizer.load_state_dict(optimizer.state_dict())
        optimizer.zero_grad()
        param.sum().backward()
        optimizer.step()
    assert torch.equal(param.detach(), -torch.ones(2, 2))
    optimizer.zero_grad()
    param.sum().backward()  # on its way when the optimizer goes


def check_lag_with_sparse_gradients() -> None:
    table = torch.nn.Embedding(4, 2, sparse=True)
    torch.nn.init.zeros_(table.weight)
    optimizer = optim.GradientLag(distributed(torch.optim.SGD(table.parameters(), lr=1.0)), 1)
    for _ in range(3):
        optimizer.zero_grad()
        table(torch.tensor([hvd.rank() % 4])).sum().backward()
        optimizer.step()
    expected = torch.zeros(4, 2)
    for rank in range(hvd.size()):
        expected[rank % 4] -= 2 / hvd.size()
    torch.testing.assert_close(table.weight.detach(), expected)
    join_with_lag()


def join_with_lag() -> None:
    """Rank 0 leaves the epoch first; afterwards all begin with zeros again."""
    param = torch.nn.Parameter(torch.zeros(2, dtype=torch.float64))
    optimizer = optim.GradientLag(distributed(torch.optim.SGD([param], lr=1.0)), 1)
    for _ in range(2 if hvd.rank() == 0 else 4):
        optimizer.zero_grad()
        param.sum().backward()
        optimizer.step()
    hvd.join()
    hvd.broadcast_parameters([param], root_rank=hvd.size() - 1)
    lost = 1 / hvd.size() if hvd.size() > 1 else 0.0  # the third step was without rank 0
    taken = 1.0 if hvd.size() == 1 else 3.0 - lost
    torch.testing.assert_close(param.detach(), torch.full((2,), -taken, dtype=torch.float64))
    for _ in range(2):
        optimizer.zero_grad()
        param.sum().backward()
        optimizer.step()
    torch.testing.assert_close(param.detach(), torch.full((2,), -taken - 1.0, dtype=torch.float64))


def check_an_overflow_on_one_rank_skips_the_step_on_all() -> None:
    plain, ours = torch.amp.GradScaler, GradScaler
    cases: list[tuple[Any, dict[str, Any]]] = [
        (plain, {}),
        (plain, {"op": hvd.Sum}),
        (plain, {"compression": hvd.Compression.fp16}),
        (plain, {"compression": hvd.Compression.bf16, "op": hvd.Sum}),
        (ours, {}),
        (ours, {"op": hvd.Sum, "compression": hvd.Compression.fp16}),
        (ours, {"op": hvd.Min}),
        (ours, {"op": hvd.Adasum}),
    ]
    torch.manual_seed(1)
    for make_scaler, options in cases:
        for bad in (float("inf"), float("nan")):
            table, head = torch.nn.Embedding(5, 3, sparse=options.get("op", 0) in (0, hvd.Sum)), torch.nn.Linear(3, 2)
            unused = torch.nn.Parameter(torch.ones(2))
            params = [*table.parameters(), *head.parameters(), unused]
            optimizer = distributed(torch.optim.SGD(params, lr=0.1), **options)
            hvd.broadcast_parameters(params, root_rank=0)
            scaler = make_scaler("cpu", init_scale=2.0**10, growth_interval=2)
            for step in range(4):
                before = [p.detach().clone() for p in params]
                optimizer.zero_grad()
                loss = head(table(torch.tensor([hvd.rank() % 5]))).square().mean()
                overflows = step == 1 and hvd.rank() == hvd.size() - 1
                scaler.scale(loss * (bad if overflows else 1.0)).backward()
                scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(head.parameters(), 1.0)
                scaler.step(optimizer)
                scaler.update()
                changed = [not torch.equal(p, b) for p, b in zip(params, before, strict=True)]
                assert changed == ([False] * 4 if step == 1 else [True, True, True, False]), (options, step, changed)
                assert scaler.get_scale() == (2.0**10, 2.0**9, 2.0**9, 2.0**10)[step]
            for mine, theirs in zip(params, hvd.allgather_object([p.detach() for p in params])[0], strict=True):
                assert torch.equal(mine, theirs)


def check_loss_scales_with_lag_and_without_a_batch() -> None:
    param = torch.nn.Parameter(torch.zeros(2, 2))
    optimizer = optim.GradientLag(
        distributed(optim.LARS([{"params": [param], "exempt": True}], lr=1.0, momentum=0.0)), 1
    )
    scaler = GradScaler("cpu", init_scale=4.0, growth_interval=1)
    for _ in range(4):  # every step was scaled by another power of two
        optimizer.zero_grad()
        if hvd.rank() == 0:
            scaler.scale(param.sum() * hvd.size()).backward()
        scaler.step(optimizer)
        scaler.update()
    assert scaler.get_scale() == 64.0
    torch.testing.assert_close(param.detach(), torch.full((2, 2), -3.0))
    scaler.load_state_dict({**scaler.state_dict(), "scale": 2.0 + hvd.rank()})
    if hvd.size() > 1:
        with pytest.raises(hvd.HorovodInternalError, match="loss scales differ"):
            scaler.unscale_(optimizer)


def check_half_precision_weights_have_masters() -> None:
    for dtype in (torch.float16, torch.bfloat16):
        model = network(dtype)
        optimizer = distributed(optim.LARS(model.parameters(), lr=0.5, trust_coefficient=0.02))
        scaler = GradScaler("cpu", init_scale=2.0**8)
        for step in range(5):
            optimizer.zero_grad()
            scaler.scale(loss_of(model, step, hvd.rank())).backward()
            scaler.step(optimizer)
            scaler.update()
            hvd.broadcast_parameters(model.state_dict(), root_rank=0)  # the same values: masters stay
            hvd.broadcast_optimizer_state(optimizer, root_rank=0)
        masters = [optimizer.state[p]["master"] for p in model.parameters()]
        assert all(m.dtype == torch.float32 for m in masters)
        assert any(not torch.equal(m, m.to(dtype).float()) for m in masters)
        assert all(torch.equal(m.to(dtype), p) for m, p in zip(masters, model.parameters(), strict=True))
        for mine, theirs in zip(masters, hvd.broadcast_object(masters, root_rank=0), strict=True):
            assert torch.equal(mine, theirs)


def check_autocast_and_half_precision_on_the_wire() -> None:
    """The same weights on all ranks, near those of a training in float32."""
    trained = []
    for half in (False, True):
        model = network(torch.float32)
        options = {"compression": hvd.Compression.fp16} if half else {}
        optimizer = distributed(optim.LARS(model.parameters(), lr=0.5, trust_coefficient=0.02), **options)
        scaler = GradScaler("cpu", init_scale=2.0**8, enabled=half)
        for step in range(5):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16, enabled=half):
                loss = loss_of(model, step, hvd.rank())
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        trained.append([p.detach().clone() for p in model.parameters()])
    for full, mixed, first in zip(*trained, hvd.broadcast_object(trained[1], root_rank=0), strict=True):
        assert mixed.dtype == torch.float32
        assert torch.equal(mixed, first)
        assert not torch.equal(mixed, full)
        torch.testing.assert_close(mixed, full, rtol=0.02, atol=0.02)


def check_error_bounds_of_compression() -> None:
    for compression, unit, smallest in (
        (hvd.Compression.fp16, 2.0**-11, 2.0**-25),
        (hvd.Compression.bf16, 2.0**-8, 2.0**-134),
    ):
        generator = torch.Generator().manual_seed(1)
        every = torch.randn(hvd.size(), 500, generator=generator, dtype=torch.float64)
        every *= 10.0 ** torch.randint(-6, 3, (500,), generator=generator)
        param = torch.nn.Parameter(torch.zeros(500))
        optimizer = distributed(torch.optim.SGD([param], lr=1.0), compression=compression)
        optimizer.zero_grad()
        (param * every[hvd.rank()].float()).sum().backward()
        assert param.grad is not None
        error = (param.grad.double() - every.mean(0)).abs()
        roundings = hvd.size() + 1  # one for each rank's share, and one for each addition at the most
        assert bool((error <= roundings * (unit * every.abs().mean(0) + smallest)).all())


def check_that_the_gradient_of_a_frozen_parameter_lags_like_the_others() -> None:
    def gradients(op: ReduceOp, lag: int) -> list[list[list[float]]]:
        trained, frozen = parameters((2,), (3,))
        optimizer: Any = distributed(torch.optim.SGD([trained, frozen], lr=1.0), op=op)
        optimizer = optim.GradientLag(optimizer, lag) if lag else optimizer
        found = []
        for step in range(8):
            frozen.requires_grad_(step not in (2, 3, 4))
            for param in (trained, frozen):
                if param.requires_grad:
                    param.grad = None
            ((trained.sum() + (frozen.sum() if frozen.requires_grad else 0)) * (hvd.rank() + step + 1.0)).backward()
            found.append([[] if p.grad is None else p.grad.tolist() for p in (trained, frozen)])
            optimizer.step()
        return found

    for op in (hvd.Average, hvd.Sum):
        plain = gradients(op, 0)
        for lag in (1, 2):
            assert gradients(op, lag)[lag:] == plain[:-lag]
