"""Checks of backward passes: those within others, those that make graphs, those that fail."""

from __future__ import annotations

import gc
import itertools
import warnings
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import farandole.torch as hvd
from farandole.runtime.session.init import current
from farandole.torch import optim
from farandole.torch.autograd import apply
from tests.support.rank_gradients import backward, gradient, mean_over, parameters


def check_reentrant_checkpointing() -> None:
    size, rank = hvd.size(), hvd.rank()
    for op, factor in ((hvd.Average, 1 / size), (hvd.Sum, 1.0)):
        torch.manual_seed(2)
        blocks = torch.nn.ModuleList(torch.nn.Linear(3, 3) for _ in range(3)).double()
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(blocks.parameters(), lr=0.1), blocks.named_parameters(), op=op
        )
        for step in range(3):
            optimizer.zero_grad()
            expected = [torch.zeros_like(p) for p in blocks.parameters()]
            for reentrant in (False, True):
                for r in range(size) if not reentrant else [rank]:
                    x = torch.full((2, 3), r + 1.0, dtype=torch.float64, requires_grad=True)
                    for i, block in enumerate(blocks):
                        if i == 1 and r == 0 and step == 1:
                            continue  # this rank skips it
                        x = checkpoint(block, x, use_reentrant=True) if reentrant else block(x)
                    if reentrant:
                        x.square().sum().backward()
                    else:
                        found = torch.autograd.grad(x.square().sum(), list(blocks.parameters()), allow_unused=True)
                        for total, grad in zip(expected, found, strict=True):
                            total.add_(torch.zeros_like(total) if grad is None else grad * factor)
            for param, total in zip(blocks.parameters(), expected, strict=True):
                grad = torch.zeros_like(param) if param.grad is None else param.grad
                torch.testing.assert_close(grad, total)
            optimizer.step()


def check_reentrant_checkpointing_of_blocks_that_share_parameters() -> None:
    """Each block's pass completes the gradient of what they share; what comes after its reduction would be lost."""
    block = torch.nn.Linear(3, 3).double()
    torch.nn.init.constant_(block.weight, 0.1)
    torch.nn.init.constant_(block.bias, 0.1)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(block.parameters(), lr=0.0), block.named_parameters())
    x = torch.full((2, 3), hvd.rank() + 1.0, dtype=torch.float64, requires_grad=True)
    for step in range(3):
        optimizer.zero_grad()
        found = torch.autograd.grad(block(block(x)).square().sum(), [block.weight, block.bias])
        loss = checkpoint(block, checkpoint(block, x, use_reentrant=True), use_reentrant=True).square().sum()
        if step and hvd.size() > 1 and current().settings.overlap == "backward":
            with pytest.raises(ValueError, match="use_reentrant=False"):
                loss.backward()
            continue
        loss.backward()
        for param, own in zip(block.parameters(), found, strict=True):
            torch.testing.assert_close(param.grad, sum(hvd.allgather_object(own)) / hvd.size())
        optimizer.step()


def check_that_a_pass_that_makes_a_graph_is_refused() -> None:
    warnings.filterwarnings("ignore", message="Using backward")  # PyTorch's own
    param = torch.nn.Parameter(torch.full((3,), 2.0))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([param], lr=1.0))
    if hvd.size() > 1:
        for _ in range(2):
            with pytest.raises(ValueError, match="create_graph"):
                (param**3).sum().backward(create_graph=True)
            optimizer.zero_grad()
    (grad,) = torch.autograd.grad((param**3).sum(), param, create_graph=True)
    (grad.square().sum() * (hvd.rank() + 1)).backward()
    assert param.grad is not None
    torch.testing.assert_close(param.grad, torch.full((3,), 2 * 12.0 * 12.0 * (hvd.size() + 1) / 2))
    optimizer.step()


class Fails(torch.autograd.Function):
    """Cannot be differentiated."""

    @staticmethod
    def forward(_: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(*_: Any) -> Any:
        raise OverflowError("half-way")


def check_that_a_failed_pass_of_ranks_that_were_apart_is_told_once() -> None:
    if hvd.size() == 1 or current().settings.overlap != "backward":
        return
    params = parameters((3,), (3,))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(params, lr=1.0))
    backward(*params)
    optimizer.step()
    for first in (True, False):  # one rank is a step ahead of the others, and they catch up
        if first == (hvd.rank() == 0):
            optimizer.zero_grad()  # the detector of divergence compares what they step with
            with optimizer.skip_synchronize():
                optimizer.step()
        if first:
            with pytest.raises(OverflowError):
                (apply(Fails, params[0]).sum() + params[1].sum()).backward()
    with pytest.raises(hvd.HorovodInternalError, match="same point of the program"):
        backward(*params)
    optimizer.zero_grad()
    backward(*params)
    torch.testing.assert_close(params[1].grad, mean_over(list(range(hvd.size())), params[1].detach()))


