"""What the examples beside this file share: the backend, digits, a step, and what they print.

begin(__doc__)                      # init_process_group(), by --backend
data = Digits(rank=0, ranks=2)
loss = step(model, optimizer, *data.batch(0))
report([loss])                      # "loss 2.3021 ... 0.1240 (farandole, 2 ranks)"
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch.nn.functional import cross_entropy


def backend(text: str | None) -> str:
    """The backend that the command line asks for; ``text`` is what ``--help`` says."""
    parser = argparse.ArgumentParser(description=(text or "").splitlines()[0])
    parser.add_argument("--backend", default="farandole", help="of torch.distributed: farandole (default), gloo")
    chosen: str = parser.parse_args().backend
    return chosen


def begin(text: str | None) -> None:
    """Make the process group of all ranks."""
    dist.init_process_group(backend(text))
    torch.set_num_threads(1)  # so that losses are the same to the last digit, however many cores there are


class Digits:
    """Scikit-learn's handwritten digits, in batches of which each of ``ranks`` has an equal part."""

    def __init__(self, rank: int, ranks: int, batch: int = 64) -> None:
        images, labels = load_digits(return_X_y=True)
        self.images, self.labels = torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels)
        self.rank, self.ranks, self.batch_size = rank, ranks, batch

    def batch(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        """This rank's part of a batch."""
        count = self.batch_size // self.ranks
        chosen = (torch.arange(count) + number * self.batch_size + self.rank * count) % len(self.labels)
        return self.images[chosen], self.labels[chosen]


def step(model: torch.nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor) -> float:
    """One step; returns the mean loss of all ranks."""
    optimizer.zero_grad()
    loss = cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    return mean(loss)


def mean(loss: torch.Tensor) -> float:
    """The mean of a number over all ranks, added in their order."""
    losses = [torch.zeros(()) for _ in range(dist.get_world_size())]
    dist.all_gather(losses, loss.detach())
    return torch.stack(losses).mean().item()


def report(losses: Sequence[float]) -> None:
    """Rank 0 prints the first losses and the last, to the last digit."""
    if dist.get_rank() == 0:
        shown = " ".join(f"{loss:.9g}" for loss in (*losses[:2], *losses[-2:]))
        print(f"loss {shown} ({dist.get_backend()}, {dist.get_world_size()} ranks)", flush=True)
    dist.destroy_process_group()
