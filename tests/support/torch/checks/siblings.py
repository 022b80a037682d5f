"""Checks of two optimizers over the same parameters."""

from __future__ import annotations

import gc

import pytest
import torch

import farandole.torch as hvd
from farandole.collective import ReduceOp
from tests.support.rank_gradients import backward, gradient, mean_over, parameters


def optimizer_of(params: list[torch.nn.Parameter], op: ReduceOp = hvd.Average) -> torch.optim.Optimizer:
    """An optimizer in a cycle, as that of a trainer with callbacks, which only the garbage collector breaks."""
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(params, lr=1.0), op=op)
    vars(optimizer)["trainer"] = [optimizer]
    return optimizer


def average(like: torch.Tensor) -> torch.Tensor:
    """What all ranks' gradients are on average."""
    return mean_over(list(range(hvd.size())), like)


def check_that_two_optimizers_may_average_the_same_gradients() -> None:
    params = parameters(*[(50,)] * 40)
    optimizers = [optimizer_of(params), optimizer_of(params)]
    for step in range(20):
        before = params[0].detach().clone()
        backward(*params)
        for param in params:
            assert param.grad is not None
            torch.testing.assert_close(param.grad, average(param.detach()))
        optimizers[step % 2].step()
        torch.testing.assert_close(params[0].detach(), before - average(before))
        for optimizer in optimizers:
            optimizer.zero_grad()


def check_that_two_sums_of_the_same_gradients_are_refused() -> None:
    if hvd.size() == 1:
        return
    params = parameters((3,), (3,))
    optimizers = [optimizer_of(params, hvd.Sum), optimizer_of(params[1:])]
    with pytest.raises(ValueError, match="two distributed optimizers train"):
        backward(*params)
    assert len(optimizers) == 2


def check_that_optimizers_out_of_reach_are_gone_on_all_ranks_at_once() -> None:
    gc.disable()
    try:
        params = parameters((3,), (3,))
        for op in (hvd.Sum, hvd.Average, hvd.Sum):
            optimizer = optimizer_of(params, op)
            if hvd.rank() == 1:
                gc.collect()
            for _ in range(3):
                optimizer.zero_grad()
                backward(*params)
                factor = hvd.size() if op is hvd.Sum else 1
                assert params[0].grad is not None
                torch.testing.assert_close(params[0].grad, average(params[0].detach()) * factor)
                optimizer.step()
    finally:
        gc.enable()


def check_that_an_optimizer_that_one_rank_alone_keeps_rests_once_another_has_its_parameters() -> None:
    """As the traceback of an error does that has ended a reduction: of the reducer, or of the optimizer as well."""
    for whole in (True, False):
        for share in (0, 1):  # the new optimizer has all parameters of the old one, or some
            params = parameters((3,), (3,))
            old = optimizer_of(params)
            backward(*params)
            old.step()
            kept = None if hvd.rank() else old if whole else vars(old)["_reducer"]
            del old
            gc.collect()
            if share:
                hvd.shutdown()
                hvd.init()
            for _ in range(3):  # each in the place of the one before
                new = optimizer_of(params[share:])
                for _ in range(2):
                    new.zero_grad()
                    backward(*params[share:])
                    assert params[1].grad is not None
                    torch.testing.assert_close(params[1].grad, average(params[1].detach()))
                    new.step()
            del kept


def check_that_an_optimizer_without_its_reducer_ends_where_one_rank_keeps_the_reducer() -> None:
    params = parameters((3,))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(params, lr=1.0))
    backward(*params)
    kept = None if hvd.rank() else vars(optimizer)["_reducer"]
    del optimizer
    [param] = params
    param.grad = None
    backward(param)  # nobody reduces, on no rank
    torch.testing.assert_close([param.grad], [gradient(hvd.rank(), param.detach())])
    del kept


def check_that_an_optimizer_whose_parameters_another_has_works_again_when_it_is_used() -> None:
    params = parameters((3,), (3,))
    old = optimizer_of(params)
    backward(*params)
    old.step()
    new = optimizer_of(params)
    for optimizer in (new, old, new, old):
        before = params[0].detach().clone()
        optimizer.zero_grad()
        backward(*params)
        assert params[0].grad is not None
        torch.testing.assert_close(params[0].grad, average(params[0].detach()))
        optimizer.step()
        torch.testing.assert_close(params[0].detach(), before - average(before))
    other = optimizer_of(params, hvd.Sum)
    backward(*params)
    other.step()
    if hvd.size() > 1:
        with pytest.raises(ValueError, match="two distributed optimizers train"):
            new.step()