def check_a_backward_pass_that_fails_half_way() -> None:
    params = parameters((3,), (3,))

    def hooked(x: torch.Tensor) -> torch.Tensor:
        y = x.clone()
        y.register_hook(Fails.backward)
        return y

    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(params, lr=1.0))
    everyone = list(range(hvd.size()))
    overlapped = False
    for fail in (lambda x: apply(Fails, x), hooked):
        with pytest.raises(OverflowError):
            (fail(params[0]).sum() + params[1].sum()).backward()
        optimizer.zero_grad()
        if overlapped and hvd.size() > 1:  # the others have reduced a part of it: there is no way back
            with pytest.raises(ValueError, match="FARANDOLE_OVERLAP=step"):
                backward(*params)
            return
        overlapped = current().settings.overlap == "backward"
        backward(*params)
        torch.testing.assert_close(params[1].grad, mean_over(everyone, params[1].detach()))
        optimizer.step()


def check_that_a_step_after_a_pass_that_failed_is_refused_where_that_has_reduced() -> None:
    params = parameters((3,), (100_000,))  # 0.8 MB: less than what overlap="auto" takes between hosts
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(params, lr=1.0))
    backward(*params)
    optimizer.step()
    optimizer.zero_grad()
    with pytest.raises(OverflowError):
        (apply(Fails, params[0]).sum() + params[1].sum()).backward()
    assert params[1].grad is not None
    if current().settings.overlap == "backward" and hvd.size() > 1:
        with pytest.raises(ValueError, match="FARANDOLE_OVERLAP=step"):
            optimizer.step()
    else:
        params[1].grad.mul_(2.0)
        optimizer.step()
        torch.testing.assert_close(params[1].grad, torch.full_like(params[1].detach(), 2.0))


def check_that_a_gradient_is_not_changed_while_it_is_reduced() -> None:
    """By hooks that come after those of the optimizer; there, nobody knows what was reduced."""
    overlaps = current().settings.overlap == "backward" and hvd.size() > 1
    everyone = list(range(hvd.size()))
    for change in (_halve, _replace, _drop):
        for shape in ((2,), (8, 8)):  # side by side with others, and where it lies
            params = parameters((3,), shape, (2,))
            optimizer = hvd.DistributedOptimizer(torch.optim.SGD(params, lr=0.1))
            backward(*params)
            optimizer.step()
            params[1].register_post_accumulate_grad_hook(change if hvd.rank() == 0 else _leave)
            optimizer.zero_grad()
            if overlaps:
                with pytest.raises(
                    ValueError, match=r"1 was .* changed .*FARANDOLE_OVERLAP=step|rank 0 on .* raised an error"
                ):
                    backward(*params)
                optimizer.zero_grad()
            else:
                backward(*params)
                ones, others = gradient(0, params[1].detach()), mean_over(everyone[1:], params[1].detach())
                changed = torch.zeros_like(ones) if change is _drop else ones * 0.5
                expected = None if change is _drop and hvd.size() == 1 else changed / hvd.size() + others
                torch.testing.assert_close(params[1].grad, expected)


def check_that_hooks_from_before_the_optimizer_change_what_is_reduced() -> None:
    params = parameters((3,), (8, 8))
    params[1].register_post_accumulate_grad_hook(_halve)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(params, lr=0.1))
    for _ in range(3):
        optimizer.zero_grad()
        backward(*params)
        torch.testing.assert_close(params[1].grad, mean_over(list(range(hvd.size())), params[1].detach()) * 0.5)
        optimizer.step()


def _halve(param: torch.Tensor) -> None:
    assert param.grad is not None
    param.grad.mul_(0.5)


def _replace(param: torch.Tensor) -> None:
    assert param.grad is not None
    param.grad = param.grad * 0.5


def _drop(param: torch.Tensor) -> None:
    param.grad = None


def _leave(param: torch.Tensor) -> None:
    assert param.grad is not None


def check_that_memory_into_which_a_failed_pass_still_reduces_is_not_freed() -> None:
    if current().settings.overlap != "backward" or hvd.size() == 1:
        return
    for _ in range(10):
        params = parameters(*[(8, 8)] * 6)  # each larger than a bucket: reduced where it lies
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(params, lr=1.0))
        for _ in range(2):
            backward(*params)
            optimizer.step()
            optimizer.zero_grad()
        with pytest.raises(OverflowError):
            (apply(Fails, params[0]).sum() + sum(p.sum() for p in params[1:])).backward()
        for param in params[1:]:
            assert param.grad is not None
            param.grad.data = param.grad * 0.5  # the memory it had would be the next tensor's
        later = [torch.full((8, 8), 7.0, dtype=torch.float64) for _ in range(50)]
        with pytest.raises(ValueError, match="FARANDOLE_OVERLAP=step"):
            optimizer.step()
        assert all(bool((values == 7.0).all()) for values in later)


def check_that_a_pass_that_makes_a_graph_on_one_rank_is_refused_on_all() -> None:
    if hvd.size() == 1:
        return
    warnings.filterwarnings("ignore", message="Using backward")  # PyTorch's own
    param = torch.nn.Parameter(torch.full((3,), 2.0))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([param], lr=1.0))
    everyone = list(range(hvd.size()))
    for step in range(3):
        optimizer.zero_grad()
        with pytest.raises(ValueError, match=r"create_graph|rank 0 on .* raised an error"):
            (param**3).sum().backward(create_graph=hvd.rank() == 0)
        optimizer.zero_grad()
        backward(param)
        torch.testing.assert_close(param.grad, mean_over(everyone, param.detach()), msg=f"step {step}")
        optimizer.step()


