"""Checks that what outlives a session works in the next one."""

from __future__ import annotations

import torch

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
