"""Batch script of a training, from what was asked. Pure.

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

The launcher takes hosts and slots from the allocation, and starts its agents by one ``srun``: the script names no host.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, final

import msgspec

from farandole.errors import UsageError

TOLD_TO_END = 143
"""Exit status of a job whose workers were told to end, and have left at a commit."""


@final
class BatchOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="kebab"):
    """Options of a batch script, named as those of ``sbatch``; a file of defaults has the same keys.

    ``sbatch`` are further options of it, as on its command line. ``modules``, ``setup`` (lines of shell) and
    ``environment`` come before the training, in this order. ``notice`` is the time, in seconds, that an elastic job
    gets for leaving before Slurm ends it.
    """

    job_name: str = ""
    nodes: int | None = None
    time: str = ""
    partition: str = ""
    account: str = ""
    qos: str = ""
    cpus_per_task: int | None = None
    mem: str = ""
    gres: str = ""
    gpus_per_node: str = ""
    output: str = "%x-%j.out"
    sbatch: list[str] = []
    modules: list[str] = []
    setup: list[str] = []
    environment: dict[str, str] = {}
    notice: int = 300


@final
class BatchJob(msgspec.Struct, frozen=True):
    """A training: ``command`` on ``workers`` workers, by ``farandole run`` with ``run_options``.

    An ``elastic`` one leaves when it is told to, and is queued again. ``path`` is a folder that the script puts before
    all others of ``PATH``, so that its commands are those of whoever submits it. ``launcher`` is what starts it all.
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
        """The name that was asked for, or that of the first script in the command, of its module, or its program."""
        return self.options.job_name or _name_of(self.command)


def batch_script(job: BatchJob) -> str:
    """The script of a job; raises ``UsageError`` for what no script can say."""
    run = shlex.join([*job.launcher, "run", *job.run_options, *job.command])
    parts = [
        ["#!/bin/bash", *(f"#SBATCH {option}" for option in _options(job))],
        list(_preparation(job)),
        _AGAIN.format(run=run, told=TOLD_TO_END).splitlines() if job.elastic else [f"exec {run}"],
    ]
    return "\n\n".join("\n".join(lines) for lines in parts if lines) + "\n"


_AGAIN = """\
status=0
{run} || status=$?
if [ "$status" = {told} ]; then # Slurm has told the workers to end, and they have left at a commit
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$status\""""


def _options(job: BatchJob) -> Iterator[str]:
    """Options of ``sbatch``, in the order of the fields."""
    asked = job.options
    per_node = _per_node(job)
    values = {
        "job-name": job.name,
        "nodes": asked.nodes,
        "ntasks": job.workers,
        "ntasks-per-node": per_node,
        "time": asked.time,
        "partition": asked.partition,
        "account": asked.account,
        "qos": asked.qos,
        "cpus-per-task": asked.cpus_per_task,
        "mem": asked.mem,
        "gres": asked.gres,
        "gpus-per-node": asked.gpus_per_node,
        "output": asked.output,
    }
    yield from (f"--{name}={_value(name, value)}" for name, value in values.items() if value not in ("", None))
    if job.elastic:
        yield from (f"--signal=TERM@{asked.notice}", "--requeue", "--open-mode=append")
    yield from (_line("sbatch", option) for option in asked.sbatch)


def _per_node(job: BatchJob) -> int | None:
    """Workers of each node; ``None``: Slurm places them, where no number of nodes was given, or they are uneven."""
    nodes = job.options.nodes
    if nodes is None or nodes < 1:
        return None
    if job.workers < nodes:
        raise UsageError(
            f"{job.workers} workers on {nodes} nodes: some would have none; ask for at most {job.workers} nodes"
        )
    return None if job.workers % nodes else job.workers // nodes


def _preparation(job: BatchJob) -> Iterator[str]:
    """Lines that come before the training. What fails there ends the job: a training on half of it would be wrong."""
    asked = job.options
    lines = [
        *(f"module load {shlex.quote(_line('modules', module))}" for module in asked.modules),
        *(_line("setup", line) for line in asked.setup),
        *(f"export {_name(name)}={shlex.quote(_line(name, value))}" for name, value in asked.environment.items()),
    ]
    if job.path:
        lines.append(f"export PATH={shlex.quote(_line('PATH', job.path))}:$PATH")
    if lines:
        yield "set -e"
        yield from lines


def _name_of(command: Sequence[str]) -> str:
    module = command[command.index("-m") + 1 :] if "-m" in command else []
    script = next((word for word in command if word.endswith((".py", ".sh"))), next(iter(module), command[0]))
    return (
        "".join(letter if letter.isalnum() or letter in "._-" else "_" for letter in Path(script).stem) or "farandole"
    )


def _value(name: str, value: Any) -> str:
    """The value of an option of ``sbatch`` as a script spells it."""
    text = _line(name, str(value))
    if '"' in text:
        raise UsageError(f"{name} {text!r}: sbatch reads no quotation marks inside of a value, so write it without any")
    return f'"{text}"' if any(letter.isspace() or letter in "#'" for letter in text) else text


def _line(name: str, text: str) -> str:
    if "\n" in text or "\r" in text:
        raise UsageError(f"{name} {text!r}: it stands in one line of a batch script, so write it without line breaks")
    return text


def _name(name: str) -> str:
    if not name.isidentifier() or not name.isascii():
        raise UsageError(f"{name!r} is no name of a variable: write --env NAME=VALUE")
    return name
