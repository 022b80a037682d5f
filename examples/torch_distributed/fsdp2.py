"""Train with FSDP2, save with PyTorch's distributed checkpoints, and go on from them.

farandole run -np 2 python examples/torch_distributed/fsdp2.py
farandole run -np 2 python examples/torch_distributed/fsdp2.py --backend gloo
"""

from __future__ import annotations

import shutil
import tempfile

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard
from training import Digits, begin, report, step


def sharded() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    """A network of which each rank keeps a part, and an optimizer of that part."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
    for layer in model.children():
        if isinstance(layer, torch.nn.Linear):
            fully_shard(layer)
    fully_shard(model)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2)


def main() -> None:
    """Train, save, load into another model, and train on."""
    begin(__doc__)
    data = Digits(dist.get_rank(), dist.get_world_size())
    model, optimizer = sharded()
    losses = [step(model, optimizer, *data.batch(i)) for i in range(10)]

    folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else ""]
    dist.broadcast_object_list(folder, src=0)
    dcp.save(dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True)), checkpoint_id=folder[0])
    model, optimizer = sharded()
    state = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True))
    dcp.load(state, checkpoint_id=folder[0])
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    dist.barrier()
    if dist.get_rank() == 0:
        shutil.rmtree(folder[0])

    losses += [step(model, optimizer, *data.batch(i)) for i in range(10, 20)]
    report(losses)


if __name__ == "__main__":
    main()
