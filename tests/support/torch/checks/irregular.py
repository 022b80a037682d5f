"""Checks of ``DistributedOptimizer`` where ranks differ: unused parameters, sparse gradients, other programs."""

from __future__ import annotations

import weakref
from typing import Any

import pytest
import torch

import farandole.torch as hvd
from tests.support.rank_gradients import backward, gradient, mean_over, parameters


def check_parameters_unused_on_some_ranks_and_on_all() -> None:
    params = parameters((3,), (2, 2), (4,), (1,))
    everywhere, somewhere, nowhere, frozen = params
    frozen.requires_grad_(False)
    everyone, odd = list(range(hvd.size())), [r for r in range(hvd.size()) if r % 2]
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(params, lr=1.0, momentum=0.9))
    for step in range(4):
        optimizer.zero_grad()
        used = [everywhere, somewhere] if hvd.rank() in odd or step == 3 else [everywhere]
        backward(*used)
        torch.testing.assert_close(everywhere.grad, mean_over(everyone, everywhere.detach()))
        if step == 3 or odd:
            torch.testing.assert_close(somewhere.grad, mean_over(everyone if step == 3 else odd, somewhere.detach()))
        else:
            assert somewhere.grad is None
        assert nowhere.grad is None
        assert frozen.grad is None
        optimizer.step()
    assert torch.equal(nowhere.detach(), torch.ones_like(nowhere))


def check_a_rank_without_a_backward_pass() -> None:
    params = parameters((3,), (2,))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(params, lr=1.0))
    last = hvd.size() - 1
    for _ in range(3):
        before = params[0].detach().clone()
        optimizer.zero_grad()
        if hvd.rank() != last or last == 0:
            backward(*params)
        optimizer.step()
        busy = [r for r in range(hvd.size()) if r != last or last == 0]
        torch.testing.assert_close(params[0].detach(), before - mean_over(busy, before))


def check_gradients_that_are_replaced() -> None:
    (param,) = parameters((3,))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([param], lr=1.0))
    everyone = list(range(hvd.size()))
    backward(param)
    param.grad = torch.full((3,), 7.0, dtype=torch.float64)  # after the reduction: it is what the step uses
    optimizer.step()
    assert param.tolist() == [-6.0] * 3
    param.grad = torch.zeros(3, dtype=torch.float64)  # before the pass: it is added to
    backward(param)
    torch.testing.assert_close(param.grad, mean_over(everyone, param.detach()))
    optimizer.step()
    param.grad = None
    optimizer.zero_grad()
    backward(param)
    torch.testing.assert_close(param.grad, mean_over(everyone, param.detach()))


def check_strides_and_dtypes() -> None:
    image = torch.nn.Parameter(torch.ones(2, 3, 4, 5).to(memory_format=torch.channels_last))
    transposed = torch.nn.Parameter(torch.ones(3, 2, dtype=torch.float64).t())
    others = [torch.nn.Parameter(torch.ones(n, dtype=d)) for n, d in ((3, torch.bfloat16), (0, torch.float32))]
    scalar = torch.nn.Parameter(torch.tensor(1.0, dtype=torch.complex128))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([image, transposed, *others, scalar], lr=1.0))
    everyone = list(range(hvd.size()))
    losses = [(p * gradient(hvd.rank(), p.detach())).sum().double() for p in (image, transposed, *others)]
    torch.stack(losses).sum().backward()
    for param in (image, transposed, *others):
        torch.testing.assert_close(param.grad, mean_over(everyone, param.detach()))
        assert param.grad is not None
        assert param.grad.stride() == param.stride()
    assert scalar.grad is None
    optimizer.step()


def check_sparse_gradients() -> None:
    rank, size = hvd.rank(), hvd.size()
    for as_dense in (False, True):
        torch.manual_seed(0)
        table = torch.nn.Embedding(size + 2, 3, sparse=True, dtype=torch.float64)
        bias = torch.nn.Parameter(torch.zeros(3, dtype=torch.float64))
        start = table.weight.detach().clone()
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD([table.weight, bias], lr=1.0),
            named_parameters=[("table", table.weight), ("bias", bias)],
            sparse_as_dense=as_dense,
        )
        expected = start.clone()
        for step in range(3):
            optimizer.zero_grad()
            if step < 2 or rank == 0:  # in the last step the others have no gradient at all
                (table(torch.tensor([0, rank + 1])) + bias).sum().backward()
            optimizer.step()
            for r in range(size if step < 2 else 1):
                expected[[0, r + 1]] -= 1.0 / size
            assert table.weight.grad is not None
            assert table.weight.grad.is_sparse
        torch.testing.assert_close(table.weight.detach(), expected)
        torch.testing.assert_close(bias.detach(), torch.full((3,), -(4.0 + 2.0 / size), dtype=torch.float64))


