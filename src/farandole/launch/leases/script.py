"""Batch script of leases, which lend their nodes to a training that runs in another job. Pure.

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

The script names the folder of the run and holds no secret, as Slurm stores scripts. An agent on each node reads there
how to reach the training, and the lease ends with its agents. A lease that was preempted is not queued again: another
one is started if the training still wants it.
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
    """Size of each lease, and its time limit; with ``least_minutes`` (0: none) Slurm may make that shorter."""

    nodes: int
    workers_per_node: int
    minutes: int
    least_minutes: int = 0

    @property
    def workers(self) -> int:
        """Workers that a lease brings."""
        return self.nodes * self.workers_per_node


@final
class LeaseJob(msgspec.Struct, frozen=True):
    """Leases of a ``run`` whose ``folder`` says how to reach it.

    Of the ``options`` of its batch script they have all but name, size, time, output and secret variables, which their
    workers get by the training. ``path`` and ``launcher`` are as in a ``BatchJob``.
    """

    run: str
    folder: str
    shape: LeaseShape
    options: BatchOptions = BatchOptions()
    path: str = ""
    launcher: tuple[str, ...] = ("farandole",)

    @property
    def name(self) -> str:
        """The name of its jobs, for people: ``squeue --name=fdl-RUN``."""
        return f"fdl-{self.run}"


def parse_lease(text: str) -> LeaseShape:
    """``NODESxWORKERS@TIME``, with workers of each node, and ``,LEAST`` for a time that Slurm may shorten to so much.

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
    """The script of an array of leases; raises ``UsageError`` for what no script can say."""
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
    # ALL: what ``sbatch`` is given, which is less than what its caller has. A user's SBATCH_EXPORT must not say NONE.
    first = header(options, size, ("--no-requeue", "--export=ALL"))
    # One agent for each node, whatever the number of its tasks. Its charge comes from the folder, not from a stream.
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
