"""What a job costs besides its steps: memory per rank, and the time to start."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence

from benchmarks.job import farandole, launch
from benchmarks.measure import Row, Sample, Table, Verdict

GRADIENTS_MB = 38.2
"""Of the MLP that is trained (10,020,874 float32)."""
ROOM_MB = 64.0
START_DEADLINE_S = 60.0


def run(quick: bool) -> list[Table]:
    """The tables of this section."""
    return [memory(1 if quick else 3), start(2 if quick else 5)]


def memory(rounds: int) -> Table:
    """Memory of a rank that trains the 40 MB network, above that of the same process without communication."""
    held: dict[str, list[float]] = {"none": [], "ddp": [], "farandole": []}
    for _ in range(rounds):
        for kind, values in held.items():
            values.append(launch("memory_rank", kind)["held"])
    samples = {kind: Sample.of(values) for kind, values in held.items()}
    above = {kind: samples[kind].median - samples["none"].median for kind in ("farandole", "ddp")}
    verdicts = (
        Verdict(above["farandole"], "MB more", most=GRADIENTS_MB + ROOM_MB),
        Verdict(above["ddp"], "MB more (ddp)"),
    )
    return Table("Memory of a rank, 40 MB of gradients, 2 ranks", "MB", rows=[Row("after 5 steps", samples, verdicts)])


def start(rounds: int) -> Table:
    """Wall time of the smallest job, and of as many interpreters that import torch and nothing else."""
    alone = [sys.executable, "-c", "import torch"]
    job = farandole("run", "-np", "2", sys.executable, "-c", "import farandole.torch as h; h.init()")
    taken: dict[str, list[float]] = {"import torch, twice": [], "farandole run": []}
    for _ in range(rounds):
        taken["import torch, twice"].append(_seconds([alone, alone]))
        taken["farandole run"].append(_seconds([job]))
    samples = {name: Sample.of(values) for name, values in taken.items()}
    above = samples["farandole run"].median - samples["import torch, twice"].median
    row = Row("init() on 2 ranks", samples, (Verdict(above, "s more", most=1.0),))
    return Table("Time to start", "s", rows=[row])


def _seconds(commands: Sequence[Sequence[str]]) -> float:
    """Wall time of commands that run at once."""
    begin = time.perf_counter()
    processes = [subprocess.Popen(command) for command in commands]
    if any(process.wait(START_DEADLINE_S) for process in processes):
        raise RuntimeError(f"failed: {commands}")
    return time.perf_counter() - begin