def check_a_network_of_sparse_gradients_alone() -> None:
    table = torch.nn.Embedding(hvd.size() + 1, 2, sparse=True)
    with torch.no_grad():
        table.weight.fill_(0.0)
    optimizer = hvd.DistributedOptimizer(torch.optim.SparseAdam(list(table.parameters()), lr=1.0))
    for _ in range(2):
        optimizer.zero_grad()
        table(torch.tensor([hvd.rank()])).sum().backward()
        optimizer.step()
    assert (table.weight[:-1] < -1.0).all()
    assert (table.weight[-1] == 0.0).all()


def check_gradients_that_become_sparse_and_dense_again() -> None:
    table = torch.nn.Embedding(3, 2, dtype=torch.float64)
    bias = torch.nn.Parameter(torch.zeros(2, dtype=torch.float64))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([table.weight, bias], lr=1.0), op=hvd.Sum)
    for step in range(6):
        table.sparse = step in (2, 3)
        optimizer.zero_grad()
        (table(torch.tensor([0, 0, 2])) + bias).sum().backward()
        assert table.weight.grad is not None
        assert table.weight.grad.is_sparse == table.sparse
        expected = torch.tensor([[2.0, 2.0], [0.0, 0.0], [1.0, 1.0]], dtype=torch.float64) * hvd.size()
        torch.testing.assert_close(table.weight.grad.to_dense(), expected)
        assert bias.grad is not None
        assert bias.grad.tolist() == [3.0 * hvd.size()] * 2
        optimizer.step()


def check_parameters_that_come_later() -> None:
    first, second, third = parameters((2,), (3,), (4,))
    second.requires_grad_(False)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([first, second], lr=1.0))
    everyone = list(range(hvd.size()))
    backward(first)
    optimizer.step()
    second.requires_grad_(True)
    optimizer.add_param_group({"params": [third]})
    for _ in range(2):
        optimizer.zero_grad()
        backward(first, second, third)
        for param in (first, second, third):
            torch.testing.assert_close(param.grad, mean_over(everyone, param.detach()))
        optimizer.step()


def check_parameters_that_are_frozen_now_and_then() -> None:
    params = parameters((2,), (3,))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(params, lr=1.0))
    everyone = list(range(hvd.size()))
    for step in range(6):
        frozen, trained = params[step % 2], params[1 - step % 2]
        frozen.requires_grad_(False)
        optimizer.zero_grad()
        backward(trained)
        assert frozen.grad is None
        torch.testing.assert_close(trained.grad, mean_over(everyone, trained.detach()))
        optimizer.step()
        frozen.requires_grad_(True)


def check_a_parameter_that_was_frozen_when_the_optimizer_was_made_and_is_all_that_one_rank_uses() -> None:
    params = parameters((2,), (3,))
    params[0].requires_grad_(False)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(params, lr=1.0))
    params[0].requires_grad_(True)
    everyone = list(range(hvd.size()))
    backward(*(params[:1] if hvd.rank() == 0 else params))
    torch.testing.assert_close(params[0].grad, mean_over(everyone, params[0].detach()))
    if hvd.size() > 1:
        torch.testing.assert_close(params[1].grad, mean_over(everyone[1:], params[1].detach()))
    optimizer.step()


def check_that_a_frozen_gradient_is_summed_once() -> None:
    trained, frozen = parameters((2,), (3,))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([trained, frozen], lr=1.0), op=hvd.Sum)
    everyone = list(range(hvd.size()))
    backward(trained, frozen)
    optimizer.step()
    frozen.requires_grad_(False)
    for _ in range(3):
        trained.grad = None
        backward(trained)
        for param in (trained, frozen):
            torch.testing.assert_close(param.grad, mean_over(everyone, param.detach()) * hvd.size())
        optimizer.step()
    assert frozen.grad is not None
    frozen.grad.fill_(1.0)  # the user's own, and not what a run has left
    trained.grad = None
    backward(trained)
    assert frozen.grad.tolist() == [float(hvd.size())] * 3


def check_an_optimizer_that_is_gone_leaves_its_parameters_alone() -> None:
    (param,) = parameters((3,))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([param], lr=1.0))
    for _ in range(3):
        backward(param)
        optimizer.step()
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD([param], lr=1.0))
    optimizer.zero_grad()
    reference = weakref.ref(optimizer)
    del optimizer
    assert reference() is None
    backward(param)
    assert param.grad is not None
    assert torch.equal(param.grad, gradient(hvd.rank(), param.detach()))


