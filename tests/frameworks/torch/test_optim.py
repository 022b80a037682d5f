"""The optimizers for large batches in one process: published numbers, invariances, groups, half precision, refusals."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from farandole.largebatch.trust import clipped_rate, lamb_rate, lars_rate
from farandole.torch.optim import LAMB, LARC, LARS, GradientLag, RMSpropWarmupSGD
from farandole.torch.optim.rmsprop_warmup import rmsprop_share, sgd_share
from tests.support.launching import Launch
from tests.support.torch.equations import COMMON, STEPS, Layer, advance, make, rate_at

ALEXNET = (
    ("conv1.b", "1.86", "0.22", "8.48"),
    ("conv1.w", "0.098", "0.017", "5.76"),
    ("conv2.b", "5.546", "0.165", "33.6"),
    ("conv2.w", "0.16", "0.002", "83.5"),
    ("conv3.b", "9.40", "0.135", "69.9"),
    ("conv3.w", "0.196", "0.0015", "127"),
    ("conv4.b", "8.15", "0.109", "74.6"),
    ("conv4.w", "0.196", "0.0013", "148"),
    ("conv5.b", "6.65", "0.09", "73.6"),
    ("conv5.w", "0.16", "0.0002", "69"),
    ("fc6.b", "30.7", "0.26", "117"),
    ("fc6.w", "6.4", "0.005", "1345"),
    ("fc7.b", "20.5", "0.30", "68"),
    ("fc7.w", "6.4", "0.013", "489"),
    ("fc8.b", "20.2", "0.22", "93"),
    ("fc8.w", "0.316", "0.016", "19"),
)
"""Layer, ‖w‖, ‖g‖ and their ratio in AlexNet-BN at the first iteration: arXiv 1708.03888, table 2."""


@pytest.fixture(scope="module", autouse=True)
def compiler() -> None:
    """PyTorch sets an environment variable when it makes its first optimizer; no test shall be blamed for it."""
    torch.optim.SGD([torch.zeros(1)], lr=0.1)


def half_a_digit(text: str) -> float:
    """How far a number that was printed so may have been from it."""
    return 0.5 * 10.0 ** -len(text.partition(".")[2])


@pytest.mark.parametrize(("layer", "w", "g", "ratio"), ALEXNET)
def test_ratios_of_alexnet(layer: str, w: str, g: str, ratio: str) -> None:
    """The ratios were printed from norms with more digits: what these digits leave open is the tolerance."""
    highest = lars_rate(float(w) + half_a_digit(w), float(g) - half_a_digit(g), coefficient=1.0)
    lowest = lars_rate(float(w) - half_a_digit(w), float(g) + half_a_digit(g), coefficient=1.0)
    slack = half_a_digit(ratio) + 0.01 * float(ratio)
    agrees = lowest - slack <= float(ratio) <= highest + slack
    assert agrees == (layer != "conv5.w")  # its norms give 640 to 1070, and 69 is printed: the row contradicts itself


def parameters(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float64, seed: int = 0) -> list[torch.nn.Parameter]:
    """Random ones."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.nn.Parameter(torch.randn(shape, generator=generator).to(dtype)) for shape in shapes]


SHAPES = ((4, 5), (5,), (3, 4, 2, 2), (2, 2))


