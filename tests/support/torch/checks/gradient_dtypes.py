"""Checks that gradients are reduced in the dtype that they have: it may be another one than in the last step."""

from __future__ import annotations

import pytest
import torch

import farandole.torch as hvd

SIZES = (12, 400)
"""In a bucket, and where they lie if buckets are small."""


def backward(params: list[torch.nn.Parameter], factor: float = 1.0) -> None:
    """Gradients that are no numbers of bfloat16 if averaged."""
    total = sum((p * (factor * (hvd.rank() + 1))).double().sum() for p in params)
    assert isinstance(total, torch.Tensor)
    total.backward()


def mean(factor: float = 1.0) -> float:
    """What remains of these."""
    return factor * (hvd.size() + 1) / 2


def check_gradients_of_another_dtype_than_their_parameters() -> None:
    if not hasattr(torch.Tensor, "grad_dtype"):
        return
    params = [torch.nn.Parameter(torch.ones(n, dtype=torch.bfloat16)) for n in SIZES]
    for param in params:
        param.grad_dtype = torch.float32
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(params, lr=1.0))
    odd = 1 + 2**-12  # needs more digits than bfloat16 has
    for _ in range(2):
        for param in params:
            param.grad = torch.full(param.shape, odd + hvd.rank())
        optimizer.synchronize()
        for param in params:
            assert param.grad is not None
            assert param.grad.dtype is torch.float32
            torch.testing.assert_close(param.grad, torch.full(param.shape, mean() - 1 + odd))
        with optimizer.skip_synchronize():
            pass
        optimizer.zero_grad()
        optimizer.step()  # nothing anywhere


def check_models_that_are_cast_between_steps() -> None:
    for op in (hvd.Average, hvd.Sum):
        params = [torch.nn.Parameter(torch.ones(n)) for n in SIZES]
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(params, lr=0.5), op=op)
        third = 1 / 3
        for step, dtype in enumerate((torch.float32, torch.float64, torch.float64, torch.float32, torch.float16)):
            for param in params:
                param.data = param.data.to(dtype)
                if param.grad is not None:
                    param.grad.data = param.grad.data.to(dtype)
            optimizer.zero_grad(set_to_none=step % 2 == 0)
            backward(params, third)
            for param in params:
                assert param.grad is not None
                assert param.grad.dtype is dtype
                total = mean(third) * (1 if op == hvd.Average else hvd.size())
                expected = torch.full(param.shape, total, dtype=torch.float64)
                atol = {torch.float64: 1e-14, torch.float32: 1e-6, torch.float16: 1e-2}[dtype]
                torch.testing.assert_close(param.grad.double(), expected, atol=atol, rtol=atol)
            optimizer.step()


def check_a_model_that_one_rank_casts() -> None:
    if hvd.size() == 1:
        return
    weight, bias = torch.nn.Parameter(torch.ones(4)), torch.nn.Parameter(torch.ones(2))
    named = [("weight", weight), ("bias", bias)]
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight, bias], lr=1.0), named)
    backward([weight, bias])
    optimizer.step()
    for turn in range(2):
        optimizer.zero_grad()
        if hvd.rank() == 1:
            bias.data = bias.data.double()
        if hvd.rank() == 1 and turn:  # without a gradient
            with pytest.raises(hvd.HorovodInternalError, match=r"bias.*float32 on rank 0 .*float64 on rank 1"):
                optimizer.step()
        else:
            with pytest.raises(hvd.HorovodInternalError, match=r"bias.*float32 on rank 0 .*float64 on rank 1"):
                backward([weight, bias])
    if hvd.rank() == 1:
        bias.data = bias.data.float()
    optimizer.zero_grad()
    backward([weight, bias])
    assert bias.grad is not None
    assert bias.grad.tolist() == [mean()] * 2


def check_that_dtypes_which_do_not_travel_are_refused_everywhere() -> None:
    if hvd.size() == 1:
        return
    param = torch.nn.Parameter(torch.ones(3, dtype=torch.float8_e5m2), requires_grad=False)
    trained = torch.nn.Parameter(torch.ones(3))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([param, trained], lr=1.0), [("odd", param), ("w", trained)])
    param.requires_grad_(True)
    if hvd.rank() == 0:
        param.grad = torch.ones(3, dtype=torch.float8_e5m2)
    with pytest.raises(ValueError, match=r"odd.*does not travel"):
        backward([trained])
    del optimizer