def check_two_networks_that_play_against_each_other() -> None:
    (generator,), (judge,) = parameters((3,)), parameters((3,))
    generates = hvd.DistributedOptimizer(torch.optim.Adam([generator], lr=0.1), [("w", generator)])
    judges = hvd.DistributedOptimizer(torch.optim.Adam([judge], lr=0.1), [("w", judge)])
    everyone = list(range(hvd.size()))
    for _ in range(3):
        judges.zero_grad()
        (judge * generator.detach() * gradient(hvd.rank(), judge.detach())).sum().backward()
        judges.step()
        generates.zero_grad()
        (judge * generator * gradient(hvd.rank(), judge.detach())).sum().backward()  # reaches the judge, too
        mean = mean_over(everyone, judge.detach())
        torch.testing.assert_close(generator.grad, judge.detach() * mean)
        generates.step()
    gathered = hvd.allgather(torch.cat([judge.detach(), generator.detach()])[None])
    assert (gathered == gathered[0]).all()


def check_process_sets() -> None:
    if hvd.size() == 1:
        return
    pair = hvd.add_process_set([0, 1]) if hvd.size() > 2 else hvd.global_process_set
    (param,) = parameters((3,))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([param], lr=1.0), process_set=pair)
    backward(param)
    among = [0, 1] if pair.included() else [hvd.rank()]
    torch.testing.assert_close(param.grad, sum(gradient(r, param.detach()) for r in among) / len(among))
    optimizer.step()
    hvd.barrier()
    if hvd.size() > 2:
        hvd.remove_process_set(pair)


def check_adasum_combines_what_the_ranks_have_stepped() -> None:
    size = hvd.size()
    for compression, tolerance in ((hvd.Compression.none, 1e-9), (hvd.Compression.fp16, 1e-2)):
        param = torch.nn.Parameter(torch.zeros(size, dtype=torch.float64))
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD([param], lr=0.5), op=hvd.Adasum, compression=compression)
        assert isinstance(optimizer, torch.optim.SGD)
        param[hvd.rank()].backward()
        assert param.grad is not None
        assert param.grad.count_nonzero() == 1  # gradients stay this rank's own
        optimizer.step()
        torch.testing.assert_close(
            param.detach(), torch.full((size,), -0.5, dtype=torch.float64), rtol=tolerance, atol=tolerance
        )
    with pytest.raises(ValueError, match="Adasum"):
        optimizer.skip_synchronize()


def check_adasum_with_parameters_that_are_frozen_or_come_later() -> None:
    for are_named in (True, False):
        params = parameters((3,), (2,))
        names = [(f"p{i}", p) for i, p in enumerate(params)] if are_named else None
        original = torch.optim.SGD(params, lr=0.1, momentum=0.9)
        optimizer = hvd.DistributedOptimizer(original, names, op=hvd.Adasum)
        for step in range(6):
            optimizer.zero_grad(set_to_none=False)
            if step == 2:
                params[0].requires_grad_(False)  # its gradient of zeros is there, and its momentum of this rank
                params += parameters((4,), (5,))
                optimizer.add_param_group({"params": params[2:]})
            before = [p.detach().clone() for p in params]
            backward(*(p for p in params if p.requires_grad))
            optimizer.step()
            assert all(bool((p != old).any()) for p, old in zip(params, before, strict=True))
        for i, p in enumerate(params):
            every = hvd.allgather(p.detach()[None], name=f"of all {i}")
            assert (every == every[0]).all(), i


def check_that_programs_which_differ_raise_everywhere() -> None:
    if hvd.size() == 1:
        return
    (param,) = parameters((3,))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([param], lr=1.0))
    backward(param)
    optimizer.step()
    backward(param)
    if hvd.rank() == 0:
        optimizer.step()
    with pytest.raises(hvd.HorovodInternalError, match="same point of the program"):
        backward(param)
    other = torch.nn.Parameter(torch.ones(2 + hvd.rank()))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([other], lr=1.0))
    with pytest.raises(hvd.HorovodInternalError, match="same model"):
        backward(other)


def check_arguments() -> None:
    model = torch.nn.Linear(2, 2)
    named = list(model.named_parameters())

    def make(**options: Any) -> None:
        hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0), **options)

    for options, text in (
        ({"named_parameters": list(model.parameters())}, "tuples"),
        ({"named_parameters": [*named, named[0]]}, "weight"),
        ({"named_parameters": named[:1]}, "lacks 1"),
        ({"backward_passes_per_step": 0}, "starts from 1"),
        ({"gradient_predivide_factor": 2.0, "op": hvd.Sum}, "op=Average"),
        ({"groups": -1}, "groups=-1"),
        ({"groups": [[1]]}, "lists of parameters"),
        ({"groups": [[named[0][1]], [named[0][1]]]}, "one group"),
        ({"op": 9}, "no reduction"),
    ):
        with pytest.raises(ValueError, match=text):
            make(**options)
