"""Checks of optimizers whose state ranks share out: beside the replicated one, to the last bit."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import farandole.torch as hvd
from farandole.errors import UsageError
from farandole.torch import optim

Make = Callable[[Any], torch.optim.Optimizer]
OPTIMIZERS: dict[str, Make] = {
    "sgd": lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9, weight_decay=0.01),
    "adam": lambda params: torch.optim.Adam(params, lr=0.01, amsgrad=True),
    "adamw": lambda params: torch.optim.AdamW(params, lr=0.01),
    "fused adamw": lambda params: torch.optim.AdamW(params, lr=0.01, fused=True),
    "rmsprop": lambda params: torch.optim.RMSprop(params, lr=0.01, momentum=0.5, centered=True),
    "adagrad": lambda params: torch.optim.Adagrad(params, lr=0.01),
    "nadam": lambda params: torch.optim.NAdam(params, lr=0.01),
    "adafactor": lambda params: torch.optim.Adafactor(params, lr=0.01, eps=(1e-7, 1e-3)),
    "lamb": lambda params: optim.LAMB(params, lr=0.01),
    "rmsprop warm-up": lambda params: optim.RMSpropWarmupSGD(params, lr=0.05, steps_per_epoch=1, center=2, period=2),
    "larc": lambda params: optim.LARC(torch.optim.SGD(params, lr=0.1, momentum=0.9)),
}


class Net(torch.nn.Module):
    """Weights of several shapes and dtypes, one without a gradient at first, one that is frozen, one by columns."""

    def __init__(self, least: int = 0) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.first, self.last = torch.nn.Linear(37, 301), torch.nn.Linear(301, 3)
        self.short = torch.nn.Linear(3, 5).to(torch.bfloat16)
        self.columns = torch.nn.Parameter(torch.rand(5, 7).t())
        self.late = torch.nn.Parameter(torch.rand(3))
        self.frozen = torch.nn.Parameter(torch.rand(130), requires_grad=False)
        self.empty = torch.nn.Parameter(torch.ones(least))

    def loss(self, step: int) -> torch.Tensor:
        """A loss of inputs that differ between ranks and steps."""
        generator = torch.Generator().manual_seed(100 * step + hvd.rank())
        hidden = self.last(torch.relu(self.first(torch.rand(8, 37, generator=generator))))
        out = self.short(hidden.to(torch.bfloat16)).float() @ self.columns.t()
        late = (hidden * self.late).sum() if step > 1 else 0.0
        found: torch.Tensor = out.square().mean() + 0.01 * late + self.empty.sum()
        return found


def _trained(make: Make, steps: range, model: Net, optimizer: Any, clip: bool = True) -> None:
    for step in steps:
        optimizer.zero_grad()
        model.loss(step).backward()
        if clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()


def _groups(model: Net) -> list[dict[str, Any]]:
    biases = [model.first.bias, model.last.bias]
    listed = set(map(id, biases))
    return [{"params": [p for p in model.parameters() if id(p) not in listed]}, {"params": biases, "lr": 0.003}]


def _distributed(make: Make, model: Net, shard_state: bool, **options: Any) -> Any:
    optimizer = make(_groups(model))
    return hvd.DistributedOptimizer(optimizer, model.named_parameters(), shard_state=shard_state, **options)


def _same(one: torch.nn.Module, other: torch.nn.Module, what: object) -> None:
    for (name, a), b in zip(one.named_parameters(), other.parameters(), strict=True):
        assert a.dtype == b.dtype
        assert torch.equal(a, b), (what, name)


def _same_tree(one: Any, other: Any, where: str = "") -> None:
    if isinstance(one, dict):
        assert list(one) == list(other) or one.keys() == other.keys(), where
        for key in one:
            _same_tree(one[key], other[key], f"{where}.{key}")
    elif isinstance(one, torch.Tensor):
        assert one.shape == other.shape, where
        assert one.dtype == other.dtype, where
        assert torch.equal(one, other), where
    elif isinstance(one, list | tuple):
        for i, pair in enumerate(zip(one, other, strict=True)):
            _same_tree(*pair, f"{where}.{i}")
    else:
        assert one == other, where


def check_weights_and_states_are_those_of_the_replicated_optimizer() -> None:
    for name, make in OPTIMIZERS.items():
        least = int(name == "adafactor")  # it divides by the number of elements
        models = Net(least), Net(least)
        whole, shared = (_distributed(make, model, shard) for model, shard in zip(models, (False, True), strict=True))
        for model, optimizer in zip(models, (whole, shared), strict=True):
            _trained(make, range(4), model, optimizer)
        _same(*models, name)
        shared.consolidate_state_dict(to=None)
        _same_tree(whole.state_dict(), shared.state_dict(), name)


def check_each_rank_keeps_its_part_of_the_state() -> None:
    model, other = Net(), Net()
    whole, shared = _distributed(OPTIMIZERS["adamw"], model, False), _distributed(OPTIMIZERS["adamw"], other, True)
    for each, optimizer in ((model, whole), (other, shared)):
        _trained(OPTIMIZERS["adamw"], range(2), each, optimizer)
    assert _kept(shared) <= _kept(whole) * (1 / hvd.size() + 0.05), (_kept(shared), _kept(whole))
    assert sum(hvd.allgather_object(_kept(shared), name="kept")) >= _kept(whole)


def _kept(optimizer: Any) -> int:
    states = (value for state in optimizer.state.values() for value in state.values())
    return sum(value.numel() for value in states if isinstance(value, torch.Tensor))


def check_with_replicas_weights_and_states_are_those_of_the_replicated_optimizer() -> None:
    """Where steps are voted; each part is on two ranks, which have the same bits of it."""
    for name, make in OPTIMIZERS.items():
        least = int(name == "adafactor")
        models = Net(least), Net(least)
        whole, shared = _distributed(make, models[0], False), _distributed(make, models[1], True, replicas=2)
        states = [hvd.elastic.TorchState(*pair) for pair in zip(models, (whole, shared), strict=True)]
        for model, optimizer in zip(models, (whole, shared), strict=True):
            _trained(make, range(4), model, optimizer)
        _same(*models, name)
        assert [state._step_vote.step for state in states] == [4, 4]
        if hvd.size() > 2:
            total, mine = shared.parts_here
            assert (total, len(mine)) == (hvd.size(), 2)
            found = hvd.allgather_object({part: _kept_part(shared, part) for part in mine}, name="parts")
            for part in range(total):
                one, other = (each[part] for each in found if part in each)
                _same_tree(one, other, f"{name}: part {part}")
        assert name != "adamw" or _kept(shared) <= _kept(whole) * (min(1.0, 2 / hvd.size()) + 0.05)
        shared.consolidate_state_dict(to=None)
        _same_tree(whole.state_dict(), shared.state_dict(), name)


def _kept_part(optimizer: Any, number: int) -> Any:
    return copy.deepcopy(optimizer.part(number, ahead=False))


def check_replicas_without_a_vote_are_without_effect_and_wrong_ones_are_refused() -> None:
    model = Net()
    one, two = (_distributed(OPTIMIZERS["adam"], Net(), True, replicas=replicas) for replicas in (1, 2))
    for optimizer in (one, two):
        _trained(OPTIMIZERS["adam"], range(1), model, optimizer)
    assert _kept(one) == _kept(two)
    for replicas in (0, 3):
        with pytest.raises(UsageError, match=f"replicas={replicas}: use 1, or 2"):
            hvd.DistributedOptimizer(_sgd(model), shard_state=True, replicas=replicas)
    with pytest.raises(UsageError, match="replicas=2 without shard_state"):
        hvd.DistributedOptimizer(_sgd(model), replicas=2)
    with pytest.raises(UsageError, match="a group of several dtypes"):
        hvd.DistributedOptimizer(torch.optim.Adafactor(Net(1).parameters()), shard_state=True, replicas=2)


def check_a_script_cannot_change_a_state_that_is_in_parts() -> None:
    model = Net()
    optimizer = _distributed(OPTIMIZERS["adam"], model, True)
    optimizer.state.pop(model.first.weight, None)  # nothing is there yet
    _trained(OPTIMIZERS["adam"], range(2), model, optimizer)
    change: list[Callable[[Any], Any]] = [
        lambda state: state.pop(model.first.weight, None),
        lambda state: state.__setitem__(model.first.weight, {}),
        lambda state: state.__delitem__(model.first.weight),
    ]
    for each in change if hvd.size() > 1 else ():
        with pytest.raises(UsageError, match=r"consolidate_state_dict\(to=None\) on every rank"):
            each(optimizer.state)
    optimizer.consolidate_state_dict(to=None)
    state = optimizer.state_dict()
    if hvd.size() == 1:
        assert optimizer.state.pop(model.first.weight)
        return
    state["state"].pop(0)  # as the error says
    optimizer.load_state_dict(state)
    assert float(optimizer.state.pop(model.first.bias)["step"]) == 2
    _trained(OPTIMIZERS["adam"], range(2, 3), model, optimizer)
    optimizer.consolidate_state_dict(to=None)
    steps = {float(state["step"]) for state in optimizer.state_dict()["state"].values()}
    assert 1.0 in steps, "the state that was removed has begun anew"


def check_a_state_goes_on_in_either_kind_of_optimizer_and_over_the_ranks() -> None:
    """Saved of one kind, loaded into the other; by rank 0 alone and broadcast, too."""
    make = OPTIMIZERS["adamw"]
    for before, after, how in ((True, False, "all"), (False, True, "all"), (True, True, "root"), (True, True, "again")):
        straight, model = Net(), Net()
        reference, optimizer = _distributed(make, straight, False), _distributed(make, model, before)
        _trained(make, range(3), straight, reference)
        _trained(make, range(2), model, optimizer)
        if before and hvd.size() > 1:
            with pytest.raises(UsageError, match="consolidate_state_dict"):
                optimizer.state_dict()
        if before:
            optimizer.consolidate_state_dict(to=0 if how == "root" else None)
        state = copy.deepcopy(optimizer.state_dict()) if how != "root" or hvd.rank() == 0 else None
        del optimizer
        goes_on = Net()
        goes_on.load_state_dict(model.state_dict())
        optimizer = _distributed(make, goes_on, after)
        if how == "root":
            if state is not None:
                optimizer.load_state_dict(state)
            hvd.broadcast_optimizer_state(optimizer, root_rank=0)
        else:
            optimizer.load_state_dict(state)
        if how == "again":
            optimizer.load_state_dict(optimizer.state_dict())
        _trained(make, range(2, 3), goes_on, optimizer)
        _same(straight, goes_on, (before, after, how))


def check_a_fresh_one_is_broadcast_and_a_checkpoint_restored() -> None:
    make, model, straight = OPTIMIZERS["adam"], Net(), Net()
    optimizer, reference = _distributed(make, model, True), _distributed(make, straight, False)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    _trained(make, range(2), model, optimizer)
    _trained(make, range(3), straight, reference)
    folder = Path(hvd.broadcast_object(tempfile.mkdtemp(), name="folder"))
    optimizer.consolidate_state_dict(to=None)
    with hvd.Checkpoints(folder, sharded=True) as checkpoints:
        checkpoints.save(1, {"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    with hvd.Checkpoints(folder, sharded=True) as checkpoints:
        found = checkpoints.restore()
        assert found is not None
    again = Net()
    again.load_state_dict(found.state["model"])
    optimizer = _distributed(make, again, True)
    optimizer.load_state_dict(found.state["optimizer"])
    _trained(make, range(2, 3), again, optimizer)
    _same(straight, again, "restored")


def check_parameters_groups_rates_and_hooks_may_come_later() -> None:
    make = OPTIMIZERS["adamw"]
    models, seen = (Net(), Net()), list[float]()
    for model, shard in zip(models, (False, True), strict=True):
        optimizer = make(list(model.last.parameters()))
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
        optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), shard_state=shard)
        optimizer.register_step_pre_hook(lambda *_, m=model: seen.append(m.last.weight.sum().item()))
        optimizer.register_step_post_hook(lambda *_, m=model: seen.append(m.last.weight.sum().item()))
        for step in range(4):
            if step == 1:
                optimizer.add_param_group({"params": list(model.first.parameters()), "lr": 0.02})
            if step == 2:
                optimizer.param_groups[0]["params"].append(model.columns)
                model.last.weight.data = model.last.weight.data.clone()
            optimizer.zero_grad(set_to_none=step % 2 == 0)
            model.loss(step).backward()
            optimizer.step()
            scheduler.step()
        assert [len(group["params"]) for group in optimizer.param_groups] == [3, 2]
    _same(*models, "later")
    assert len(seen) == 16
    assert seen[:8] == seen[8:]


def check_scaled_losses_and_lagging_gradients_are_as_ever() -> None:
    make = OPTIMIZERS["sgd"]
    for kind in ("scaler", "lag", "passes"):
        models = Net(), Net()
        for model, shard in zip(models, (False, True), strict=True):
            options = {"backward_passes_per_step": 2} if kind == "passes" else {}
            optimizer = _distributed(make, model, shard, **options)
            scaler = torch.amp.GradScaler("cpu") if kind == "scaler" else None
            if kind == "lag":
                optim.GradientLag(optimizer, 1)
            for step in range(4):
                optimizer.zero_grad()
                for part in range(2 if kind == "passes" else 1):
                    loss = model.loss(2 + step + part)
                    if kind == "scaler" and step == 2 and hvd.rank() == 0:
                        loss = loss * float("inf")
                    (loss if scaler is None else scaler.scale(loss)).backward()
                if scaler is None:
                    optimizer.step()
                else:
                    scaler.step(optimizer)
                    scaler.update()
        _same(*models, kind)


def check_a_parameter_larger_than_the_memory_it_travels_through() -> None:
    from farandole.torch import state_shards

    state_shards.CHUNK_BYTES, kept = 1024, state_shards.CHUNK_BYTES
    try:
        models = Net(), Net(), Net()
        for model, (shard, replicas) in zip(models, ((False, 1), (True, 1), (True, 2)), strict=True):
            optimizer = _distributed(OPTIMIZERS["sgd"], model, shard, replicas=replicas)
            state = hvd.elastic.TorchState(model, optimizer) if replicas == 2 else None
            _trained(OPTIMIZERS["sgd"], range(3), model, optimizer)
            del state
        _same(*models[:2], "in rounds")
        _same(*models[1:], "in rounds and twice")
    finally:
        state_shards.CHUNK_BYTES = kept


def check_what_cannot_be_shared_out_is_refused() -> None:
    model = torch.nn.Linear(3, 3)
    make: Any = torch.optim.LBFGS
    refused: list[tuple[str, Callable[[], Any]]] = [
        ("LBFGS", lambda: hvd.DistributedOptimizer(make(model.parameters()), shard_state=True)),
        ("Adasum", lambda: hvd.DistributedOptimizer(_sgd(model), op=hvd.Adasum, shard_state=True)),
        ("virtual_workers", lambda: hvd.DistributedOptimizer(_sgd(model), virtual_workers=4, shard_state=True)),
    ]
    for text, call in refused:
        with pytest.raises(UsageError, match=text):
            call()
    if hvd.size() > 1:
        optimizer = hvd.DistributedOptimizer(_sgd(model), shard_state=True)
        with pytest.raises(UsageError, match="an optimizer of shard_state"):
            hvd.join()
        with pytest.raises(UsageError, match="closure"):
            optimizer.step(closure=partial(float, 1.0))


class PerTensor(torch.optim.Optimizer):
    """A rate of each tensor's own, as a user writes it; frees gradients, and keeps something of no parameter."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 0.1})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        kept: Any = self.state
        kept["global"]["steps"] = kept["global"].get("steps", 0) + 1
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is not None:
                    self.state[param]["norm"] = param.grad.norm()
                    param.sub_(param.grad / (1.0 + self.state[param]["norm"]), alpha=group["lr"])
                    param.grad = None


