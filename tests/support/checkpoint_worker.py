"""A worker of an elastic job: trains until it is told to end, saves a checkpoint then, and goes on from the last."""

from __future__ import annotations

import os
import time

import numpy as np

from farandole.collective import ReduceOp
from farandole.elastic.worker.run import run
from farandole.elastic.worker.state import ObjectState
from farandole.numpy.checkpoints import Checkpoints
from farandole.runtime.session.init import current, init
from workbench.jobs import NumpyCalls

STEP_S = 0.005


class Steps(ObjectState):
    """How many steps there have been."""

    step: int


@run
def train(state: Steps) -> None:
    """Count steps."""
    who, do = current().topology, NumpyCalls()
    say(f"trains: rank {who.rank} of {who.size}, step {state.step}, process {os.getpid()}")
    while True:
        time.sleep(STEP_S)
        do.allreduce("step", np.ones(1, np.int64), ReduceOp.SUM)
        state.step += 1
        state.commit()


def say(text: str) -> None:
    """Print it, with the worker's number."""
    print(f"worker {os.environ['FARANDOLE_WORKER_ID']} {text}", flush=True)


def main() -> None:
    """Train."""
    init()
    state = Steps(step=0)
    with Checkpoints("checkpoints") as checkpoints:
        found = checkpoints.restore()
        if found is not None:
            state.step = found.state["step"]
            say(f"goes on from step {state.step}")
        try:
            train(state)
        except SystemExit:
            checkpoints.save(state.step, {"step": state.step})
            say(f"leaves at step {state.step}")
            raise


main()
