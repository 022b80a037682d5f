"""Checks of ``join()`` with distributed optimizers: ranks that have joined contribute zeros to those that train."""

from __future__ import annotations

import gc
import threading

import torch

import farandole.torch as hvd
from farandole.runtime.session.init import current
from tests.support.rank_gradients import backward, mean_over, parameters


def check_join_with_an_optimizer_that_only_one_rank_still_has() -> None:
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(parameters((3,)), lr=1.0))
    [param] = optimizer.param_groups[0]["params"]
    backward(param)
    kept = [optimizer] if hvd.rank() == 0 else []
    del optimizer
    assert 0 <= hvd.join() < hvd.size()
    assert len(kept) == (hvd.rank() == 0)


def check_join_runs_no_garbage_collection() -> None:
    """It takes longer than a round of collectives, and the other ranks wait meanwhile."""
    gc.collect()  # what earlier checks have left
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(parameters((3,)), lr=1.0))
    [param] = optimizer.param_groups[0]["params"]
    backward(param)
    collections: list[str] = []

    def note(phase: str, _info: dict[str, int]) -> None:
        collections.append(phase)

    gc.disable()
    gc.callbacks.append(note)
    try:
        hvd.join()
    finally:
        gc.callbacks.remove(note)
        gc.enable()
    assert collections == []


def check_join_with_uneven_data() -> None:
    size, rank = hvd.size(), hvd.rank()
    (param,) = parameters((3,))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([param], lr=1.0))
    idle = hvd.DistributedOptimizer(torch.optim.SGD(parameters((2,)), lr=1.0))
    for epoch in range(2):
        for batch in range(2 * rank + epoch):
            optimizer.zero_grad()
            backward(param)
            training = [r for r in range(size) if batch < 2 * r + epoch]
            torch.testing.assert_close(param.grad, mean_over(training, param.detach()))
            optimizer.step()
            hvd.allreduce(param.detach(), name="metric")
        last = hvd.join()
        assert hvd.broadcast_object(last) == last
        hvd.broadcast_parameters([param], root_rank=last)
    del idle


def check_that_the_last_rank_has_missed_no_step() -> None:
    """Though the controller hears of its join first: a rank that is about to join serves the others already."""
    if hvd.size() == 1:
        return
    (param,) = parameters((3,))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([param], lr=1.0))
    backward(param)
    optimizer.step()
    session, join = current(), current().join

    def joins_late() -> int:
        threading.Event().wait(0.3)  # nothing announces that the other's word has come to the controller
        return join()

    last = hvd.size() - 1
    if hvd.rank() == last:
        for _ in range(2):
            optimizer.zero_grad()
            backward(param)
            optimizer.step()
    else:
        vars(session)["join"] = joins_late
    assert hvd.join() == last
    vars(session).pop("join", None)
    hvd.broadcast_parameters([param], root_rank=last)
