"""Texts about exited workers: how each exited, its last lines, and advice if they match a known error. Pure.

>>> words = ExitWording()
>>> exited = words.describe(WorkerExited(1, 3, tail="no disk"), "hostA")
>>> exited.description
'rank 1 on hostA exited with code 3'
>>> words.account(exited)
['rank 1 on hostA exited with code 3; the last lines of its stderr:', '    no disk']
>>> advice("ModuleNotFoundError: No module named 'horovod'", horovod=False).partition(":")[0]
'its script imports horovod'
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from typing import NamedTuple, final

import msgspec

from farandole.control.exits import WorkerExited
from farandole.control.process import describe

SHORTAGE = " (out of memory? the kernel has just killed a process of that host for that)"

ABOVE = "its traceback is above"
"""Text for a terminal; on a web page the output stands below."""

MISSING = ("ModuleNotFoundError:", "ImportError:")
"""Exceptions of a script whose Python lacks a package."""

_NO_HOROVOD = re.compile(r"^\s*ModuleNotFoundError: No module named 'horovod'", re.MULTILINE)


def advice(tail: str, horovod: bool) -> str:
    """Advice after the exit of a worker whose standard error ended with ``tail``; "" if there is none.

    ``horovod`` is the setting of the job.
    """
    if not _NO_HOROVOD.search(tail):
        return ""
    if horovod:
        return (
            "its script imports horovod, and neither PYTHONPATH nor FARANDOLE_HOROVOD has reached it: "
            "type once, with the same Python: farandole horovod install"
        )
    return (
        "its script imports horovod: add --horovod (farandole run --horovod ...), "
        "or type once: farandole horovod install"
    )


@final
class ExitWording(NamedTuple):
    """Wording of one job. ``title``: its word for a worker.

    ``shown``: this terminal already shows the workers' output; ``horovod``: the setting of the job; ``python``: the
    interpreter that the workers run, if it is another one than that of this process.
    """

    title: str = "rank"
    shown: bool = False
    horovod: bool = False
    python: str = ""

    def describe(self, exited: WorkerExited, host: str) -> WorkerExited:
        """Copy of ``exited`` with the host of the worker and a description: worker, host and how it exited."""
        who = f"{self.title} {exited.worker_id} on {host}"
        ended = f"{describe(exited.code)}{SHORTAGE if exited.out_of_memory else ''}"
        description = f"{who} could not be started: {exited.error}" if exited.error else f"{who} {ended}"
        return msgspec.structs.replace(exited, host=host, description=description)

    def account(self, *exits: WorkerExited) -> list[str]:
        """Exits, each with the last lines of standard error, and each advice once.

        If a traceback was already shown, only its exception is repeated.
        """
        lines: list[str] = []
        for exited in exits:
            lines += self._account(exited)
            hint = advice(exited.tail, self.horovod) or self._advice_on_python(exited)
            lines += [hint] if hint and hint not in lines else []
        return lines

    def _account(self, exited: WorkerExited) -> list[str]:
        if exited.error:
            return [exited.description]
        lines = exited.tail.splitlines()
        raised = raised_lines(lines) if self.shown else []
        if raised:
            words = f"{exited.description}; {ABOVE}, at [{exited.worker_id}]<stderr>:"
        else:
            found = "the last lines of its stderr:" if lines else "it wrote nothing to stderr"
            words = f"{exited.description}; {found}"
        return [words, *(f"    {line}" for line in raised or lines)]

    def _advice_on_python(self, exited: WorkerExited) -> str:
        raised = raised_lines(exited.tail.splitlines())[:1]
        if not self.python or exited.code != 1 or not "".join(raised).startswith(MISSING):
            return ""
        return (
            f"the command ran {self.python}, and the Python of farandole is {sys.executable}, which may have what the "
            f"other lacks: activate its environment, or type farandole run ... {sys.executable} ..."
        )


def raised_lines(lines: Sequence[str]) -> list[str]:
    """Last lines of an output, from the exception of the last traceback on; [] if there is no traceback.

    >>> raised_lines(["Traceback ...", '  File "a.py", line 1, in <module>', "    f()", "OSError: no"])
    ['OSError: no']
    """
    frames = [number for number, line in enumerate(lines) if line.startswith('  File "')]
    after = range(frames[-1] + 1, len(lines)) if frames else ()
    return next((list(lines[number:]) for number in after if not lines[number].startswith(" ")), [])