def check_that_a_parameter_of_another_shape_on_one_rank_is_refused_on_all() -> None:
    if hvd.size() == 1:
        return
    for lag in (0, 1):
        for shape in ((4, 3), (7, 3), (3, 4), (12,)):
            params = parameters((6, 3), (2,))
            sgd = hvd.DistributedOptimizer(torch.optim.SGD(params, lr=1.0))
            optimizer = optim.GradientLag(sgd, lag) if lag else sgd
            for _ in range(2):
                optimizer.zero_grad()
                backward(*params)
                optimizer.step()
            optimizer.zero_grad()
            if hvd.rank() == 0:
                gc.collect()  # else a graph of before, with the old shape, may be alive, and PyTorch refuses
                params[0].data = torch.ones(shape, dtype=torch.float64)

            def run(params: list[torch.nn.Parameter], optimizer: Any, lag: int) -> None:
                for _ in range(1 + lag):  # what went wrong in a run is told when its gradients are wanted
                    backward(*params)
                    optimizer.step()

            with pytest.raises(ValueError, match=r"make .* DistributedOptimizer|rank 0 on .* raised an error"):
                run(params, optimizer, lag)


def check_a_pass_that_fails_within_a_checkpoint() -> None:
    if current().settings.overlap == "backward" and hvd.size() > 1:
        return  # some gradients have been reduced: there is no way back
    first, second = params = parameters((3,), (3,))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(params, lr=1.0))
    everyone = list(range(hvd.size()))
    fails = [True]

    class Nested(torch.autograd.Function):
        @staticmethod
        def forward(_: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(_: Any, grad: torch.Tensor) -> torch.Tensor:
            with torch.enable_grad():
                (second * gradient(hvd.rank(), second.detach())).sum().backward()  # a pass within the pass
            if fails[0]:
                raise OverflowError("after it")
            return grad

    loss = (apply(Nested, first) * gradient(hvd.rank(), first.detach())).sum()
    with pytest.raises(OverflowError):
        loss.backward(retain_graph=True)
    fails[0] = False
    for repeated in (False, True):  # another graph, and the one that failed, kept alive
        optimizer.zero_grad()
        again = (apply(Nested, first) * gradient(hvd.rank(), first.detach())).sum()
        (loss if repeated else again).backward(retain_graph=True)
        for param in params:
            torch.testing.assert_close(param.grad, mean_over(everyone, param.detach()))
        optimizer.step()


def check_optimizers_that_step_in_hooks_of_the_backward_pass() -> None:
    """Hooks of the user's, from before and after the optimizers were made: each step is with the gradient of all."""
    everyone = list(range(hvd.size()))
    for op, first in itertools.product((hvd.Average, hvd.Sum), (True, False)):
        params = parameters((3,), (8, 8))
        optimizers: dict[torch.Tensor, Any] = {}

        def step(param: torch.Tensor, optimizers: dict[torch.Tensor, Any] = optimizers) -> None:
            optimizers[param].step()
            optimizers[param].zero_grad()

        def hook(params: list[torch.nn.Parameter] = params, step: Any = step) -> None:
            for param in params:
                param.register_post_accumulate_grad_hook(step)

        if first:
            hook()
        optimizers |= {param: hvd.DistributedOptimizer(torch.optim.SGD([param], lr=0.5), op=op) for param in params}
        if not first:
            hook()
        factor = 0.5 * (hvd.size() if op == hvd.Sum else 1)
        for number in range(4):
            before = [param.detach().clone() for param in params]
            if number and not first and current().settings.overlap == "backward" and hvd.size() > 1:
                with pytest.raises(ValueError, match=r"step\(\) in a hook"):
                    backward(*params)
                break
            backward(*params)
            for param, old in zip(params, before, strict=True):
                torch.testing.assert_close(param.detach(), old - factor * mean_over(everyone, old))


def check_that_a_compiled_backward_pass_is_refused() -> None:
    """Its end is not told: gradients would stay those of the rank until ``step()``."""
    if hvd.size() == 1:
        return
    warnings.filterwarnings("ignore", message="Dynamo")  # PyTorch's own
    compiled_autograd = pytest.importorskip("torch._dynamo.compiled_autograd")
    params = parameters((3,), (8, 8))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(params, lr=0.1))
    for _ in range(2):
        optimizer.zero_grad()
        with pytest.raises(Exception, match="compiled autograd"), compiled_autograd._enable(_as_it_is):
            backward(*params)
        optimizer.zero_grad()
        backward(*params)
        torch.testing.assert_close(params[0].grad, mean_over(list(range(hvd.size())), params[0].detach()))
        optimizer.step()


def _as_it_is(graph: Any) -> Any:
    return graph
