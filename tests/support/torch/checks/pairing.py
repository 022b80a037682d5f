"""Checks of optimizers that ranks make in another order, more of them on one rank, or of other parameters."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

import farandole.torch as hvd
from farandole import DivergenceError
from farandole.torch import optim
from tests.support.patience import PATIENCE_S


def distribute(*named: tuple[str, torch.nn.Parameter], **more: Any) -> Any:
    """A distributed optimizer of named parameters."""
    return hvd.DistributedOptimizer(torch.optim.SGD([p for _, p in named], lr=1.0), list(named), **more)


def parameter(size: int = 3) -> torch.nn.Parameter:
    """Zeros."""
    return torch.nn.Parameter(torch.zeros(size))


def is_odd() -> bool:
    """True on every other rank, where things are done in another order."""
    return hvd.rank() % 2 == 1


def every_other_way(*things: Any) -> list[Any]:
    """The same things, in another order on odd ranks."""
    return list(reversed(things)) if is_odd() else list(things)


def check_names_in_another_order() -> None:
    for op, factor in ((hvd.Average, 1), (hvd.Sum, hvd.size())):
        a, b, c = (parameter() for _ in "abc")
        optimizer = distribute(*every_other_way(("a", a), ("b", b), ("c", c)), op=op)
        for step in range(12):  # the detector of divergence looks at most of them
            optimizer.zero_grad()
            (a.sum() + 10 * b.sum() + 100 * c.sum()).backward()
            for param, expected in ((a, 1.0), (b, 10.0), (c, 100.0)):
                assert param.grad is not None
                assert param.grad.tolist() == [expected * factor] * 3, (step, op)
            optimizer.step()


def check_groups_of_names_in_another_order() -> None:
    for given in (lambda *_: 2, lambda a, b, c: every_other_way([a, b], [c])):
        a, b, c = parameter(2), parameter(70), parameter(5)
        groups = given(a, b, c)
        optimizer = distribute(*every_other_way(("a", a), ("b", b), ("c", c)), groups=groups, op=hvd.Sum)
        for step in range(12):
            optimizer.zero_grad()
            ((1 + hvd.rank()) * (a.sum() + 10 * b.sum() + 100 * c.sum())).backward()
            for param, factor in ((a, 1.0), (b, 10.0), (c, 100.0)):
                total = factor * hvd.size() * (hvd.size() + 1) / 2
                assert param.grad is not None
                assert param.grad.tolist() == [total] * param.numel(), (step, groups)
            optimizer.step()


def check_that_other_groups_on_another_rank_raise_everywhere() -> None:
    a, b, c = parameter(2), parameter(70), parameter(5)
    groups = [[a, c]] if is_odd() else [[a, b]]
    optimizer = distribute(("a", a), ("b", b), ("c", c), groups=groups)
    loss = a.sum() + b.sum() + c.sum()
    if hvd.size() == 1:
        loss.backward()
        return
    with pytest.raises(hvd.HorovodInternalError, match="not at the same point of the program"):
        loss.backward()
    assert a.grad is not None
    assert a.grad.tolist() == [1.0] * 2, "nothing was reduced"
    del optimizer


def check_names_in_another_order_and_parameters_of_other_sizes_that_come_and_go() -> None:
    a, b, late = parameter(2), parameter(70), parameter(5)
    optimizer = distribute(*every_other_way(("a", a), ("b", b)))
    for step in range(4):
        b.requires_grad_(step != 1)
        if step == 2:
            optimizer.add_param_group({"params": [late]})
        optimizer.zero_grad()
        (a.sum() + 10 * b.sum() + 100 * late.sum()).backward()
        assert a.grad is not None
        assert a.grad.tolist() == [1.0] * 2
        assert b.grad is None if step == 1 else b.grad is not None and b.grad.tolist() == [10.0] * 70
        optimizer.step()
    assert late.tolist() == [-100.0 * 2] * 5


def check_names_in_another_order_with_lag_adasum_and_virtual_workers() -> None:
    for options in ({"op": hvd.Adasum}, {"virtual_workers": max(4, hvd.size())}):
        a, b = parameter(), parameter()
        optimizer = distribute(*every_other_way(("a", a), ("b", b)), **options)
        for _ in optimizer.shards(2 * max(4, hvd.size())) if "virtual_workers" in options else range(1):
            (a.sum() + 10 * b.sum()).backward()
        optimizer.step()
        assert a.tolist() == [-1.0] * 3
        assert b.tolist() == [-10.0] * 3
    a, b = parameter(), parameter()
    optimizer = optim.GradientLag(distribute(*every_other_way(("a", a), ("b", b))), 1)
    for _ in range(3):
        optimizer.zero_grad()
        (a.sum() + 10 * b.sum()).backward()
        optimizer.step()
    assert a.tolist() == [-2.0] * 3
    assert b.tolist() == [-20.0] * 3


def check_optimizers_that_only_one_rank_has() -> None:
    a, b = parameter(), parameter()

    def make() -> list[Any]:
        nameless = hvd.DistributedOptimizer(torch.optim.SGD([b], lr=1.0))
        return [distribute(("b", b)), distribute(("a", b)), nameless]

    extra = make() if hvd.rank() == 0 else []
    for named in ([("a", a)], None):
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD([a], lr=1.0), named)
        optimizer.zero_grad()
        ((1 + hvd.rank()) * a.sum()).backward()
        assert a.grad is not None
        assert a.grad.tolist() == [(hvd.size() + 1) / 2] * 3, a.grad
        optimizer.step()
        del optimizer
    assert 0 <= hvd.join() < hvd.size()
    if hvd.rank() > 0:
        extra = make()  # all ranks have made equally many for the checks that come
    del extra


def check_optimizers_of_members_alone() -> None:
    some = hvd.add_process_set([0, 1]) if hvd.size() > 2 else hvd.global_process_set
    a, b = parameter(), parameter()
    theirs = distribute(("a", a), process_set=some) if some.included() else None
    ours = distribute(("a", b))
    for _ in range(2):
        if theirs is not None:
            theirs.zero_grad()
            ((1 + hvd.rank()) * a.sum()).backward()
            theirs.step()
        ours.zero_grad()
        ((1 + hvd.rank()) * b.sum()).backward()
        ours.step()
    assert b.grad is not None
    assert b.grad.tolist() == [(hvd.size() + 1) / 2] * 3
    assert 0 <= hvd.join() < hvd.size()
    if some.included():
        assert a.grad is not None
        assert a.grad.tolist() == [(1 + min(2, hvd.size())) / 2] * 3
    if hvd.size() > 2:
        hvd.remove_process_set(some)


def check_threads_that_come_in_another_order() -> None:
    params = [parameter() for _ in range(4)]
    names = [f"p{i}" for i in range(4)]
    optimizers = [distribute((name, p)) for name, p in zip(names, params, strict=True)]
    gates = [threading.Event() for _ in range(5)]
    errors: list[BaseException] = []

    def work(i: int, before: threading.Event, after: threading.Event) -> None:
        before.wait(PATIENCE_S)
        after.set()
        try:
            ((1 + hvd.rank()) * (1 + i) * params[i].sum()).backward()
            optimizers[i].step()
        except BaseException as error:
            errors.append(error)

    order = every_other_way(0, 1, 2, 3)
    threads = [threading.Thread(target=work, args=(i, gates[n], gates[n + 1])) for n, i in enumerate(order)]
    for thread in threads:
        thread.start()
    gates[0].set()
    for thread in threads:
        thread.join()
    assert not errors, errors
    for i, param in enumerate(params):
        assert param.tolist() == [-(1 + i) * (hvd.size() + 1) / 2] * 3


def raises_everywhere(match: str, run: Callable[[], object]) -> None:
    """Runs it; it must raise where there are several ranks, and leave the next exchange alone."""
    if hvd.size() == 1:
        run()
        return
    with pytest.raises(hvd.HorovodInternalError, match=match):
        run()
    a = parameter()
    optimizer = distribute(("a", a))
    ((1 + hvd.rank()) * a.sum()).backward()
    optimizer.step()
    assert a.tolist() == [-(hvd.size() + 1) / 2] * 3


def check_a_parameter_that_only_some_ranks_have() -> None:
    pairs = [("fc1", parameter()), ("fc2", parameter())]
    optimizer = distribute(*pairs[: 1 + is_odd()])
    raises_everywhere(r"rank 0 on .* lacks 'fc2'", pairs[0][1].sum().backward)
    del optimizer


def check_a_nameless_parameter_that_only_some_ranks_have() -> None:
    params = [parameter(), parameter()]
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(params[: 1 + is_odd()], lr=1.0))
    raises_everywhere(r"rank 0 on .* lacks 'group0.1'", params[0].sum().backward)
    del optimizer


def check_equal_models_in_another_order_are_told_apart_by_their_numbers() -> None:
    first, second = torch.nn.Parameter(torch.zeros(3)), torch.nn.Parameter(torch.ones(3))
    optimizers = [distribute(("w", param)) for param in every_other_way(first, second)]

    def run() -> None:
        for optimizer in optimizers:
            for _ in range(2):
                optimizer.zero_grad()
                optimizer.param_groups[0]["params"][0].sum().backward()
                optimizer.step()

    if hvd.size() == 1:
        run()
    else:
        with pytest.raises(DivergenceError, match="'w' differs before the first step"):
            run()


def check_no_thread_of_a_join_waits_for_an_optimizer_that_others_do_not_have() -> None:
    extra = distribute(("nowhere else", parameter())) if hvd.rank() == 0 else None
    hvd.join()
    serving = [thread.name for thread in threading.enumerate() if thread.name.startswith("farandole-join")]
    assert serving == []
    del extra
