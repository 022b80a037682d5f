"""Program that predicts, of a data set that notes who reads which sample, and at one of them ends somebody.

python predicting.py out.zarr --workers 2 --end worker --signal 9
"""

from __future__ import annotations

import argparse
import os
import signal
import time
from pathlib import Path
from typing import Any, final

import numpy as np

from farandole.inference import Draw, predict

SAMPLES, BATCH, BLOCK_BATCHES = 240, 4, 5
LAST = 150
"""Sample at whose reading somebody is ended, the first time."""


@final
class Noted:
    """Samples that are their numbers. ``ends`` is whom the ``signal`` goes to at the sample ``LAST``."""

    def __init__(self, folder: Path, ends: int, number: int, read_s: float) -> None:
        self._log, self._ends, self._number, self._read_s = folder / "reads", ends, number, read_s

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        with self._log.open("ab", buffering=0) as file:
            file.write(f"{index} {os.getpid()}\n".encode())
        time.sleep(self._read_s)
        if index == LAST and self._ends >= 0:
            try:
                self._log.with_name("ended").touch(exist_ok=False)
            except FileExistsError:
                return np.float64(index)
            os.kill(self._ends or os.getpid(), self._number)
            time.sleep(60 if self._ends else 0)  # until the end of the job is that of its workers
        return np.float64(index)


def answer(batch: Any, draw: Draw) -> dict[str, Any]:
    """Twice the samples, and a random number of each."""
    return {"twice": 2 * batch, "noise": np.array([draw.rng(i).normal() for i in draw.samples])}


def main() -> None:
    """Predict as the arguments say, and print how many processes have answered."""
    parser = argparse.ArgumentParser()
    parser.add_argument("output", type=Path)
    parser.add_argument("--workers", type=int)
    parser.add_argument("--hosts")
    parser.add_argument("--end", choices=["nobody", "worker", "job"], default="nobody")
    parser.add_argument("--signal", type=int, default=int(signal.SIGKILL))
    parser.add_argument("--in-job", action="store_true")
    parser.add_argument("--read-s", type=float, default=0.005)
    options = parser.parse_args()
    if options.in_job:
        import farandole.numpy as hvd

        hvd.init()
    ends = {"nobody": -1, "worker": 0, "job": os.getpid()}[options.end]
    data = Noted(options.output.parent, ends, options.signal, options.read_s)
    plan: dict[str, Any] = {"batch_size": BATCH, "block_batches": BLOCK_BATCHES, "seed": 7, "threads": 1}
    if options.hosts:
        plan |= {"hosts": options.hosts}
    found = predict(answer, data, options.output, workers=options.workers, **plan)
    print("answered by", len({each.pid for each in found.answers()}))
    print("on", *sorted({each.host for each in found.answers()}))


if __name__ == "__main__":
    main()
