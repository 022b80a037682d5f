"""Train a pipeline of two stages, each on a rank of its own (``torch.distributed.pipelining``).

farandole run -np 2 python examples/torch_distributed/pipeline.py
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.nn.functional import cross_entropy
from training import Digits, begin, report

MICROBATCHES = 4


def main() -> None:
    """Activations go to the next rank by ``send``, and gradients back."""
    begin(__doc__)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    layers = [torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU())]
    layers += [torch.nn.Sequential(torch.nn.Linear(128, 128), torch.nn.ReLU()) for _ in range(ranks - 2)]
    layers += [torch.nn.Sequential(torch.nn.Linear(128, 10))]
    optimizer = torch.optim.AdamW(layers[rank].parameters(), lr=1e-2)
    schedule = Schedule1F1B(PipelineStage(layers[rank], rank, ranks, torch.device("cpu")), MICROBATCHES, cross_entropy)
    data, found = Digits(0, 1), []
    for i in range(20):
        images, labels = data.batch(i)
        losses: list[torch.Tensor] = []
        optimizer.zero_grad()
        if rank == 0:
            schedule.step(images)
        else:
            schedule.step(target=labels, losses=losses)
        optimizer.step()
        loss = torch.stack(losses).mean().detach() if losses else torch.zeros(())
        dist.broadcast(loss, src=ranks - 1)
        found.append(loss.item())
    report(found)


if __name__ == "__main__":
    main()
