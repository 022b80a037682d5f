"""A worker that counts how often each sample was applied: ``python counting_worker.py LEDGER``.

In the folder LEDGER each process appends a line to ``steps.PID`` when a step is committed, with its number. It trains
until a file ``end`` is there, and says at last how often each sample counts.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import numpy as np
import numpy.typing as npt

import farandole.numpy as hvd
from farandole import events
from farandole.numpy.elastic import ElasticSampler, NumpyState, run

SAMPLES, BATCH = 120, 6
"""So that the rest of an epoch, whenever the size changes, is the same for 1, 2 and 3 ranks: none is taken twice."""

STEP_S = 0.01


def main(ledger: Path) -> None:
    """Train, and say what came of it."""
    hvd.init()
    sampler = ElasticSampler(range(SAMPLES), seed=3)
    state = Counts(counts=np.zeros(SAMPLES), step=0, epoch=0, sampler=sampler)
    note_commits(ledger)
    train(state, ledger)
    counts = {int(count) for count in state.counts}
    print(f"each of {SAMPLES} samples was applied {sorted(counts)} times in {state.epoch} epochs", flush=True)
    hvd.shutdown()


class Counts(NumpyState):
    """How often each sample was applied."""

    counts: npt.NDArray[np.float64]
    step: int
    epoch: int
    sampler: ElasticSampler


@run
def train(state: Counts, ledger: Path) -> None:
    """Count the samples of whole epochs."""
    print(f"trains: size {hvd.size()}, step {state.step}, process {os.getpid()}, rank {hvd.rank()}", flush=True)
    while is_within_epoch(state) or not any(hvd.allgather_object((ledger / "end").exists(), name="end")):
        state.sampler.set_epoch(state.epoch)
        mine = list(state.sampler)
        for i in range(0, len(mine), BATCH):
            own = np.bincount(mine[i : i + BATCH], minlength=SAMPLES).astype(float)
            time.sleep(STEP_S)
            state.counts = state.counts + hvd.allreduce(own, op=hvd.Sum, name="counts")
            state.sampler.record_batch(i // BATCH, len(mine[i : i + BATCH]))
            state.step += 1
            state.commit()
        state.epoch += 1
        state.step += 1
        state.commit()


def is_within_epoch(state: Counts) -> bool:
    """True where workers have come or gone in the middle of an epoch, or before it was counted."""
    return state.sampler.epoch == state.epoch and state.sampler.processed_num > 0


def note_commits(ledger: Path) -> None:
    """Write every step down once it is committed."""

    def note(event: events.Event) -> None:
        if isinstance(event, events.Milestone) and event.phase == "commit":
            with (ledger / f"steps.{os.getpid()}").open("a") as file:
                file.write(f"{event.step}\n")

    events.subscribe(note)


main(Path(sys.argv[1]))
