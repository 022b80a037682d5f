"""Checks of what is done about ranks that step with different numbers."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch

import farandole.torch as hvd
from farandole import DivergenceError
from farandole.adapters.torch_tensors import tensors
from farandole.gradients.agreement import Agreed
from farandole.gradients.snapshots import EVERY, FIRST_STEPS, StepSnapshots
from farandole.torch.memory import DirectBucket


def network(size: int = 4) -> torch.nn.Linear:
    """The same on every rank."""
    layer = torch.nn.Linear(size, 2)
    hvd.broadcast_parameters(layer.state_dict(), root_rank=0)
    return layer


def train(layer: torch.nn.Linear, optimizer: Any, steps: int, change: Callable[[int], object]) -> None:
    """Steps on data of each rank's own; ``change`` comes between backward and step."""
    for step in range(steps):
        optimizer.zero_grad()
        layer(torch.randn(3, layer.in_features)).sum().backward()
        change(step)
        optimizer.step()


def distribute(layer: torch.nn.Module, **more: Any) -> Any:
    """A distributed optimizer that names its parameters."""
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    return hvd.DistributedOptimizer(optimizer, named_parameters=layer.named_parameters(), **more)


def is_last() -> bool:
    """True on one rank."""
    return hvd.rank() == hvd.size() - 1


def diverges(match: str, run: Callable[[], object]) -> None:
    """Runs it; it must raise where there are several ranks."""
    if hvd.size() == 1:
        run()
        return
    with pytest.raises(DivergenceError, match=match):
        run()


def check_a_gradient_that_one_rank_changes() -> None:
    layer = network()
    optimizer = distribute(layer)

    def change(step: int) -> None:
        if step == 2 and is_last():
            assert layer.bias.grad is not None
            layer.bias.grad[1] += 1e-6

    diverges(
        r"rank 0 on .* and rank \d+ on .*: 'gradient of bias' differs at step 2",
        lambda: train(layer, optimizer, 5, change),
    )


def check_a_change_after_the_first_steps_is_found_in_the_parameters() -> None:
    layer = network(40_000)
    optimizer = distribute(layer)

    def change(step: int) -> None:
        if step == FIRST_STEPS + 1 and is_last():
            with torch.no_grad():
                layer.weight[1, 12_345] += 1.0  # one element of 80,000: not in every sample

    diverges("'weight' differs at step", lambda: train(layer, optimizer, FIRST_STEPS + 12 * EVERY, change))


def check_parameters_that_nobody_broadcast() -> None:
    layer = torch.nn.Linear(4, 2)
    with torch.no_grad():
        layer.weight.fill_(hvd.rank())
    optimizer = distribute(layer)
    diverges(
        "'weight' differs before the first step.*Call broadcast_parameters", lambda: train(layer, optimizer, 2, id)
    )


def check_after_join_the_last_rank_has_the_weights() -> None:
    layer = network()
    optimizer = distribute(layer)
    train(layer, optimizer, 3 + hvd.rank(), id)
    last = hvd.join()
    if hvd.size() > 1:
        assert last == hvd.size() - 1
    diverges("after a join", lambda: train(layer, optimizer, 2, id))
    optimizer = distribute(layer)
    hvd.broadcast_parameters(layer.state_dict(), root_rank=last)
    train(layer, optimizer, 3, id)


def check_ranks_that_have_joined_are_not_compared() -> None:
    layer = network()
    optimizer = distribute(layer)
    train(layer, optimizer, 3 + 3 * hvd.rank(), id)
    hvd.broadcast_parameters(layer.state_dict(), root_rank=hvd.join())
    train(layer, optimizer, 3 + 3 * (hvd.size() - hvd.rank()), id)
    hvd.broadcast_parameters(layer.state_dict(), root_rank=hvd.join())


def check_adasum_with_other_parameters() -> None:
    layer = torch.nn.Linear(4, 2)
    with torch.no_grad():
        layer.bias.fill_(hvd.rank())
        layer.weight.fill_(1.0)
    optimizer = distribute(layer, op=hvd.Adasum)
    diverges("'bias' differs before the first step", lambda: train(layer, optimizer, 2, id))


