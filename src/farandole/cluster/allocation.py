"""Slurm allocation: the hosts that ``salloc`` or ``sbatch`` got, and the number of tasks of each.

    >>> allocation({"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "node[1-2]", "SLURM_TASKS_PER_NODE": "4,2"})
    Allocation(job='7', tasks={'node1': 4, 'node2': 2})

The variables of a task of ``srun`` are in ``slurm``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import final

import msgspec

from farandole.cluster.hostlist import expand, repeat

JOB, NODES, OWN_NAME = "SLURM_JOB_ID", "SLURM_JOB_NODELIST", "SLURMD_NODENAME"
TASKS, CPUS = "SLURM_TASKS_PER_NODE", "SLURM_JOB_CPUS_PER_NODE"

BATCH_JOBS = (
    JOB, "PBS_JOBID", "LSB_JOBID", "PE_HOSTFILE", "OAR_JOB_ID", "COBALT_JOBID", "FLUX_JOB_ID", "_CONDOR_JOB_AD",
)  # fmt: skip
"""Variables that Slurm, PBS, LSF, Grid Engine, OAR, Cobalt, Flux and HTCondor set in their jobs, and nowhere else."""


def is_batch_job(variables: Mapping[str, str]) -> bool:
    """True in a job of a batch system, where leftover processes would keep nodes allocated.

    >>> is_batch_job({"PBS_JOBID": "7.head"}), is_batch_job({})
    (True, False)
    """
    return any(variables.get(name) for name in BATCH_JOBS)


@final
class Allocation(msgspec.Struct, frozen=True):
    """Id of the job, and number of tasks by host, in Slurm's order."""

    job: str
    tasks: dict[str, int]


def allocation(variables: Mapping[str, str]) -> Allocation | None:
    """Allocation that these variables describe; ``None`` outside of an allocation.

    Inside a step of ``srun`` the task numbers are those of the step; then every CPU of the allocation counts as a task.
    """
    if not variables.get(JOB) or not variables.get(NODES):
        return None
    nodes = expand(variables[NODES])
    for name in (TASKS, CPUS):
        numbers = repeat(variables[name]) if variables.get(name) else ()
        if len(numbers) == len(nodes):
            return Allocation(variables[JOB], dict(zip(nodes, numbers, strict=True)))
    return Allocation(variables[JOB], dict.fromkeys(nodes, 1))
