"""An elastic job in a Slurm allocation follows what its owner does with ``scontrol``: the job shrinks and grows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.support.cluster.running import StartOnCluster
from workbench.cluster import SlurmCluster

TRAIN = """
import os, threading
import numpy as np
import farandole.numpy as hvd
from farandole.numpy import elastic

hvd.init()
state, pause, said = elastic.NumpyState(step=0), threading.Event(), []

@elastic.run
def train(state):
    while not os.path.exists("stop"):
        hvd.allreduce(np.ones(2), name="a")
        state.step += 1
        if hvd.rank() == 0 and said[-1:] != [hvd.size()]:
            said.append(hvd.size())
            print("workers:", hvd.size(), "step above 0:", state.step > 0, flush=True)
        state.commit()
        pause.wait(0.05)

train(state)
"""


def test_a_job_shrinks_and_grows_with_its_allocation(
    make_slurm: Callable[..., SlurmCluster], start: StartOnCluster, tmp_path: Path
) -> None:
    slurm = make_slurm(2, accounts=True)  # Slurm expands no job that its accounting does not know
    options = ("--min-np", "1", "--max-np", "9", "--slurm-look", "1")
    before = ("salloc", "--quiet", "--nodes=2", "--ntasks=2")
    job = start(slurm.cluster, *options, before=before, python=TRAIN)
    try:
        job.prints("workers: 2")
        [number] = slurm.run(["squeue", "--noheader", "--format=%i"]).stdout.split()
        slurm.run(["scontrol", "update", f"JobId={number}", "NumNodes=1"])
        job.prints("workers: 1")
        job.until(lambda: "node2" in job.stderr, "for what is said of the node")
        # As Slurm's manual has it: a job of its own for the nodes to be added, which then gives them away.
        grow = ["salloc", "--quiet", "--nodes=1", "--nodelist=node2", f"--dependency=expand:{number}", "--no-shell"]
        slurm.run(grow)
        other = max(slurm.run(["squeue", "--noheader", "--format=%i"]).stdout.split(), key=int)
        slurm.run(["scontrol", "update", f"JobId={other}", "NumNodes=0"])
        slurm.run(["scontrol", "update", f"JobId={number}", "NumNodes=ALL"])
        job.prints("workers: 2", 2)
    finally:
        (tmp_path / "stop").touch()
    assert job.end() == 0
    assert job.stderr.count("Requested node configuration") <= 1, "Slurm was asked before a step is tried there again"
