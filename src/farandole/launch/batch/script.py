"""Batch script of a training, from its options. Pure.

    >>> options = BatchOptions(nodes=2, time="1:00:00")
    >>> print(batch_script(BatchJob(["python", "train.py"], ["-np", "8"], 8, options)), end="")
    #!/bin/bash
    #SBATCH --job-name=train
    #SBATCH --nodes=2
    #SBATCH --ntasks=8
    #SBATCH --ntasks-per-node=4
    #SBATCH --time=1:00:00
    #SBATCH --output=%x-%j.out
    <BLANKLINE>
    exec farandole run -np 8 python train.py

The launcher reads hosts and slots from the allocation, and starts its agents with one ``srun``: no host is named.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import final

import msgspec

from farandole.errors import UsageError
from farandole.launch.sbatch.options import (
    BEFORE_NOTICE_S,
    TOLD_TO_END,
    BatchOptions,
    header,
    notice_s,
    preparation,
    script,
    time_limit,
)


@final
class BatchJob(msgspec.Struct, frozen=True):
    """A training: ``command`` on ``workers`` workers, run by ``farandole run`` with ``run_options``.

    An ``elastic`` job leaves when Slurm tells it to, and is requeued. ``path``: a folder that the script puts first in
    ``PATH``, so that it uses the submitter's commands. ``launcher``: command of Farandole.
    """

    command: list[str]
    run_options: list[str]
    workers: int
    options: BatchOptions = BatchOptions()
    elastic: bool = False
    path: str = ""
    launcher: tuple[str, ...] = ("farandole",)

    @property
    def name(self) -> str:
        """The given name, or the name of the first script in the command, its module, or its program."""
        return self.options.job_name or _name_of(self.command)


def batch_script(job: BatchJob) -> str:
    """The script of a job; raises ``UsageError`` for values that no script can contain."""
    # Slurm sends the notice only to job steps, and on one node the launcher would start none.
    notice = ["--launcher", "srun"] if job.elastic else []
    run = shlex.join([*job.launcher, "run", *notice, *job.run_options, *job.command])
    if not job.elastic:
        return script(_options(job), preparation(job.options, job.path), [f"exec {run}"])
    least_s = notice_s(job.options) + BEFORE_NOTICE_S
    start = _AGAIN.format(run=run, told=TOLD_TO_END, least_s=least_s).splitlines()
    return script(_options(job), preparation(job.options, job.path), start)


_AGAIN = """\
limit=$(squeue --noheader --all --jobs="$SLURM_JOB_ID" --format=%l || true) # below an hour: minutes:seconds
if [[ "$limit" =~ ^([0-9]+):([0-9]+)$ ]] && ((60 * 10#${{BASH_REMATCH[1]}} + 10#${{BASH_REMATCH[2]}} < {least_s})); then
    echo "farandole: a time limit of $limit leaves no time to train before the notice: submit with -t 20" >&2
    exit 2
fi
status=0
{run} || status=$?
if [ "$status" = {told} ]; then # Slurm has told the workers to end, and they have left at a commit
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$status\""""


def _options(job: BatchJob) -> list[str]:
    """First lines, with the options of ``sbatch``."""
    asked = job.options
    size = {
        "job-name": job.name,
        "nodes": asked.nodes,
        "ntasks": job.workers,
        "ntasks-per-node": _per_node(job),
        "time": time_limit(asked.time),
    }
    again = (f"--signal=TERM@{notice_s(asked)}", "--requeue", "--open-mode=append") if job.elastic else ()
    return header(asked, size, again)


def _per_node(job: BatchJob) -> int | None:
    """Workers per node; ``None``: Slurm places them, because nodes are not given or do not divide the workers."""
    nodes = job.options.nodes
    if nodes is None or nodes < 1:
        return None
    if job.workers < nodes:
        raise UsageError(
            f"{job.workers} workers on {nodes} nodes: some would have none; ask for at most {job.workers} nodes"
        )
    return None if job.workers % nodes else job.workers // nodes


def _name_of(command: Sequence[str]) -> str:
    module = command[command.index("-m") + 1 :] if "-m" in command else []
    script = next((word for word in command if word.endswith((".py", ".sh"))), next(iter(module), command[0]))
    return (
        "".join(letter if letter.isalnum() or letter in "._-" else "_" for letter in Path(script).stem) or "farandole"
    )
