"""Checks of what elastic training does in every kind of job: weights, samplers, states, generations."""

from __future__ import annotations

import itertools
import math
import random
import warnings
from typing import Any

import numpy as np
import pytest
import torch

import farandole.torch as hvd
from farandole.errors import UsageError
from farandole.largebatch.schedule import Schedule


class Numbers(torch.utils.data.Dataset[Any]):
    """Its sample i is i."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([float(index)])


def _linear() -> torch.nn.Linear:
    """One whose gradient is the mean of its inputs."""
    layer = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.constant_(layer.weight, 2.0)
    return layer


def check_gradients_are_the_mean_over_the_samples_however_uneven_the_ranks() -> None:
    for length, batch_size in ((7, 2), (1, 3), (2 * hvd.size() + 1, 1), (12 * hvd.size(), 5)):
        model, numbers = _linear(), Numbers(length)
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.0))
        sampler = hvd.elastic.ElasticSampler(numbers, seed=1)
        loader = hvd.elastic.DataLoader(numbers, batch_size, sampler=sampler)
        state = hvd.elastic.TorchState(model, optimizer, sampler=sampler)
        state.sync()
        seen = 0
        for x in loader:
            optimizer.zero_grad()
            model(x).mean().backward()
            [batch] = sampler.cursor.in_flight
            expected = sum(sampler.cursor.indices[batch.start : batch.stop]) / batch.samples
            assert model.weight.grad is not None
            assert math.isclose(model.weight.grad.item(), expected, rel_tol=1e-5), (model.weight.grad, expected)
            seen += len(sampler.cursor.own_indices())
            optimizer.step()
        assert hvd.allreduce(torch.tensor(seen), op=hvd.Sum).item() == sampler.processed_num == length


def check_a_sum_is_over_each_sample_once_where_a_rank_has_none() -> None:
    """Such a rank computes on a sample of another one, to have as many steps."""
    for passes in (1, 2):
        model, numbers = _linear(), Numbers(2 * hvd.size() + 1)  # the last batch has one sample
        options: Any = {"op": hvd.Sum, "backward_passes_per_step": passes}
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.0), **options)
        sampler = hvd.elastic.ElasticSampler(numbers, seed=1)
        state = hvd.elastic.TorchState(model, optimizer, sampler=sampler)
        state.sync()
        found = []
        loader = hvd.elastic.DataLoader(numbers, global_batch_size=2 * hvd.size(), sampler=sampler)
        for i, x in enumerate(loader, 1):
            model(x).sum().backward()
            if i % passes == 0:
                assert model.weight.grad is not None
                found.append(model.weight.grad.item())
                optimizer.step()
                optimizer.zero_grad()
        assert sum(found) == sum(range(len(numbers))), (passes, found)


def check_the_loss_of_a_closure_is_the_mean_over_the_samples_too() -> None:
    for length, batch_size in ((7, 2), (1, 3), (12 * hvd.size(), 5), (2 * hvd.size() + 1, 1)):
        model, numbers = _linear(), Numbers(length)
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.0))
        sampler = hvd.elastic.ElasticSampler(numbers, seed=1)
        hvd.elastic.TorchState(model, optimizer, sampler=sampler).sync()
        for x in hvd.elastic.DataLoader(numbers, batch_size, sampler=sampler):

            def closure(x: torch.Tensor = x, model: torch.nn.Module = model) -> torch.Tensor:
                model.zero_grad()
                loss: torch.Tensor = model(x).mean()
                loss.backward()
                return loss

            [batch] = sampler.cursor.in_flight
            expected = 2.0 * sum(sampler.cursor.indices[batch.start : batch.stop]) / batch.samples
            loss = optimizer.step(closure)
            assert math.isclose(loss.item(), expected, rel_tol=1e-5), (loss, expected)


def check_a_gradient_that_is_reduced_where_it_lies_is_weighed_there() -> None:
    length = 2 * hvd.size() + 1
    model, numbers = torch.nn.Linear(1, 64, bias=False), Numbers(length)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.0))
    sampler = hvd.elastic.ElasticSampler(numbers)
    hvd.elastic.TorchState(model, optimizer, sampler=sampler).sync()
    for x in hvd.elastic.DataLoader(numbers, 1, sampler=sampler):
        optimizer.zero_grad()
        model(x).sum(1).mean().backward()
        [batch] = sampler.cursor.in_flight
        mean = sum(sampler.cursor.indices[batch.start : batch.stop]) / batch.samples
        torch.testing.assert_close(model.weight.grad, torch.full((64, 1), mean))
        optimizer.step()


def check_each_pass_and_each_optimizer_weighs_the_samples_of_its_own_batch() -> None:
    for passes, global_batch_size in ((1, 2 * hvd.size() + 1), (2, 2 * hvd.size() + 1), (2, 0), (3, hvd.size() - 1)):
        length = (2 * passes - 1) * (global_batch_size or hvd.size()) + 1  # the last one is uneven
        models, numbers, rate = [_linear(), _linear()], Numbers(length), 1e-12
        optimizers: list[Any] = [
            hvd.DistributedOptimizer(torch.optim.SGD(m.parameters(), lr=rate), backward_passes_per_step=passes)
            for m in models
        ]
        schedule = hvd.SamplesLR(optimizers[1], Schedule(rate, 1, 1, 100.0), epoch_samples=length)
        sampler, tests = (hvd.elastic.ElasticSampler(each, seed=1) for each in (numbers, Numbers(hvd.size() + 1)))
        state = hvd.elastic.TorchState(models[0], optimizers[0], other=optimizers[1], sampler=sampler, tests=tests)
        state.sync()
        expected, taken = 0.0, 0
        loader = hvd.elastic.DataLoader(numbers, sampler=sampler, global_batch_size=global_batch_size)
        for i, x in enumerate(loader, 1):
            batch = sampler.cursor.in_flight[-1]
            expected += sum(sampler.cursor.indices[batch.start : batch.stop]) / batch.samples
            taken += batch.samples
            for model in models:
                [asked] = torch.autograd.grad(model(torch.ones(1, 1)).sum(), [model.weight])
                assert asked.item() == 1.0  # it is no part of the sum
                model(x).mean().backward()
            if i % passes == 0:
                for model, optimizer in zip(models, optimizers, strict=True):
                    grad = model.weight.grad
                    assert grad is not None
                    assert math.isclose(grad.item(), expected, rel_tol=1e-5), (passes, global_batch_size, i)
                    optimizer.step()
                    optimizer.zero_grad()
                    assert optimizer._reducer.samples == taken
                schedule.step()
                expected, taken = 0.0, 0
                with torch.no_grad():
                    assert all(len(x) for x in hvd.elastic.DataLoader(Numbers(hvd.size() + 1), sampler=tests))
        assert schedule.position.samples == sampler.processed_num


def check_two_optimizers_of_one_parameter_weigh_each_pass_once() -> None:
    length, model = 2 * hvd.size() + 1, _linear()
    numbers = Numbers(length)
    optimizers: list[Any] = [
        hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.0), backward_passes_per_step=2)
        for _ in range(2)
    ]
    sampler = hvd.elastic.ElasticSampler(numbers, seed=1)
    state = hvd.elastic.TorchState(model, optimizers[0], other=optimizers[1], sampler=sampler)
    state.sync()
    expected = 0.0
    for x in hvd.elastic.DataLoader(numbers, sampler=sampler, global_batch_size=2 * hvd.size()):
        batch = sampler.cursor.in_flight[-1]
        expected += sum(sampler.cursor.indices[batch.start : batch.stop]) / batch.samples
        model(x).mean().backward()
    assert model.weight.grad is not None
    assert math.isclose(model.weight.grad.item(), expected, rel_tol=1e-5), (model.weight.grad, expected)
    for optimizer in optimizers:
        optimizer.step()


def check_a_parameter_may_be_frozen_before_its_backward_pass() -> None:
    numbers, model = Numbers(2 * hvd.size()), _linear()
    optimizer: Any = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.0), backward_passes_per_step=2)
    sampler = hvd.elastic.ElasticSampler(numbers)
    hvd.elastic.TorchState(model, optimizer, sampler=sampler).sync()
    for x in hvd.elastic.DataLoader(numbers, sampler=sampler, global_batch_size=hvd.size()):
        loss = model(x).mean()
        model.weight.requires_grad_(False)
        loss.backward()
        model.weight.requires_grad_(True)
    assert model.weight.grad is None


def check_a_schedule_advances_alike_where_a_rank_leaves_out_a_pass() -> None:
    rate, passes = 1e-12, 2
    numbers, model = Numbers(8 * passes * hvd.size()), _linear()
    optimizer: Any = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=rate), backward_passes_per_step=passes
    )
    schedule = hvd.SamplesLR(optimizer, Schedule(rate, 1, 1, 100.0), epoch_samples=len(numbers))
    sampler = hvd.elastic.ElasticSampler(numbers)
    state = hvd.elastic.TorchState(model, optimizer, sampler=sampler)
    state.sync()
    for i, x in enumerate(hvd.elastic.DataLoader(numbers, sampler=sampler, global_batch_size=2 * hvd.size()), 1):
        if hvd.rank() == 0 or i % 3:
            model(x).mean().backward()
        if i % passes == 0:
            optimizer.step()
            schedule.step()
            assert schedule.position.samples == sampler.processed_num == 2 * i * hvd.size()


def check_a_sampler_of_plain_loaders_is_as_in_horovod() -> None:
    length = max(10, hvd.size() + 1)
    numbers = Numbers(length)
    sampler = hvd.elastic.ElasticSampler(numbers, shuffle=False)
    assert next(iter(sampler)) == hvd.rank()
    assert len(sampler) == len(list(sampler)) == sampler.num_samples == -(-length // hvd.size())
    assert (sampler.rank, sampler.num_replicas, sampler.epoch) == (hvd.rank(), hvd.size(), 0)
    sampler.record_batch(0, 2)
    assert sampler.processed_num == min(length, 2 * hvd.size())
    assert list(sampler.remaining_indices) == list(range(sampler.processed_num, length))
    other = hvd.elastic.ElasticSampler(numbers, shuffle=False)
    other.load_state_dict(sampler.state_dict())
    assert list(other) == list(sampler)
    sampler.set_epoch(1)
    assert sampler.processed_num == 0
    assert sampler.total_size >= length


class Noisy(Numbers):
    """Its sample i is i, and what the process that loads it draws."""

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([float(index), torch.rand(()), random.random(), np.random.random()], dtype=torch.float64)


def _drawn(position: int = 0, **options: Any) -> dict[int, list[float]]:
    """What the processes of a loader have drawn for each sample that this rank gets from ``position`` on."""
    noisy = Noisy(8 * hvd.size())
    sampler = hvd.elastic.ElasticSampler(noisy, seed=2)
    hvd.elastic.ObjectState(sampler=sampler).sync()
    sampler.cursor.position = position
    loader = hvd.elastic.DataLoader(noisy, global_batch_size=2 * hvd.size(), sampler=sampler, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # newer Pythons warn of any fork where threads run
        return {int(row[0]): row[1:].tolist() for rows in loader for row in rows}


def check_loader_processes_draw_other_numbers_on_each_rank_and_the_same_after_a_fault() -> None:
    drawn = _drawn(num_workers=2)
    assert _drawn(num_workers=2) == drawn
    everybody = [number for each in hvd.allgather_object(drawn) for numbers in each.values() for number in numbers]
    assert len(set(everybody)) == len(everybody) == 3 * 8 * hvd.size()


def check_loader_processes_draw_the_same_numbers_for_virtual_workers_whoever_is_there() -> None:
    drawn = _drawn(num_workers=1, whole=True)
    assert len({number for numbers in drawn.values() for number in numbers}) == 3 * len(drawn)
    late = _drawn(position=4 * hvd.size(), num_workers=2, whole=True)
    assert late == {index: drawn[index] for index in late}
    assert len(late) == 4 * hvd.size()
    assert hvd.allgather_object(drawn) == [drawn] * hvd.size()


def check_a_loader_refuses_what_the_sampler_decides_and_old_iterators() -> None:
    numbers = Numbers(12)
    sampler = hvd.elastic.ElasticSampler(numbers)
    wrong: list[dict[str, Any]] = [{"shuffle": True}, {"drop_last": True}, {"batch_size": 0}]
    for arguments in wrong:
        with pytest.raises(UsageError):
            hvd.elastic.DataLoader(numbers, sampler=sampler, **arguments)
    loader = hvd.elastic.DataLoader(numbers, global_batch_size=4, sampler=sampler)
    assert len(loader) == 3
    iterator = iter(loader)
    next(iterator)
    sampler.set_epoch(1)
    with pytest.raises(UsageError, match="begin a new one"):
        next(iterator)
    x = next(iter(loader))
    assert len(x) == len(sampler.cursor.in_flight[0].computed(hvd.rank(), hvd.size()))


def check_a_state_is_that_of_the_newest_rank_with_all_that_adam_has() -> None:
    torch.manual_seed(hvd.rank())
    model: Any = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1))
    optimizer = hvd.DistributedOptimizer(torch.optim.Adam(model.parameters()))
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    state: Any = hvd.elastic.TorchState(model, optimizer, schedule=schedule, log=[])
    state.sync()
    _same(model)
    model(torch.randn(4, 3)).sum().backward()
    optimizer.step()
    schedule.step()
    state.log.append("a step")
    last = hvd.size() - 1
    if hvd.rank() == last:
        for values in optimizer.state.values():
            values["exp_avg"].fill_(7.0)
        with torch.no_grad():
            model[0].weight.fill_(3.0)
        schedule.step()
        state.log.append("one more")
        state._step_vote.step += 1
    else:
        optimizer.state.clear()  # as in a worker that has just come
    state.sync()
    _same(model)
    assert (model[0].weight == 3.0).all()
    assert all((values["exp_avg"] == 7.0).all() for values in optimizer.state.values())
    assert len(optimizer.state) == 6
    assert state.log == ["a step", "one more"]
    assert optimizer.param_groups[0]["lr"] == schedule.get_last_lr()[0] == 1e-3 / 4
    assert state._step_vote.step == 2


def _same(model: torch.nn.Module) -> None:
    flat = torch.cat([p.detach().flatten() for p in model.parameters()])
    every = hvd.allgather(flat[None])
    assert (every == every[0]).all()


def check_what_does_not_vote_is_copied() -> None:
    for make in (
        lambda params: torch.optim.SGD(params, lr=0.5),
        lambda params: hvd.DistributedOptimizer(torch.optim.LBFGS(params, lr=0.5)),
        lambda params: hvd.DistributedOptimizer(torch.optim.SGD(params, lr=0.5), op=hvd.Adasum),
    ):
        model = _linear()
        state: Any = hvd.elastic.TorchState(model, make(model.parameters()), batch=0)
        state.sync()
        state.batch = 1
        state.commit()
        with torch.no_grad():
            model.weight.zero_()
        state.batch = 2
        drawn = torch.rand(3)
        state.restore()
        assert (model.weight.item(), state.batch) == (2.0, 1)
        assert torch.equal(torch.rand(3), drawn)


def check_training_goes_on_after_the_next_generation_has_begun() -> None:
    torch.manual_seed(0)
    model, numbers = _linear(), Numbers(16)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9))
    sampler = hvd.elastic.ElasticSampler(numbers)
    loader = hvd.elastic.DataLoader(numbers, global_batch_size=4, sampler=sampler)
    state: Any = hvd.elastic.TorchState(model, optimizer, sampler=sampler, calls=0)

    @hvd.elastic.run
    def train(state: Any) -> int:
        state.calls += 1
        for x in loader:
            optimizer.zero_grad()
            model(x).mean().backward()
            optimizer.step()
            if sampler.processed_num == 8 and state.calls == 1:
                state.commit()
                raise hvd.elastic.HostsUpdatedInterrupt
        return int(state.calls)

    assert train(state) == 2
    assert sampler.processed_num == 16
    assert state._step_vote.step == 4
    _same(model)


def check_statistics_that_shards_have_changed_are_restored_with_the_rest() -> None:
    """After a fault in the loop over the shards, and between it and ``step()``; where steps are voted, and not."""
    for votes, is_in_loop in itertools.product((True, False), (True, False)):
        torch.manual_seed(1)
        model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))
        virtual = hvd.VirtualWorkers(2 * hvd.size(), model)
        optimizer: Any = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1), virtual_workers=virtual)
        others = {} if votes else {"other": torch.optim.SGD([torch.zeros(1, requires_grad=True)], 0.1)}
        state: Any = hvd.elastic.TorchState(model, optimizer, calls=0, **others)
        x = torch.randn(4 * hvd.size(), 2, generator=torch.Generator().manual_seed(1))
        due: list[str] = []

        def compute(fails: bool, now: Any = (model, optimizer, x)) -> None:
            model, optimizer, x = now
            for shard in optimizer.shards(len(x)):
                model(x[shard.rows]).square().mean().backward()
                if fails:
                    raise hvd.HorovodInternalError("a fault")

        @hvd.elastic.run
        def train(state: Any, now: Any = (votes, is_in_loop, model, optimizer, due, compute)) -> str:
            votes, is_in_loop, model, optimizer, due, compute = now
            if due:
                return repr(dict(model.named_buffers()))
            compute(fails=False)
            optimizer.step()
            state.commit()
            if not votes:
                due.append(repr(dict(model.named_buffers())))
            compute(fails=False)
            optimizer.step()
            due[:] = due or [repr(dict(model.named_buffers()))]
            compute(fails=is_in_loop)
            raise hvd.HorovodInternalError("a fault")

        assert train(state) == due[0], (votes, is_in_loop)