WIDE, HALF = (torch.float64, torch.float32), (torch.float16, torch.bfloat16)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [(name, dtype) for name in COMMON for dtype in (WIDE if name.startswith("larc") else WIDE + HALF)],
)
def test_optimizers_by_their_equations(name: str, dtype: torch.dtype) -> None:
    """LARC leaves half precision to the optimizer that it wraps."""
    params = parameters(*SHAPES, dtype=dtype)
    with torch.no_grad():
        params[-1].zero_()  # a layer that begins at zero
    params[2].data = params[2].data.to(memory_format=torch.channels_last)  # and one that lies otherwise
    layers, optimizer = [Layer(p.detach().double().numpy()) for p in params], make(name, params)
    generator = torch.Generator().manual_seed(1)
    for step in range(STEPS):
        for group in optimizer.param_groups:
            group["lr"] = rate_at(step)
        for param in params:
            param.grad = torch.randn(param.shape, generator=generator).to(dtype)
        advance(name, layers, [p.grad for p in params if p.grad is not None], step)
        optimizer.step()
    for param, layer in zip(params, layers, strict=True):
        weight = optimizer.state[param].get("master", param).detach()
        assert torch.equal(weight.to(dtype), param)
        error = (weight.double() - torch.from_numpy(layer.w)).abs().max()
        assert float(error) <= 1e-6 * max(1.0, float(abs(layer.w).max()))


Scale = st.floats(1e-3, 1e3)


@given(w=Scale, g=Scale, by=Scale, lr=Scale)
def test_rates_and_scales(w: float, g: float, by: float, lr: float) -> None:
    assert lars_rate(by * w, by * g, 0.1, 0.01) == pytest.approx(lars_rate(w, g, 0.1, 0.01))
    assert lars_rate(w, by * g, 0.1) * by * g == pytest.approx(lars_rate(w, g, 0.1) * g)
    assert lars_rate(w, g, 0.1, 0.01) <= lars_rate(w, g, 0.1)
    assert lr * clipped_rate(lars_rate(w, g, 0.1), lr) <= lr * (1 + 1e-12)
    assert lamb_rate(by * w, g) == pytest.approx(by * lamb_rate(w, g))
    assert lars_rate(0.0, g, 0.1) == lars_rate(w, 0.0, 0.1) == lamb_rate(0.0, g) == lamb_rate(w, 0.0) == 1.0
    assert clipped_rate(w, 0.0) == 1.0
    assert rmsprop_share(0.5, 1e-3, 0.0) == 0.0


@given(by=Scale, decay=st.sampled_from([0.0, 0.01]))
def test_a_step_does_not_depend_on_the_scale_of_gradients_nor_on_that_of_a_layer(by: float, decay: float) -> None:
    """LARS and LARC (scale): g → c·g changes nothing without decay; w, g → c·w, c·g scales the step by c."""
    makers: list[Callable[[Any], torch.optim.Optimizer]] = [
        lambda p: LARS(p, lr=0.1, weight_decay=decay),
        lambda p: LARC(torch.optim.SGD(p, lr=0.1, weight_decay=decay), mode="scale"),
    ]
    for maker in makers:
        scaled_too = 1.0 if decay == 0.0 else by
        [plain], [scaled] = parameters((3, 4)), parameters((3, 4))
        with torch.no_grad():
            scaled.mul_(scaled_too)
        for param, factor in ((plain, 1.0), (scaled, by)):
            param.grad = factor * torch.cos(torch.arange(12.0, dtype=torch.float64)).reshape(3, 4)
            maker([param]).step()
        torch.testing.assert_close(scaled.detach(), scaled_too * plain.detach())


@given(by=st.floats(1e-2, 1e2))
def test_lamb_takes_steps_of_the_length_of_the_weights(by: float) -> None:
    [param] = parameters((3, 4))
    before = param.detach().clone()
    param.grad = by * torch.ones_like(param)
    LAMB([param], lr=0.01, eps=0.0).step()
    length = torch.linalg.vector_norm(param.detach() - before) / torch.linalg.vector_norm(before)
    assert float(length) == pytest.approx(0.01)


def test_warm_up_does_not_jump() -> None:
    shares = [sgd_share(epoch / 100) for epoch in range(2000)]
    assert max(b - a for a, b in itertools.pairwise(shares)) < 0.0021
    assert shares == sorted(shares)
    assert (sgd_share(10.0), sgd_share(12.5), sgd_share(90.0)) == (0.5, 1.0, 1.0)
    assert sgd_share(0.0) == pytest.approx(0.5 * math.exp(-4.0))


