"""Options of batch scripts, and the lines that they become. Pure.

>>> options = BatchOptions(partition="gpu", modules=["CUDA/12.4"])
>>> print(script(header(options, {"nodes": 2}), preparation(options)), end="")
#!/bin/bash
#SBATCH --nodes=2
#SBATCH --partition=gpu
#SBATCH --output=%x-%j.out
<BLANKLINE>
set -e
module load CUDA/12.4
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, final

import msgspec

from farandole.errors import UsageError

TOLD_TO_END = 143
"""Exit status of a job whose workers were told to end, and have left at a commit: it is to be queued again."""


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


def header(asked: BatchOptions, before: Mapping[str, Any], after: Iterable[str] = ()) -> list[str]:
    """First lines of a script: the options ``before`` all others by name, then those ``asked`` for, then ``after``.

    Options without a value are left out; those of ``sbatch`` come last, as the last one counts. Raises ``UsageError``
    for what no script can say.
    """
    values = {
        **before,
        "partition": asked.partition,
        "account": asked.account,
        "qos": asked.qos,
        "cpus-per-task": asked.cpus_per_task,
        "mem": asked.mem,
        "gres": asked.gres,
        "gpus-per-node": asked.gpus_per_node,
        "output": asked.output,
    }
    options = [
        *(f"--{name}={_value(name, value)}" for name, value in values.items() if value not in ("", None)),
        *after,
        *(line("sbatch", option) for option in asked.sbatch),
    ]
    return ["#!/bin/bash", *(f"#SBATCH {option}" for option in options)]


def preparation(asked: BatchOptions, path: str = "") -> Iterator[str]:
    """Lines that come before the training. What fails there ends the job: a training on half of it would be wrong.

    ``path`` is a folder to put before all others of ``PATH``.
    """
    lines = [
        *(f"module load {shlex.quote(line('modules', module))}" for module in asked.modules),
        *(line("setup", each) for each in asked.setup),
        *(f"export {_name(name)}={shlex.quote(line(name, value))}" for name, value in asked.environment.items()),
    ]
    if path:
        lines.append(f"export PATH={shlex.quote(line('PATH', path))}:$PATH")
    if lines:
        yield "set -e"
        yield from lines


def script(*parts: Iterable[str]) -> str:
    """Text of a script out of its parts, with an empty line between them."""
    return "\n\n".join("\n".join(lines) for lines in map(list, parts) if lines) + "\n"


def line(name: str, text: str) -> str:
    """The text, if it can stand in one line; raises ``UsageError`` with the ``name`` of what it is."""
    if "\n" in text or "\r" in text:
        raise UsageError(f"{name} {text!r}: it stands in one line of a batch script, so write it without line breaks")
    return text


def _value(name: str, value: Any) -> str:
    """The value of an option of ``sbatch`` as a script spells it."""
    text = line(name, str(value))
    if '"' in text:
        raise UsageError(f"{name} {text!r}: sbatch reads no quotation marks inside of a value, so write it without any")
    return f'"{text}"' if any(letter.isspace() or letter in "#'" for letter in text) else text


def _name(name: str) -> str:
    if not name.isidentifier() or not name.isascii():
        raise UsageError(f"{name!r} is no name of a variable: write --env NAME=VALUE")
    return name
