"""Plan and records of a training under faults: its arguments, and its files."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any, final

import msgspec

from farandole.runtime.session.init import current
from farandole.testing.ledger import who

SCRIPTS = {
    "torch": "workbench.survival.training_script",
    "jax": "workbench.survival.jax_training",
    "keras": "workbench.survival.keras_training",
}
"""Modules with a worker's script: ``python -m MODULE FOLDER PLAN``."""

KERAS_BACKENDS = ("torch", "tensorflow", "jax")
LENGTH, COUNTED_LENGTH = 100, 96
"""Samples of an epoch: in a training whose optimizers vote, and in a training that counts by commits."""


@final
class TrainingPlan(msgspec.Struct, frozen=True):
    """``framework``: a key of ``SCRIPTS``; the ``backend`` of Keras; ``virtual`` workers, or 0; ``step_s``: pause of a
    step, in place of computation; the end: at ``steps`` or, if that is 0, at the end of the epoch in which the file
    ``end`` appears. ``reform_every``: interval of re-forming, in steps. ``hidden`` units make 48 bytes of gradients
    each. A training that counts by commits uses ``step_s`` alone.
    """  # noqa: D205 (names first)

    framework: str = "torch"
    backend: str = "torch"
    virtual: int = 0
    step_s: float = 0.002
    steps: int = 0
    reform_every: int = 0
    hidden: int = 8

    @property
    def length(self) -> int:
        """Number of samples of an epoch."""
        return LENGTH if self.framework == "torch" else COUNTED_LENGTH


@final
class GenerationRecord(msgspec.Struct, frozen=True):
    """Record of a worker's training in a generation, and of its resources at that time."""

    worker: str
    worker_id: int
    pid: int
    generation: int
    rank: int
    size: int
    step: int
    time_s: float
    descriptors: int
    threads: int
    resident_kb: int


@final
class Point(msgspec.Struct, frozen=True):
    """Point of the loss curve: the loss of all samples after ``step``, and a digest of all parameters."""

    step: int
    loss: float
    digest: str


@final
class Skipped(msgspec.Struct, frozen=True):
    """Record of a skipped step, whose gradients were not finite; ``digest`` is of all parameters after it."""

    worker: str
    step: int
    scale: float
    digest: str


@final
class Applied(msgspec.Struct, frozen=True):
    """Record at the end of a training: how often each sample was applied, by the weights, in so many epochs."""

    worker: str
    epochs: int
    counts: list[int]


def generation_record(state: Any) -> GenerationRecord:
    """Record of this worker's present state; ``state`` is the state of its training."""
    status, session = Path("/proc/self/status").read_text(), current()
    return GenerationRecord(
        worker=who(),
        worker_id=int(os.environ.get("FARANDOLE_WORKER_ID", "0")),
        pid=os.getpid(),
        generation=session.generation,
        rank=session.topology.rank,
        size=session.topology.size,
        step=state._step_vote.step,
        time_s=time.monotonic(),
        descriptors=len(os.listdir("/proc/self/fd")),
        threads=len(os.listdir("/proc/self/task")),
        resident_kb=int(status.partition("VmRSS:")[2].split()[0]),
    )


def write_record(folder: Path, what: str, record: msgspec.Struct) -> None:
    """Append a record to this worker's file of its kind."""
    # Unbuffered, and in one write: the actions of a killed worker are known, except one line cut off at the end.
    with (folder / f"{what}-{who()}.jsonl").open("ab", buffering=0) as file:
        file.write(msgspec.json.encode(record) + b"\n")