def test_epochs_are_counted_and_saved() -> None:
    [param] = parameters((2, 2))
    optimizer = RMSpropWarmupSGD([param], lr=0.1, steps_per_epoch=4)
    for steps_per_epoch in (4, 2):  # twice as many workers
        optimizer.param_groups[0]["steps_per_epoch"] = steps_per_epoch
        param.grad = torch.ones_like(param)
        optimizer.step()
    other = RMSpropWarmupSGD(parameters((2, 2)), lr=0.1, steps_per_epoch=4)
    other.load_state_dict(optimizer.state_dict())
    assert other.param_groups[0]["epoch"] == 0.75


def test_vectors_are_exempt_unless_a_group_says_otherwise() -> None:
    matrix, bias = parameters((2, 2), (2,))
    for made in (
        LARS([matrix, bias], lr=0.1, weight_decay=0.1),
        LARC(torch.optim.SGD([matrix, bias], 0.1, 0.9, 0, 0.1)),
    ):
        found = [(g["params"], g["exempt"], g["weight_decay"]) for g in made.param_groups]
        assert [(len(p), exempt, decay) for p, exempt, decay in found] == [(1, False, 0.1), (1, True, 0.0)]
        assert found[1][0][0] is bias
        [extra] = parameters((3,))
        made.add_param_group({"params": extra, "exempt": False, "weight_decay": 0.2})
        assert (made.param_groups[2]["exempt"], made.param_groups[2]["weight_decay"]) == (False, 0.2)
    named = LAMB([("m", matrix), ("b", bias)], lr=0.1)
    assert [g["param_names"] for g in named.param_groups] == [["m"], ["b"]]
    kept = LARS([{"params": [matrix, bias], "exempt": False}], lr=0.1, weight_decay=0.1)
    bias.grad = torch.ones_like(bias)
    rate = lars_rate(float(bias.detach().norm()), float(bias.grad.norm()), 0.001, 0.1)
    before = bias.detach().clone()
    kept.step()
    torch.testing.assert_close(bias.detach(), before - 0.1 * rate * (bias.grad + 0.1 * before))


def test_larc_leaves_gradients_and_settings_as_they_were() -> None:
    params = parameters((2, 2), (2,))
    optimizer = LARC(torch.optim.AdamW(params, lr=0.1, weight_decay=0.1))
    grads = [torch.ones_like(p) for p in params]
    for param, grad in zip(params, grads, strict=True):
        param.grad = grad
    calls: list[str] = []
    optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
    assert optimizer.step(lambda: 3.0) == 3.0
    assert calls == ["before"]
    assert all(p.grad is g and bool((g == 1).all()) for p, g in zip(params, grads, strict=True))
    assert optimizer.param_groups[0]["weight_decay"] == 0.1
    assert isinstance(optimizer, torch.optim.AdamW)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_a_state_that_is_loaded_goes_on_as_the_one_that_was_saved(dtype: torch.dtype) -> None:
    for name in COMMON if dtype is torch.float32 else ("lars", "lamb", "rmsprop warm-up"):
        params = parameters(*SHAPES, dtype=dtype)
        optimizer = make(name, params)

        def steps(params: list[torch.nn.Parameter], optimizer: torch.optim.Optimizer, first: int) -> None:
            for step in range(first, first + 3):
                for i, param in enumerate(params):
                    param.grad = torch.full_like(param, (-1.0) ** (step + i) / (step + 1))
                optimizer.step()

        steps(params, optimizer, 0)
        others = copy.deepcopy(params)
        other = make(name, others)
        other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        for p, o in ((params, optimizer), (others, other)):
            steps(p, o, 3)
        for a, b in zip(params, others, strict=True):
            assert torch.equal(a, b)
            for key, value in optimizer.state[a].items():
                assert torch.equal(torch.as_tensor(other.state[b][key]), torch.as_tensor(value)), key


