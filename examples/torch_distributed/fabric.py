"""Train with Lightning Fabric (``pip install lightning-fabric``), its DDP or its FSDP, on Farandole's backend.

farandole run -np 2 python examples/torch_distributed/fabric.py
farandole run -np 2 python examples/torch_distributed/fabric.py --strategy fsdp
"""

from __future__ import annotations

import argparse
import os
from typing import Any

import torch
from lightning_fabric import Fabric
from lightning_fabric.strategies import DDPStrategy, ModelParallelStrategy
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy
from training import Digits, mean, report


def shard(model: Any, mesh: Any) -> Any:
    """Each rank keeps a part of each layer."""
    for layer in model.children():
        if isinstance(layer, torch.nn.Linear):
            fully_shard(layer, mesh=mesh["data_parallel"])
    return fully_shard(model, mesh=mesh["data_parallel"])


def main() -> None:
    """Fabric finds the ranks by the variables of the launcher."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--backend", default="farandole")
    parser.add_argument("--strategy", default="ddp", choices=["ddp", "fsdp"])
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    strategy: Any = DDPStrategy(process_group_backend=chosen.backend)
    if chosen.strategy == "fsdp":
        strategy = ModelParallelStrategy(
            parallelize_fn=shard,
            data_parallel_size=int(os.environ["WORLD_SIZE"]),
            tensor_parallel_size=1,
            process_group_backend=chosen.backend,
        )
    fabric = Fabric(accelerator="cpu", devices=int(os.environ["LOCAL_WORLD_SIZE"]), strategy=strategy)
    fabric.launch()
    torch.manual_seed(0)
    model: Any = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
    model = fabric.setup_module(model)
    optimizer = fabric.setup_optimizers(torch.optim.AdamW(model.parameters(), lr=1e-2))
    data, losses = Digits(fabric.global_rank, fabric.world_size), []
    for i in range(20):
        x, y = data.batch(i)
        optimizer.zero_grad()
        loss = cross_entropy(model(x), y)
        fabric.backward(loss)
        optimizer.step()
        losses.append(mean(loss))
    report(losses)


if __name__ == "__main__":
    main()
