"""Checks that what outlives a session works in the next one."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import farandole.numpy as arrays
import farandole.torch as hvd


def check_an_optimizer_and_a_batch_norm_go_on_after_shutdown_and_init() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), hvd.SyncBatchNorm(4), torch.nn.Linear(4, 1))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    for round_ in range(4):
        for _ in range(2):
            optimizer.zero_grad(set_to_none=round_ % 2 == 0)
            hvd.allreduce(torch.ones(2))
            model(torch.randn(5, 3)).sum().backward()
            optimizer.step()
        weights = torch.cat([p.detach().flatten() for p in model.parameters()])
        every = hvd.allgather(weights[None])
        assert (every == every[0]).all()
        gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
        hvd.shutdown()
        kept = [p.grad for p in model.parameters() if p.grad is not None]
        assert all(torch.equal(a, b) for a, b in zip(gradients, kept, strict=True))  # the memory is still there
        hvd.init()


def check_an_accumulation_begins_anew_in_each_session() -> None:
    linear = torch.nn.Linear(1, 1, bias=False)
    optimizer: Any = hvd.DistributedOptimizer(torch.optim.SGD(linear.parameters(), lr=0.0), backward_passes_per_step=2)
    average = arrays.DistributedGradients([np.zeros(1)], backward_passes_per_step=2)

    def add(value: float) -> Any:
        linear(torch.full((1, 1), value)).sum().backward()
        return average([np.full(1, value)])

    add(1.0), add(1.0)
    optimizer.step()
    optimizer.zero_grad()
    assert add(100.0) is None
    hvd.shutdown()
    hvd.init()
    assert add(2.0) is None
    [found] = add(3.0)
    left = 0.0 if hvd.size() > 1 else 100.0  # alone nobody watches, and the gradient is the script's
    assert (found.item(), [p.grad.item() for p in linear.parameters() if p.grad is not None]) == (5.0, [5.0 + left])
    optimizer.step()
