"""Batch script of leases: jobs that lend their nodes to a training in another job. Pure.

>>> shape = parse_lease("1x4@1h,20min")
>>> shape
LeaseShape(nodes=1, workers_per_node=4, minutes=60, least_minutes=20)
>>> print(lease_script(LeaseJob("a1b2", "/home/me/a1b2", shape)), end="")
#!/bin/bash
#SBATCH --job-name=fdl-a1b2
#SBATCH --nodes=1
#SBATCH --ntasks=4
#SBATCH --ntasks-per-node=4
#SBATCH --time=60
#SBATCH --time-min=20
#SBATCH --output=/home/me/a1b2/lease-%A_%a.out
#SBATCH --no-requeue
#SBATCH --export=ALL
<BLANKLINE>
exec srun --overlap ... --nodes=1 --ntasks=1 farandole join -np 4 /home/me/a1b2

The script names the run folder and contains no secret, because Slurm stores scripts. The agent on each node reads the
address of the training from that folder, and the lease ends with its agents. A preempted lease is not requeued: another
lease starts if the training still wants one.
"""

from __future__ import annotations

import re
import shlex
from typing import final

import msgspec

from farandole.errors import UsageError
from farandole.launch.agents.srun import OPTIONS
from farandole.launch.sbatch.environment import is_secret
from farandole.launch.sbatch.options import BatchOptions, header, line, minutes, preparation, script

_SHAPE = re.compile(r"([0-9]{1,5})x([0-9]{1,5})@([^,]+)(?:,([^,]+))?")


@final
class LeaseShape(msgspec.Struct, frozen=True):
    """Size of each lease, and its time limit, which Slurm may shorten down to ``least_minutes`` (0: not at all)."""

    nodes: int
    workers_per_node: int
    minutes: int
    least_minutes: int = 0

    @property
    def workers(self) -> int:
        """Workers of one lease."""
        return self.nodes * self.workers_per_node


@final
class LeaseJob(msgspec.Struct, frozen=True):
    """Lease jobs of a ``run`` with this ``folder``.

    They use all ``options`` of the run's batch script except name, size, time, output and secret variables; their
    workers get those variables from the training. ``path`` and ``launcher`` are as in a ``BatchJob``.
    """

    run: str
    folder: str
    shape: LeaseShape
    options: BatchOptions = BatchOptions()
    path: str = ""
    launcher: tuple[str, ...] = ("farandole",)

    @property
    def name(self) -> str:
        """Name of the jobs, for ``squeue --name=fdl-RUN``."""
        return f"fdl-{self.run}"


def parse_lease(text: str) -> LeaseShape:
    """Parse ``NODESxWORKERS@TIME[,LEAST]``: workers per node, and the least time to which Slurm may shorten the job.

    >>> parse_lease("2x8@1h30min").minutes
    90

    Raises ``UsageError`` for anything else.
    """
    match = _SHAPE.fullmatch(text)
    if match is None:
        raise _no_lease(text, "it has not this form")
    nodes, workers = int(match[1]), int(match[2])
    if not nodes or not workers:
        raise _no_lease(text, "it lends nothing")
    whole = _minutes(text, match[3])
    least = _minutes(text, match[4]) if match[4] else 0
    if least > whole:
        raise _no_lease(text, f"its least time, {match[4]}, is longer than its time, {match[3]}")
    return LeaseShape(nodes, workers, whole, least)


def lease_script(job: LeaseJob) -> str:
    """The batch script of an array of leases; raises ``UsageError`` for values that no script can hold."""
    shape = job.shape
    size = {
        "job-name": job.name,
        "nodes": shape.nodes,
        "ntasks": shape.workers,
        "ntasks-per-node": shape.workers_per_node,
        "time": shape.minutes,
        "time-min": shape.least_minutes or None,
    }
    options = msgspec.structs.replace(
        job.options,
        output=f"{job.folder.replace('%', '%%')}/lease-%A_%a.out",
        environment={name: value for name, value in job.options.environment.items() if not is_secret(name)},
    )
    # ALL: the variables passed to ``sbatch``, a subset of the caller's. It overrides a user's SBATCH_EXPORT=NONE.
    first = header(options, size, ("--no-requeue", "--export=ALL"))
    # One agent per node, for any number of tasks. The agent reads its config from the folder, not from standard input.
    step = ["srun", *OPTIONS, "--input=none", f"--nodes={shape.nodes}", f"--ntasks={shape.nodes}"]
    start = shlex.join([*step, *job.launcher, "join", "-np", str(shape.workers_per_node), line("folder", job.folder)])
    return script(first, preparation(options, job.path), [f"exec {start}"])


def _minutes(lease: str, text: str) -> int:
    if not (total := minutes(text)):
        raise _no_lease(lease, f"{text!r} is no time such as 45min, 1h, 1h30min or 2d")
    return total


def _no_lease(text: str, why: str) -> UsageError:
    return UsageError(
        f"--lease {text!r}: {why}; write NODESxWORKERS@TIME: 1x4@1h is a node with 4 workers for an hour, 2x8@90min is "
        "two nodes with 8 each, and 1x4@1h,20min one that may be as short as 20 minutes if it starts earlier then"
    )