def check_an_optimizer_of_ones_own_is_shared_out_by_tensor_if_one_says_so() -> None:
    models = Net(1), Net(1)
    with pytest.raises(UsageError, match="'by tensor'"):
        hvd.DistributedOptimizer(PerTensor(models[0].parameters()), shard_state=True)
    saved = []
    kinds: list[tuple[bool | str, int]] = [(False, 1), ("by tensor", 1), ("by tensor", 2)]
    for model, (shard, replicas) in zip((*models, Net(1)), kinds, strict=True):
        optimizer: Any = hvd.DistributedOptimizer(PerTensor(model.parameters()), shard_state=shard, replicas=replicas)
        state = hvd.elastic.TorchState(model, optimizer) if replicas == 2 else None
        for step in range(3):
            model.loss(step).backward()
            optimizer.step()
            model.zero_grad()
        if shard:
            optimizer.consolidate_state_dict(to=None)
        saved.append(optimizer.state_dict())
        _same(models[0], model, ("by tensor", replicas, state))
        _same_tree(saved[0], saved[-1], "by tensor")
    assert saved[2]["state"]["global"] == {"steps": 3}


def check_who_wraps_it_again_goes_on_with_the_whole_or_is_told() -> None:
    make, straight = OPTIMIZERS["adamw"], Net()
    _trained(make, range(3), straight, _distributed(make, straight, False))
    for shard in (True, False):
        model = Net()
        raw = make(_groups(model))
        optimizer: Any = hvd.DistributedOptimizer(raw, model.named_parameters(), shard_state=True)
        _trained(make, range(2), model, optimizer)
        optimizer.consolidate_state_dict(to=None)
        optimizer = hvd.DistributedOptimizer(raw, model.named_parameters(), shard_state=shard)
        _trained(make, range(2, 3), model, optimizer)
        _same(straight, model, ("wrapped again", shard))
        if shard and hvd.size() > 1:
            with pytest.raises(UsageError, match="before you wrap the same optimizer again"):
                hvd.DistributedOptimizer(raw, model.named_parameters())


