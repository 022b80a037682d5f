"""Checks of virtual workers: what every rank has after training is what one worker alone computes, bit by bit."""

from __future__ import annotations

import copy
import itertools
import random
from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch

import farandole.torch as hvd
from farandole.adapters.torch_tensors import tensors
from farandole.gradients import shard_sums
from farandole.gradients.shard_sums import Shards

WORKERS = max(4, hvd.size() if hvd.is_initialized() else 0)  # not where the names of checks are listed
ROWS, STEPS = 3 * (WORKERS + 3), 3


def distributed(model: torch.nn.Module, rate: float = 0.1, **options: Any) -> Any:
    """An optimizer for all ranks."""
    plain = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9, weight_decay=0.01)
    return hvd.DistributedOptimizer(plain, **options)


def network() -> Any:
    """Batch norm, dropout, several dtypes, a parameter that is never used, one that only some shards use."""
    torch.manual_seed(3)
    model = torch.nn.Sequential(
        torch.nn.Linear(5, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.3), torch.nn.Linear(8, 2)
    )
    model.register_parameter("unused", torch.nn.Parameter(torch.ones(3)))
    model.register_parameter("wide", torch.nn.Parameter(torch.ones(2, dtype=torch.float64)))
    return model


def loss_of(model: Any, x: torch.Tensor, number: int) -> Any:
    """Randomness of three kinds, besides the data."""
    noise = 1.0 + 0.1 * random.random() + 0.1 * torch.rand(())
    loss = model(x).pow(2).mean() * noise
    return loss + model.wide.pow(2).sum() if number % 3 == 1 else loss


def trained(count: int, alone: bool) -> dict[str, torch.Tensor]:
    """The model's state after some steps, by this job's workers or by this rank alone (a set of one)."""
    model = network()
    own = hvd.add_process_set([0]) if alone and hvd.size() > 1 else hvd.global_process_set
    if alone and hvd.rank():
        hvd.remove_process_set(own)
        return {}
    optimizer = distributed(model, 0.3, virtual_workers=hvd.VirtualWorkers(count, model, seed=5), process_set=own)
    for step in range(STEPS):
        x = torch.randn(ROWS, 5, generator=torch.Generator().manual_seed(step))
        for shard in optimizer.shards(ROWS):
            loss_of(model, x[shard.rows], shard.number).backward()
        optimizer.step()
    assert model.unused.grad is None
    if own is not hvd.global_process_set:
        hvd.remove_process_set(own)
    return copy.deepcopy(model.state_dict())


def check_that_any_number_of_workers_computes_the_same_bits() -> None:
    torch.set_num_threads(1)
    for count, small in ((WORKERS, 64), (WORKERS + 1, 64), (WORKERS + 2, 128), (WORKERS + 3, 2**20)):
        with (
            mock.patch.object(shard_sums, "CHUNK_BYTES", small),  # tensors lie across chunks, and many in one
            mock.patch.object(shard_sums, "LONE_BYTES", small),  # some are reduced where they lie
        ):
            together = trained(count, alone=False)
        one = hvd.broadcast_object(trained(count, alone=True))
        for name, value in one.items():
            assert torch.equal(together[name], value), (count, name)
        assert not torch.equal(together["1.running_mean"], torch.zeros(8)), "the statistics have moved"
        assert together["1.num_batches_tracked"].item() == STEPS


def check_that_shards_leave_the_random_streams_of_the_script_alone() -> None:
    model = network()
    optimizer = distributed(model, virtual_workers=WORKERS)
    torch.manual_seed(1)
    random.seed(1)
    before = torch.random.get_rng_state(), random.getstate()
    drawn = []
    for shard in optimizer.shards(2 * WORKERS):
        drawn.append(torch.rand(()).item())
        loss_of(model, torch.ones(2, 5), shard.number).backward()
    optimizer.step()
    assert torch.equal(torch.random.get_rng_state(), before[0])
    assert random.getstate() == before[1]
    everybody = [value for each in hvd.allgather_object(drawn) for value in each]
    assert len(set(everybody)) == WORKERS, "every shard has a stream of its own"


def check_that_gradients_which_a_script_keeps_stay_as_they_are() -> None:
    model = torch.nn.Linear(3, 2, bias=False)
    optimizer = distributed(model, virtual_workers=hvd.VirtualWorkers(WORKERS, model, seed=5))
    kept: list[torch.Tensor] = []
    for step in range(3):
        for _ in optimizer.shards(ROWS):
            (model.weight * float(step + 1)).sum().backward()
        optimizer.synchronize()
        assert model.weight.grad is not None
        kept.append(model.weight.grad)
        optimizer.step()
        optimizer.zero_grad()
    for number, grad in enumerate(kept):
        torch.testing.assert_close(grad, torch.full((2, 3), number + 1.0))


