"""Worker of a training on leases: writes the time and the size of every step of rank 0 to ``steps.txt``.

The clock is the machine's, which all its hosts have in common. It says as well when its framework was loaded.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import torch

import farandole.torch as hvd

STEP_S = 0.02


def main() -> None:
    """Train until a file named ``end`` is there."""
    hvd.init()
    model = torch.nn.Linear(256, 256)
    plain = torch.optim.SGD(model.parameters(), lr=1e-3)
    optimizer = hvd.DistributedOptimizer(plain, named_parameters=model.named_parameters())
    state: Any = hvd.elastic.TorchState(model=model, optimizer=optimizer, ends=0)
    began_s = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
    warm_up_s = time.clock_gettime(time.CLOCK_BOOTTIME) - began_s

    @hvd.elastic.run
    def train(state: Any) -> None:
        with open("warm_ups.txt", "a") as file:
            file.write(f"{warm_up_s}\n")
        while not state.ends:
            optimizer.zero_grad()
            model(torch.ones(8, 256)).square().mean().backward()
            optimizer.step()
            time.sleep(STEP_S)
            state.ends = int(hvd.allreduce(torch.tensor(float(Path("end").exists())), name="ends", op=hvd.Max))
            if hvd.rank() == 0:
                with open("steps.txt", "a") as file:
                    file.write(f"{time.monotonic()} {hvd.size()}\n")
            state.commit()

    train(state)


if __name__ == "__main__":
    main()
