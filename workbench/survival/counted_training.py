"""Training under faults whose weights count: each sample subtracts one from its own weight whenever it is applied.

A row is the one-hot vector of a sample's place among all samples, the loss is the mean of the weights' outputs for the
rows of a batch, and the rate is the global batch: so a step subtracts exactly one from the weight of each of its
samples, for any number of ranks. After an epoch each weight is one less. Lost or repeated samples stay visible until
the end, in the weights themselves and not only in the ledger.

Such a training commits every few batches, and a fault goes back to the last commit. ``jax_training`` and
``keras_training`` are two of them.

Threads: the training thread, and threads of the framework that run a step's reduction, for which the first one waits.
"""

from __future__ import annotations

import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

import farandole.numpy as hvd
from farandole import events
from farandole.graphs.gradients import GraphGradients
from farandole.testing.ledger import Ledger, who
from workbench.survival.fault_injection import FaultInjection
from workbench.survival.records import (
    COUNTED_LENGTH,
    Applied,
    Point,
    TrainingPlan,
    generation_record,
    write_record,
)

GLOBAL_BATCH, COMMIT_EVERY = 12, 2
"""Rows of a step: up to four ranks share them evenly, and also the rest after any number of whole steps."""
ROWS: npt.NDArray[np.float32] = np.eye(COUNTED_LENGTH, dtype=np.float32)


class CountedTraining(ABC):
    """Training loop of one worker; a framework implements the training of an epoch, and the weights."""

    def __init__(self, folder: Path, plan: TrainingPlan) -> None:
        self._folder, self._plan = folder, plan
        self.faults = FaultInjection(folder, {})
        self.faults.reach("building")
        self.state: Any = self.build()
        self.ledger = Ledger(folder, self.state)
        self._cancel = events.subscribe(self._note)
        _reach_before_reductions(self.faults)

    @abstractmethod
    def build(self) -> Any:
        """The elastic state, with ``sampler`` and ``epoch``."""

    @abstractmethod
    def epoch(self) -> None:
        """Train the rest of an epoch, count it in ``state.epoch``, and commit."""

    @abstractmethod
    def weights(self) -> npt.NDArray[np.float32]:
        """One weight for each sample."""

    def train(self, state: Any) -> None:
        """Train until the end of the epoch in which the file ``end`` appears."""
        write_record(self._folder, "generations", generation_record(state))
        while True:
            state.sampler.set_epoch(state.epoch)
            if len(state.sampler.remaining_indices):
                self.epoch()
            self.faults.reach("epoch end")
            # Of all ranks: the file may appear between the checks of two of them, and they must end alike.
            if any(hvd.allgather_object((self._folder / "end").exists(), name="end")):
                return

    def begins(self, rows: Sequence[int] | npt.NDArray[Any]) -> None:
        """A batch of these samples of this rank begins."""
        self.faults.reach("idle")
        time.sleep(self._plan.step_s)
        self.faults.reach("loading")
        self.ledger.brought("sampler", self.state.epoch, list(rows))
        self.faults.reach("forward")

    def applied(self) -> None:
        """A batch is over; its samples are not recorded yet."""
        self.faults.reach("applied")

    def _note(self, event: events.Event) -> None:
        """Record a committed step."""
        if isinstance(event, events.Milestone) and event.phase == "commit":
            write_record(self._folder, "curve", Point(event.step, 0.0, ""))

    def finish(self) -> None:
        """Record how often each sample was applied, and shut down in order."""
        self.faults.reach("shutdown")
        counts = [int(count) for count in np.rint(-self.weights())]
        write_record(self._folder, "applied", Applied(who(), self.state.epoch, counts))
        self.ledger.close()
        self._cancel()
        self.faults.cancel()
        hvd.shutdown()


def _reach_before_reductions(faults: FaultInjection) -> None:
    """Let a worker reach the phases ``reduce`` and ``reduced``, also inside of a compiled step."""
    reduce = GraphGradients.reduce

    def reduced(*given: Any, **named: Any) -> Any:
        faults.reach("reduce")
        found = reduce(*given, **named)
        faults.reach("reduced")
        return found

    GraphGradients.reduce = reduced  # type: ignore[method-assign] # of whichever optimizer there is


def plan_of_command() -> tuple[Path, TrainingPlan]:
    """Arguments of a worker's script."""
    return Path(sys.argv[1]), msgspec.json.decode(sys.argv[2], type=TrainingPlan)
