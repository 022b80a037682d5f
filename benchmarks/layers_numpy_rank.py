"""One rank of ``benchmarks.layers`` that needs no framework: ``latency``, ``crossed``, or ``train FOLDER``.

A layer that ``WITHOUT`` names is off in it.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import farandole.numpy as hvd
from farandole.control.messages import Waits
from farandole.numpy.elastic import NumpyState, run
from farandole.runtime.lanes.peer_lane import PeerLane
from farandole.runtime.session.session import Session

STEP_S = 0.01


def turn_off(layer: str) -> None:
    """Patch one layer out of this process; every rank does the same."""
    off: Any = {
        "nothing": None,
        "fast path": (Session, "has_fast_path", False),
        "peer lane": (PeerLane, "open", lambda *_: None),  # no order grants anything
        "survey": (Session, "waits", lambda self: Waits(self.generation)),
    }
    if patch := off[layer]:
        setattr(*patch)


def latency() -> None:
    """Print the median time of a named all-reduce of four bytes."""
    four_bytes, taken = np.ones(1, np.float32), []
    for number in range(400):
        begin = time.perf_counter()
        hvd.allreduce(four_bytes, name="four")
        if number >= 100:
            taken.append(time.perf_counter() - begin)
    if hvd.rank() == 0:
        print(f"took {statistics.median(taken) * 1e6:.1f}", flush=True)


def crossed() -> None:
    """Wait in a collective that the other rank never calls."""
    print(f"crossed {time.monotonic()}", flush=True)
    hvd.allreduce(np.ones(1), name=f"only.{hvd.rank()}")


class Steps(NumpyState):
    """Number of committed steps."""

    step: int


@run
def train(state: Steps, folder: Path) -> None:
    """Commit steps, and write down when, until a file ``end`` is in ``folder``."""
    with (folder / f"steps.{os.getpid()}").open("a", buffering=1) as file:
        while not hvd.allreduce(np.array(float((folder / "end").exists())), name="end"):
            time.sleep(STEP_S)
            state.step += 1
            state.commit()
            file.write(f"{hvd.size()} {time.monotonic()}\n")


if __name__ == "__main__":
    turn_off(os.environ.get("WITHOUT", "nothing"))
    hvd.init()
    if sys.argv[1] == "train":
        train(Steps(step=0), Path(sys.argv[2]))
    else:
        {"latency": latency, "crossed": crossed}[sys.argv[1]]()
    hvd.shutdown()
