"""One worker under ``torchrun``: takes up its last checkpoint, and kills itself so often: ``FOLDER KILLS``."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy

from benchmarks.elastic_rank import STEPS
from benchmarks.models import make


def main() -> None:
    """Train with DDP over Gloo; every step is saved, and its time written down."""
    folder, kills = Path(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, task, done = dist.get_rank(), make("cnn"), len(_lines(folder))
    network, optimizer, saved = torch.nn.parallel.DistributedDataParallel(task.network), task.optimizer(), folder / "at"
    step = 0
    if saved.exists():
        step, weights, momenta = torch.load(saved)
        task.network.load_state_dict(weights)
        optimizer.load_state_dict(momenta)
    with (folder / f"steps-{os.getpid()}-{rank}-{done}").open("w") as steps:
        for number in range(STEPS + 1):
            optimizer.zero_grad()
            cross_entropy(network(task.inputs), task.labels).backward()
            optimizer.step()
            step += 1
            steps.write(f"{step} {time.monotonic()}\n")
            steps.flush()
            if rank == 0:
                torch.save((step, task.network.state_dict(), optimizer.state_dict()), folder / "new")
                (folder / "new").rename(saved)
            if number == STEPS - 1 and done < kills and rank == done % dist.get_world_size():
                with (folder / "strikes").open("a") as file:
                    file.write(f"kill {time.monotonic()}\n")
                os.kill(os.getpid(), signal.SIGKILL)
    dist.destroy_process_group()


def _lines(folder: Path) -> list[str]:
    faults = folder / "strikes"
    return faults.read_text().splitlines() if faults.exists() else []


if __name__ == "__main__":
    main()