def check_virtual_workers_with_other_parameters() -> None:
    layer = torch.nn.Linear(4, 2)
    with torch.no_grad():
        layer.weight.fill_(hvd.rank())
    workers = max(4, hvd.size())
    optimizer: Any = hvd.DistributedOptimizer(torch.optim.SGD(layer.parameters(), lr=0.1), virtual_workers=workers)

    def run() -> None:
        for _ in range(2):
            for shard in optimizer.shards(2 * workers):
                layer(torch.ones(2 * workers, 4)[shard.rows]).sum().backward()
            optimizer.step()

    diverges("'parameter 0' differs before the first step", run)


def check_a_process_set_compares_its_own() -> None:
    if hvd.size() < 3:
        return
    pair = hvd.add_process_set([0, 1])
    layer = torch.nn.Linear(4, 2)
    with torch.no_grad():
        layer.weight.fill_(1.0 if hvd.rank() < 2 else 2.0)
        layer.bias.fill_(0.0)
    if pair.included():
        train(layer, distribute(layer, process_set=pair), 3, id)
    hvd.barrier()
    hvd.remove_process_set(pair)


def check_memory_formats_and_views_do_not_count() -> None:
    """Two ranks whose tensors lie differently in memory hold the same numbers."""
    weight = torch.arange(2 * 3 * 4 * 5, dtype=torch.float32).reshape(2, 3, 4, 5)
    if is_last():
        weight = weight.to(memory_format=torch.channels_last)
    snapshots = StepSnapshots(tensors)
    assert snapshots.is_due()
    taken = snapshots.digest(lambda: [("weight", weight), ("complex", torch.ones(3, dtype=torch.complex64).conj())])
    assert taken is not None
    assert len(set(hvd.allgather_object(taken.mark))) == 1


def check_rounding_of_other_processors_is_a_warning() -> None:
    if hvd.size() != 2:
        return
    layer = network()
    optimizer = distribute(layer)
    threads = torch.get_num_threads()
    torch.set_num_threads(1 + hvd.rank())  # another kind

    def change(step: int) -> None:
        if step == 2 and is_last():
            assert layer.bias.grad is not None
            layer.bias.grad[1] += 1e-6

    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            train(layer, optimizer, 6, change)
    finally:
        torch.set_num_threads(threads)
    assert [str(each.message) for each in caught if "rounding may explain" in str(each.message)]
    assert len(caught) == 1


# The mending of what was once wrong, taken out again: the detector must find it all the same.


@contextmanager
def unmended(owner: type, **old: Any) -> Iterator[None]:
    """Inside, a class does things as it did before."""
    with pytest.MonkeyPatch.context() as patch:
        for name, function in old.items():
            patch.setattr(owner, name, function)
        yield


def hand_out_views(self: DirectBucket, agreed: Agreed) -> None:
    """Make views of the bucket the gradients, as before."""
    self._targets = []
    for piece, param, view in zip(self.pieces, self.params, self._views, strict=True):
        if agreed.kinds[piece] == 1 and param.grad is not view:
            param.grad = view


def take_views_for_granted(self: DirectBucket, gradients: Sequence[torch.Tensor | None]) -> None:
    """Copy what is no view, by the tensor object, as before."""
    for gradient, view in zip(gradients, self._views, strict=True):
        if gradient is None:
            view.zero_()
        elif gradient is not view:
            view.copy_(gradient)


def check_gradient_data_that_is_assigned() -> None:
    layer = network()
    optimizer = distribute(layer)

    def clamp(_: int) -> None:
        for param in layer.parameters():
            assert param.grad is not None
            param.grad.data = param.grad.data.clamp(-1, 1)

    def run() -> None:
        for step in range(4):
            optimizer.zero_grad(set_to_none=False)
            (layer(torch.randn(3, 4)).sum() * (1 + hvd.rank())).backward()
            clamp(step)
            optimizer.step()

    run()
    with unmended(DirectBucket, publish=hand_out_views, _fill=take_views_for_granted):
        diverges("'gradient of weight' differs at step", run)


def check_gradients_that_are_kept_aside() -> None:
    layer = network()
    optimizer = distribute(layer)

    def run() -> None:
        kept = []
        for factor in (1.0, -2.0):
            optimizer.zero_grad()
            (layer(torch.ones(3, 4)).sum() * factor).backward()
            kept.append([param.grad for param in layer.parameters()])
        assert sum(float((a * b).sum()) for a, b in zip(*kept, strict=True)) < 0

    run()
    with unmended(DirectBucket, publish=hand_out_views, _fill=take_views_for_granted):
        diverges("'weight' that was kept from an earlier backward pass has been overwritten", run)