def test_who_writes_half_precision_weights_means_them() -> None:
    [param] = parameters((2, 2), dtype=torch.float16)
    optimizer = LARS([param], lr=0.0)
    for _ in range(2):
        param.grad = torch.ones_like(param)
        optimizer.step()
        with torch.no_grad():
            param.fill_(2.0)
    optimizer.step()
    assert torch.equal(param.detach(), torch.full((2, 2), 2.0, dtype=torch.float16))


def test_what_cannot_be_is_refused() -> None:
    matrix, bias = parameters((2, 2), (2,))
    refused: list[tuple[str, Callable[[], Any]]] = [
        ("lr=-1", lambda: LARS([matrix], lr=-1)),
        ("lr=-1", lambda: LAMB([matrix], lr=-1)),
        ("lr=nan", lambda: LAMB([matrix], lr=math.nan)),
        ("lr=-1", lambda: RMSpropWarmupSGD([matrix], lr=-1, steps_per_epoch=9)),
        ("momentum=1", lambda: LARS([matrix], lr=1, momentum=1)),
        ("weight_decay=-0.1", lambda: LARS([matrix], lr=1, weight_decay=-0.1)),
        ("trust_coefficient=-1", lambda: LARS([matrix], lr=1, trust_coefficient=-1)),
        ("empty parameter list", lambda: LARS([], lr=1)),
        ("empty parameter list", lambda: LAMB([], lr=1)),
        ("empty parameter list", lambda: RMSpropWarmupSGD([], lr=1, steps_per_epoch=9)),
        (r"betas\[1\]=1.0", lambda: LAMB([matrix], lr=1, betas=(0.9, 1.0))),
        ("eps=-1", lambda: LAMB([matrix], lr=1, eps=-1)),
        ("steps_per_epoch=0", lambda: RMSpropWarmupSGD([matrix], lr=1, steps_per_epoch=0)),
        ("rmsprop_lr=-1", lambda: RMSpropWarmupSGD([matrix], lr=1, steps_per_epoch=9, rmsprop_lr=-1)),
        ("period=0", lambda: RMSpropWarmupSGD([matrix], lr=1, steps_per_epoch=9, period=0)),
        ("mode='slow'", lambda: LARC(torch.optim.SGD([matrix], 1), mode="slow")),  # type: ignore[arg-type]
        ("trust_coefficient=-1", lambda: LARC(torch.optim.SGD([matrix], 1), -1)),
        ("once", lambda: LARC(LARC(torch.optim.SGD([matrix], 1)))),
        ("LBFGS", lambda: LARC(torch.optim.LBFGS([matrix]))),
        ("hvd.DistributedOptimizer", lambda: GradientLag(torch.optim.SGD([matrix], 1))),
    ]
    for words, call in refused:
        with pytest.raises(ValueError, match=words):
            call()
    with pytest.raises(TypeError, match="ordered collection"):
        LARS([{"params": {matrix}}], lr=1)
    matrix.grad = torch.ones(2, 2, dtype=torch.float64).to_sparse()
    sparse: list[torch.optim.Optimizer] = [LARS([matrix, bias], lr=1), LAMB([matrix], lr=1)]
    sparse += [RMSpropWarmupSGD([matrix], lr=1, steps_per_epoch=9), LARC(torch.optim.SGD([matrix], 1))]
    for optimizer in sparse:
        with pytest.raises(ValueError, match="takes no sparse gradients"):
            optimizer.step()


def test_a_script_may_end_with_gradients_on_their_way(launch: Launch) -> None:
    done = launch(
        2,
        """
        import torch

        import farandole.torch as hvd
        from farandole.torch.optim import GradientLag

        hvd.init()
        layer = torch.nn.Linear(300, 300)
        optimizer = GradientLag(hvd.DistributedOptimizer(torch.optim.SGD(layer.parameters(), lr=0.1)), lag=2)
        for _ in range(3):
            optimizer.zero_grad()
            layer(torch.rand(4, 300)).sum().backward()
            optimizer.step()
        """,
    ).ok()
    assert not done.stderr