def check_that_gradients_lie_as_their_parameters_do() -> None:
    """A fused optimizer walks through the memory of both at once, and asks for no strides."""
    x = torch.rand(4 * WORKERS, 3, 5, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    for lone in (2**20, 64):
        torch.manual_seed(3)
        model: Any = torch.nn.Conv2d(3, 4, 3).double()
        model.to(memory_format=torch.channels_last)
        alone = copy.deepcopy(model)
        fused, plain = (torch.optim.SGD(each.parameters(), lr=0.1, fused=True) for each in (model, alone))
        optimizer: Any = hvd.DistributedOptimizer(fused, virtual_workers=2 * WORKERS)
        for shard in optimizer.shards(len(x)):
            model(x[shard.rows]).square().mean().backward()
        with mock.patch.object(shard_sums, "LONE_BYTES", lone):
            optimizer.step()
        assert model.weight.grad is not None
        assert model.weight.grad.stride() == model.weight.stride()
        alone(x).square().mean().backward()
        plain.step()
        torch.testing.assert_close(model.weight, alone.weight)


def check_that_gradients_are_those_of_the_batch_when_its_shards_are_over() -> None:
    """Clipped between the loop and ``step()``, by hand or after a scaler's ``unscale_``."""
    x = torch.randn(ROWS, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    for scale in (1.0, 2.0**10):
        torch.manual_seed(3)
        model = torch.nn.Linear(5, 2).double()
        alone = copy.deepcopy(model)
        inner, plain = (torch.optim.SGD(each.parameters(), lr=0.1, momentum=0.9) for each in (model, alone))
        optimizer: Any = hvd.DistributedOptimizer(inner, virtual_workers=WORKERS)
        scaler = torch.amp.GradScaler("cpu", init_scale=scale, enabled=scale != 1.0)
        for _ in range(2):
            for shard in optimizer.shards(ROWS):
                scaler.scale(model(x[shard.rows]).square().mean()).backward()
            scaler.unscale_(optimizer)
            plain.zero_grad()
            alone(x).square().mean().backward()
            torch.testing.assert_close(model.weight.grad, alone.weight.grad)
            norms = [torch.nn.utils.clip_grad_norm_(each.parameters(), 0.1) for each in (model, alone)]
            torch.testing.assert_close(*norms)
            before = model.weight.detach().clone()
            scaler.step(optimizer)
            scaler.update()
            plain.step()
            torch.testing.assert_close(model.weight, alone.weight)
            assert not torch.equal(model.weight, before)


def check_that_shards_of_a_second_batch_before_the_step_are_refused() -> None:
    model = torch.nn.Linear(2, 1)
    optimizer = distributed(model, virtual_workers=WORKERS)

    def compute() -> None:
        for _ in optimizer.shards(2 * WORKERS):
            model(torch.ones(2, 2)).mean().backward()

    compute()
    with pytest.raises(ValueError, match=r"no step\(\) has used"):
        compute()
    optimizer.step()
    for zero in (optimizer.zero_grad, model.zero_grad, lambda: optimizer.zero_grad(set_to_none=False)):
        compute()
        zero()
    compute()
    optimizer.step()


def check_that_a_loop_which_a_script_leaves_changes_nothing() -> None:
    """Nor does it later: a model that is loaded after it, or after one without a step, stays as it was loaded."""
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))
    optimizer = distributed(model, virtual_workers=hvd.VirtualWorkers(2 * WORKERS, model))
    x = torch.randn(4 * WORKERS, 2, generator=torch.Generator().manual_seed(1))

    def compute(shards: Any) -> None:
        for shard in shards:
            model(x[shard.rows]).square().mean().backward()

    def buffers() -> Any:
        return copy.deepcopy(dict(model.named_buffers()))

    compute(optimizer.shards(len(x)))
    optimizer.step()
    saved, loaded = copy.deepcopy((model.state_dict(), optimizer.state_dict())), buffers()
    compute(optimizer.shards(len(x)))
    optimizer.step()
    before = buffers()
    compute(itertools.islice(optimizer.shards(len(x)), 2))
    assert str(buffers()) == str(before)
    kept = optimizer.shards(len(x))
    compute(itertools.islice(kept, 1))
    for shards in (kept, optimizer.shards(len(x))):  # over neither is there a step; the first ends during the second
        compute(shards if shards is not kept else ())
        model.load_state_dict(saved[0])
        optimizer.load_state_dict(saved[1])
        fresh = optimizer.shards(len(x))
        next(fresh)
        assert str(buffers()) == str(loaded)
        kept.close()
        compute(fresh)
        optimizer.zero_grad()


