"""One rank of the memory benchmark: trains a little, then says what memory it holds, in MB.

python -m benchmarks.memory_rank RESULT none|ddp|farandole
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch

from benchmarks.models import make
from benchmarks.steppers import STEPPERS, connect_gloo

STEPS = 5


def held_mb() -> float:
    """Anonymous memory plus this process's part of shared memory; mapped files are left out."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    kilobytes = {line.split()[0]: int(line.split()[1]) for line in lines[1:]}
    return (kilobytes["Pss_Anon:"] + kilobytes["Pss_Shmem:"]) / 1024


def main() -> None:
    """``RESULT KIND``; rank and size come from whoever started it."""
    result, kind = Path(sys.argv[1]), sys.argv[2]
    rank = int(os.environ.get("HOROVOD_RANK", "0"))
    torch.set_num_threads(1)
    if kind == "ddp":
        connect_gloo(result.with_name("store"), rank, int(os.environ["HOROVOD_SIZE"]))
    elif kind == "farandole":
        import farandole.torch as hvd

        hvd.init()
    step = STEPPERS[kind](make("large"))
    for _ in range(STEPS):
        step()
    held = held_mb()
    if rank == 0:
        result.write_text(json.dumps({"held": held}))
    if kind == "ddp":
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
