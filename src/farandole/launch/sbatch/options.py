"""Options of batch scripts, and their lines in the script. Pure.

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

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, final

import msgspec

from farandole.errors import UsageError

TOLD_TO_END = 143
"""Exit status of a job whose workers were told to end and have left at a commit: the job must be requeued."""

NOTICE_S = 300
"""Longest default notice: enough for most scripts to save a checkpoint."""

BEFORE_NOTICE_S = 120
"""Least time of a job before its notice: a minute to train, and one by which Slurm may send the notice early."""

_LIMIT = re.compile(r"[0-9]+(:[0-9]+){0,2}|[0-9]+-[0-9]+(:[0-9]+){0,2}|unlimited|infinite", re.IGNORECASE)
_DURATION = re.compile(r"(?:([0-9]{1,4})d)?(?:([0-9]{1,5})h)?(?:([0-9]{1,6})min)?")


@final
class BatchOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="kebab"):
    """Options of a batch script, named as in ``sbatch``; a file of defaults has the same keys.

    ``sbatch``: further options, as on its command line. ``modules``, ``setup`` (lines of shell) and ``environment``
    precede the training, in this order. ``notice``: seconds before the end at which an elastic job must leave;
    ``None``: as much as its time limit allows (``notice_s``).
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
    notice: int | None = None


def header(asked: BatchOptions, before: Mapping[str, Any], after: Iterable[str] = ()) -> list[str]:
    """First lines of a script: the options ``before``, by name, then ``asked``, then ``after``.

    Options without a value are left out; ``asked.sbatch`` comes last, because the last option counts. Raises
    ``UsageError`` for values that no script can contain.
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
        *map(_option, asked.sbatch),
    ]
    return ["#!/bin/bash", *(f"#SBATCH {option}" for option in options)]


def time_limit(text: str) -> str:
    """Time limit in the format of ``sbatch``, from that format or from ``1h30min``; raises ``UsageError``.

    >>> time_limit("1-12:00"), time_limit("1h30min")
    ('1-12:00', '90')
    """
    if not text or _LIMIT.fullmatch(text):
        return text
    if not (limit := minutes(text)):
        raise UsageError(f"time {text!r}: write MINUTES, HH:MM:SS, DAYS-HH or a time such as 45min, 1h30min or 2d")
    return str(limit)


def minutes(text: str) -> int:
    """Minutes of a time such as ``45min``, ``1h30min`` or ``2d``; 0 for an invalid text."""
    match = _DURATION.fullmatch(text)
    days, hours, rest = (int(number or 0) for number in match.groups()) if match else (0, 0, 0)
    return (days * 24 + hours) * 60 + rest


def limit_s(text: str) -> int | None:
    """Seconds of a time limit in the format of ``sbatch``; ``None`` if it is missing or unlimited.

    >>> limit_s("5"), limit_s("1:30"), limit_s("1:00:00"), limit_s("1-12"), limit_s("")
    (300, 90, 3600, 129600, None)
    """
    days, dash, rest = text.rpartition("-")
    if not rest[:1].isdecimal():
        return None
    numbers = [int(number) for number in rest.split(":")]
    if not dash and len(numbers) < 3:  # without days the first number is minutes
        numbers.insert(0, 0)
    hours, minutes, seconds = [*numbers, 0, 0][:3]
    return ((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds


def notice_s(asked: BatchOptions) -> int:
    """Notice of an elastic job: as requested, or a quarter of the time limit, at most ``NOTICE_S``.

    Raises ``UsageError`` if it leaves no time to train: the job would be requeued forever.
    """
    limit = limit_s(time_limit(asked.time))
    notice = asked.notice if asked.notice is not None else NOTICE_S if limit is None else min(NOTICE_S, limit // 4)
    if limit is not None and limit < notice + BEFORE_NOTICE_S:
        shorter = f", or --notice {limit - BEFORE_NOTICE_S}" if limit > BEFORE_NOTICE_S else ""
        raise UsageError(
            f"a time limit of {limit} s leaves no time to train before the notice of {notice} s, which Slurm may send "
            f"a minute earlier, and the job would be queued again for ever: write a longer one, -t 20{shorter}"
        )
    return notice


def preparation(asked: BatchOptions, path: str = "") -> Iterator[str]:
    """Lines before the training. If one fails, the job ends: training with an incomplete setup would be wrong.

    ``path``: a folder to put first in ``PATH``.
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
    """Text of a script from its parts, with an empty line between them."""
    return "\n\n".join("\n".join(lines) for lines in map(list, parts) if lines) + "\n"


def line(name: str, text: str) -> str:
    """``text``, if it fits in one line; raises ``UsageError`` with the option's ``name``."""
    if "\n" in text or "\r" in text:
        raise UsageError(f"{name} {text!r}: it stands in one line of a batch script, so write it without line breaks")
    return text


def _value(name: str, value: Any) -> str:
    """The value of an ``sbatch`` option, quoted for a script."""
    text = line(name, str(value))
    if '"' in text:
        raise UsageError(f"{name} {text!r}: sbatch reads no quotation marks inside of a value, so write it without any")
    return f'"{text}"' if any(letter.isspace() or letter in "#'" for letter in text) else text


def _option(given: str) -> str:
    """An option as given in a shell (which removes quotes), quoted for a script.

    >>> _option("--comment=a b"), _option("--exclusive"), _option("-C a")
    ('--comment="a b"', '--exclusive', '-C a')
    """
    name, equals, value = given.partition("=")
    is_bare = name.startswith("--") and equals and value[:1] not in ("'", '"')
    return f"{name}={_value(name, value)}" if is_bare else line("sbatch", given)


def _name(name: str) -> str:
    if not name.isidentifier() or not name.isascii():
        raise UsageError(f"{name!r} is no name of a variable: write --env NAME=VALUE")
    return name