def check_that_parameters_may_be_frozen_between_batches() -> None:
    """They stand still then, though nothing but ``shards()`` takes the gradient of the last batch away."""
    torch.manual_seed(3)
    layer = torch.nn.Linear(2, 1)
    optimizer = distributed(layer, virtual_workers=WORKERS)
    for is_trained in (True, False, True):
        layer.bias.requires_grad_(is_trained)
        before = layer.bias.detach().clone()
        for _ in optimizer.shards(2 * WORKERS):
            layer(torch.ones(2, 2)).sum().backward()
        optimizer.step()
        assert torch.equal(before, layer.bias) is not is_trained
    layer.bias.requires_grad_(False)
    shards = optimizer.shards(2 * WORKERS)
    next(shards)
    layer.bias.requires_grad_(True)
    layer(torch.ones(2, 2)).sum().backward()
    with pytest.raises(ValueError, match="thawed within the loop"):
        next(shards)


def check_that_batches_of_unequal_sizes_are_refused_on_all() -> None:
    torch.manual_seed(3)
    layer = torch.nn.Linear(2, 1)
    optimizer = distributed(layer, virtual_workers=WORKERS)

    def compute(rows: int) -> None:
        for _ in optimizer.shards(rows):
            layer(torch.ones(2, 2)).sum().backward()

    with pytest.raises(ValueError, match="at least one row"):
        compute(0)
    for _ in range(2):
        if hvd.size() > 1:
            with pytest.raises(ValueError, match=f"unlike batches .* {WORKERS} rows, .* {WORKERS + 1} rows, "):
                compute(WORKERS + hvd.rank())
        compute(2 * WORKERS)
        optimizer.step()


