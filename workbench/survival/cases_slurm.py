"""Rows of the table of faults inside a Slurm allocation: actions of the scheduler on nodes and job steps."""

from __future__ import annotations

from workbench.cluster import HEAD, Cluster
from workbench.survival.cases import Do, FaultCase
from workbench.survival.job import TraineeJob

SALLOC = ("salloc", "-N2", "-n4", "--ntasks-per-node=2", "--no-kill", "--quiet")
"""``--no-kill``: the allocation stays when a node is lost."""


def _slurm(job: TraineeJob, *command: str) -> str:
    assert isinstance(job.cluster, Cluster)
    return job.cluster.run(HEAD, command, check=False).stdout  # scancel fails if the step has ended since


def _step(job: TraineeJob) -> str:
    """The last job step on node2, which is the step of its agent."""
    steps = [line.split() for line in _slurm(job, "squeue", "--steps", "-h", "-o", "%i %N").splitlines()]
    return max((name for name, node in steps if node == "node2"), key=lambda name: int(name.rpartition(".")[2]))


def _scancel(*options: str) -> Do:
    return lambda job, _number: _slurm(job, "scancel", *options, _step(job))


def _node(state: str) -> Do:
    return lambda job, _number: _slurm(job, "scontrol", "update", "nodename=node2", f"state={state}", "reason=test")


def _power(job: TraineeJob, _number: int) -> None:
    assert isinstance(job.cluster, Cluster)
    job.cluster.kill("node2")


def _notice(job: TraineeJob, number: int) -> None:
    """SIGTERM to all processes on a host, as before a preemption: the others take over between two steps."""
    last = job.generation()[0].generation
    _scancel("--signal=TERM")(job, number)
    job.until_whole(after=last)


SLURM = (
    FaultCase("notice to a host (SIGTERM by scancel)", "any", done=_notice, planned=True, lost="node2", quick=True),
    FaultCase("scancel of a host's job step", "any", done=_scancel(), lost="node2", quick=True),
    FaultCase("scontrol drains a node", "any", done=_node("drain"), after=_node("resume"), harmless=True),
)
"""Faults on two nodes with two tasks each."""

LAST = (FaultCase("a node of the allocation loses power", "any", done=_power, lost="node2"),)
"""Played last: Slurm does not give the job its node back."""