def check_what_is_asked_of_parts_is_refused_and_an_error_of_a_load_loses_nothing() -> None:
    make, model, straight = OPTIMIZERS["adam"], Net(), Net()
    optimizer, reference = _distributed(make, model, True), _distributed(make, straight, False)
    _trained(make, range(2), model, optimizer)
    with pytest.raises(ValueError, match="parameter group"):
        optimizer.load_state_dict(torch.optim.Adam(model.last.parameters()).state_dict())
    optimizer.consolidate_state_dict(to=None)
    kept = optimizer.state_dict()
    _trained(make, range(2, 3), model, optimizer)
    steps = {float(state["step"]) for state in kept["state"].values()}
    assert hvd.size() == 1 or steps <= {1.0, 2.0}, "it must not change afterwards"
    _trained(make, range(3), straight, reference)
    _same(straight, model, "after the error")
    if hvd.size() > 1:
        others = [p for p in model.parameters() if p.grad is not None and p not in optimizer.state]
        with pytest.raises(UsageError, match="other ranks have it"):
            optimizer.state[others[0]]


def check_what_does_not_lie_as_it_must_is_told_on_every_rank_before_anything_is_stepped() -> None:
    if hvd.size() == 1:
        return
    torch.manual_seed(2)
    strided = torch.nn.Parameter(torch.randn(300, 7)[:, ::2])
    conv = torch.nn.Conv2d(8, 64, 3)
    for text, params, later in (("contiguous", [strided], False), ("memory_format", list(conv.parameters()), True)):
        optimizer: Any = hvd.DistributedOptimizer(torch.optim.SGD(params, lr=0.1), shard_state=True)
        if later:
            conv(torch.rand(1, 8, 5, 5)).sum().backward()
            optimizer.step()
            move: Any = conv.to
            move(memory_format=torch.channels_last)
            optimizer.zero_grad()
            conv(torch.rand(1, 8, 5, 5)).sum().backward()
        else:
            strided.sum().backward()
        before = [param.detach().clone() for param in params]
        with pytest.raises(UsageError, match=text):
            optimizer.step()
        assert all(torch.equal(a, b) for a, b in zip(before, params, strict=True))