class Buffered(torch.nn.Linear):
    """A mask, a table, a running mean that is another tensor after each pass, and a count of passes."""

    mask: torch.Tensor
    table: torch.Tensor
    mean: torch.Tensor
    passes: torch.Tensor

    def __init__(self) -> None:
        super().__init__(4, 4)
        self.register_buffer("mask", torch.full((4,), -torch.inf))
        self.register_buffer("table", torch.rand(50))
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("passes", torch.tensor(0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """See ``Linear``."""
        y = super().forward(x)
        self.mean = 0.9 * self.mean + 0.1 * y.detach().mean(0)
        self.passes = self.passes + 1
        return y


def check_buffers_that_shards_replace_and_those_that_none_changes() -> None:
    torch.manual_seed(3)
    model = Buffered()
    table, mean = model.table.clone(), torch.zeros(4)
    optimizer = distributed(model, virtual_workers=hvd.VirtualWorkers(WORKERS + 3, model))
    for step, rows in enumerate((3 * WORKERS, 2, ROWS + 1)):  # in the second, some shards are empty
        x = torch.randn(rows, 4, generator=torch.Generator().manual_seed(step))
        mean = 0.9 * mean + 0.1 * torch.nn.functional.linear(x, model.weight, model.bias).detach().mean(0)
        for shard in optimizer.shards(rows):
            model(x[shard.rows]).square().mean().backward()
        optimizer.step()
        assert torch.equal(model.mask, torch.full((4,), -torch.inf))
        assert torch.equal(model.table, table)
        torch.testing.assert_close(model.mean, mean)
        assert model.passes == step + 1
        assert all(torch.equal(each, model.mean) for each in hvd.allgather_object(model.mean))


def check_gradients_that_are_given_by_hand() -> None:
    """One tensor for two parameters, and one element for all of a parameter, as ``torch.autograd.grad`` gives them."""
    first, second, third = params = [torch.nn.Parameter(torch.ones(3)) for _ in range(3)]
    optimizer: Any = hvd.DistributedOptimizer(torch.optim.SGD(params, lr=1.0), virtual_workers=WORKERS)
    x = torch.arange(2.0 * WORKERS * 3).reshape(-1, 3)
    for shard in optimizer.shards(len(x)):
        first.grad = second.grad = x[shard.rows].mean(0)
        third.grad = x[shard.rows].mean().expand(3)
    for param, expected in ((first, x.mean(0)), (second, x.mean(0)), (third, x.mean().expand(3))):
        torch.testing.assert_close(param.grad, expected)
    optimizer.zero_grad()
    if hasattr(first, "grad_dtype"):
        first.grad_dtype = torch.float64
        shards = optimizer.shards(len(x))
        next(shards)
        first.grad = torch.ones(3, dtype=torch.float64)
        with pytest.raises(ValueError, match="dtypes"):
            next(shards)


def check_that_a_script_may_fill_its_own_buffer_for_every_shard() -> None:
    """A tensor, views of a flat one, an array of NumPy's, and gradients that the script keeps."""
    x = torch.arange(2.0 * WORKERS * 3).reshape(-1, 3)
    own, flat, array = torch.zeros(3), torch.zeros(6), np.zeros(3, dtype=np.float32)
    kept: list[tuple[torch.Tensor, torch.Tensor]] = []

    def keep(mean: torch.Tensor) -> list[torch.Tensor]:
        kept.append((mean, mean.clone()))
        return [mean]

    kinds: dict[str, Callable[[torch.Tensor], list[torch.Tensor]]] = {
        "a tensor": lambda mean: [own.copy_(mean)],
        "another tensor of its memory": lambda mean: [own.copy_(mean).detach()],
        "views of one": lambda mean: list(flat.copy_(mean.repeat(2)).view(2, 3)),
        "an array": lambda mean: [torch.from_numpy(array).copy_(mean)],
        "kept": keep,
    }
    for kind, gradients_of in kinds.items():
        params = [torch.nn.Parameter(torch.ones(3)) for _ in range(2 if kind == "views of one" else 1)]
        optimizer: Any = hvd.DistributedOptimizer(torch.optim.SGD(params, lr=1.0), virtual_workers=WORKERS)
        for shard in optimizer.shards(len(x)):
            for param, grad in zip(params, gradients_of(x[shard.rows].mean(0)), strict=True):
                param.grad = grad
        for param in params:
            assert param.grad is not None
            assert torch.allclose(param.grad, x.mean(0)), kind
    for grad, before in kept:
        assert torch.equal(grad, before), "a gradient that the script keeps is its own"


def check_a_batch_with_fewer_rows_than_shards() -> None:
    model = torch.nn.Linear(2, 1)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    expected = copy.deepcopy(model)
    optimizer = distributed(model, virtual_workers=WORKERS + 2)
    x = torch.arange(6.0).reshape(3, 2)
    for shard in optimizer.shards(3):
        model(x[shard.rows]).pow(2).mean().backward()
    optimizer.step()
    expected(x).pow(2).mean().backward()
    torch.testing.assert_close(model.weight.grad, expected.weight.grad)


def check_what_virtual_workers_refuse() -> None:
    model = torch.nn.Linear(2, 1)
    refused: tuple[tuple[dict[str, Any], str], ...] = (
        ({"virtual_workers": 0}, "at least 1"),
        ({"virtual_workers": WORKERS, "compression": hvd.Compression.fp16}, "compression"),
        ({"virtual_workers": WORKERS, "op": hvd.Max}, "op is Average or Sum"),
        ({"virtual_workers": WORKERS, "backward_passes_per_step": 2}, "backward_passes_per_step"),
    )
    for options, text in refused:
        with pytest.raises(ValueError, match=text):
            distributed(model, **options)
    optimizer = distributed(model, virtual_workers=WORKERS)
    with pytest.raises(ValueError, match="needs virtual workers"):
        distributed(model).shards(3)
    with pytest.raises(ValueError, match=r"step\(\) after 0 of this worker's"):
        optimizer.step()
    with pytest.raises(ValueError, match=r"step\(closure\)"):
        optimizer.step(lambda: 0.0)
    if hvd.size() > 1:
        few = distributed(model, virtual_workers=1)
        with pytest.raises(ValueError, match=f"{hvd.size()} workers share 1 virtual workers"):
            list(few.shards(3))
        synced = hvd.SyncBatchNorm(2)
        optimizer = distributed(synced, virtual_workers=WORKERS)
        shards = optimizer.shards(2 * WORKERS)
        next(shards)
        with pytest.raises(ValueError, match="SyncBatchNorm within shards"):
            synced(torch.ones(2, 2))
        shards.close()
        synced(torch.rand(2, 2))
    sparse = torch.nn.Embedding(4, 2, sparse=True)
    optimizer = distributed(sparse, virtual_workers=WORKERS)
    shards = optimizer.shards(2 * WORKERS)
    next(shards)
    sparse(torch.tensor([1])).sum().backward()
    with pytest.raises(ValueError, match="sparse=False"):
        next(shards)


def check_one_rank_that_forgets_its_shards_is_everybodys_error() -> None:
    if hvd.size() == 1:
        return
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(2, 1), torch.nn.BatchNorm1d(1))
    optimizer = distributed(model, virtual_workers=hvd.VirtualWorkers(WORKERS, model))

    def compute() -> None:
        for _ in optimizer.shards(2 * WORKERS):
            model(torch.ones(2, 2)).mean().backward()

    last = hvd.rank() == hvd.size() - 1
    for _ in range(2):
        with pytest.raises(ValueError if last else hvd.HorovodInternalError, match="shards" if last else "raised"):
            (optimizer.step if last else compute)()
    compute()
    optimizer.step()


def check_that_sums_over_shards_keep_their_order() -> None:
    values = {Shards(i, i + 1): [torch.tensor([x])] for i, x in enumerate((1e8, 1.0, -1e8, 1.0))}
    [total] = shard_sums.add_tensors(tensors, Shards(0, 4), values)
    assert total.item() == 0.0, "(1e8 + 1) + (-1e8 + 1) in float32"
