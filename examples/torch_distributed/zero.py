"""Train with DeepSpeed's ZeRO (``pip install deepspeed``), stages 1 to 3, on Farandole's backend.

farandole run -np 2 python examples/torch_distributed/zero.py --stage 3
"""

from __future__ import annotations

import argparse
import os
from typing import Any

os.environ.setdefault("DS_ACCELERATOR", "cpu")  # before DeepSpeed looks for one

import deepspeed
import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from training import Digits, mean, report


def main() -> None:
    """DeepSpeed stands on the process group that is there."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--backend", default="farandole")
    parser.add_argument("--stage", type=int, default=2, choices=[1, 2, 3])
    chosen = parser.parse_args()
    dist.init_process_group(chosen.backend)
    torch.set_num_threads(1)
    deepspeed.init_distributed(dist_backend=chosen.backend)
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
    config = {
        "train_batch_size": 64,
        "zero_optimization": {"stage": chosen.stage},
        "zero_allow_untested_optimizer": True,
    }
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
    engine: Any = deepspeed.initialize(model=network, optimizer=optimizer, config=config)[0]
    data, losses = Digits(dist.get_rank(), dist.get_world_size()), []
    for i in range(20):
        x, y = data.batch(i)
        loss = cross_entropy(engine(x), y)
        engine.backward(loss)
        engine.step()
        losses.append(mean(loss))
    report(losses)


if __name__ == "__main__":
    main()