def check_hooks_of_all_optimizers_and_scaled_gradients_are_those_of_whole_parameters() -> None:
    import torch.optim.optimizer as hooks

    seen: list[tuple[int, float]] = []

    def note(optimizer: Any, *_: object) -> None:
        seen.append(
            (len(optimizer.param_groups[0]["params"]), float(optimizer.param_groups[0]["params"][0].detach().sum()))
        )

    handles = [hooks.register_optimizer_step_pre_hook(note), hooks.register_optimizer_step_post_hook(note)]
    sums = []
    try:
        for shard in (False, True):
            model = Net()
            optimizer, scaler = _distributed(OPTIMIZERS["fused adamw"], model, shard), torch.amp.GradScaler("cpu")
            scaler.scale(model.loss(2)).backward()
            scaler.step(optimizer)
            scaler.update()
            sums.append([param.grad.sum().item() for param in model.parameters() if param.grad is not None])
    finally:
        for handle in handles:
            handle.remove()
    assert seen[: len(seen) // 2] == seen[len(seen) // 2 :], seen
    assert sums[0] == pytest.approx(sums[1], rel=1e-6)


def check_a_sparse_gradient_is_refused_or_made_dense() -> None:
    for dense in (True, False):
        torch.manual_seed(3)
        model = torch.nn.Embedding(300, 4, sparse=True)
        optimizer = hvd.DistributedOptimizer(_sgd(model), sparse_as_dense=dense, shard_state=True)
        model(torch.tensor([1, 299])).sum().backward()
        if hvd.size() == 1:
            optimizer.step()
        else:
            with pytest.raises(UsageError, match="sparse_as_dense"):
                optimizer.step()


def _sgd(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)
