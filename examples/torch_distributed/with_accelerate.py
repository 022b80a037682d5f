"""Train with Hugging Face Accelerate (``pip install accelerate``) on Farandole's backend, under either launcher.

farandole run -np 2 python examples/torch_distributed/with_accelerate.py
accelerate launch --cpu --num_processes 2 --num_machines 1 examples/torch_distributed/with_accelerate.py
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from accelerate import Accelerator, InitProcessGroupKwargs
from torch.nn.functional import cross_entropy
from training import Digits, backend, mean, report


def main() -> None:
    """A group that is there already is the one that Accelerate takes."""
    dist.init_process_group(backend(__doc__), init_method="farandole://")
    torch.set_num_threads(1)
    accelerator = Accelerator(cpu=True, kwargs_handlers=[InitProcessGroupKwargs(timeout=timedelta(minutes=5))])
    assert accelerator.num_processes == dist.get_world_size()
    torch.manual_seed(0)
    model: Any = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-2))
    data, losses = Digits(accelerator.process_index, accelerator.num_processes), []
    for i in range(20):
        x, y = data.batch(i)
        optimizer.zero_grad()
        loss = cross_entropy(model(x), y)
        accelerator.backward(loss)
        optimizer.step()
        losses.append(mean(loss))
    report(losses)


if __name__ == "__main__":
    main()
