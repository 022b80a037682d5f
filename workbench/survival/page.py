"""The page ``docs/reference/faults.md``."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Callable, Mapping, Sequence

from workbench.survival.table import CaseResult

TEXT = """\
# What an elastic job survives

`make faults` writes this page. It plays these faults one after the other, each at the phase of the step in the second
column, in jobs of four workers: on one host, on two hosts with two workers each (network namespaces), and on two nodes
of a Slurm cluster. A lost worker is replaced before the next fault. The checks for every fault are:

- the workers that it does not hit keep their processes;
- at most the current step is computed again, and no step if workers were ordered to leave;
- all ranks begin each generation with the same bits;
- at the end, each sample of each epoch was committed exactly once, and the job exits with 0.

*detect*: from the fault until the other workers are informed of it. *re-form*: until they form a generation again and
agree on the state. *first step*: until the next step is committed. All times are in seconds. A hang is detected after
the 5 s of `--hang-timeout`, a silent host after the 3 s of `--host-timeout`. An endless loop in the script looks like a
long validation, and ends after `--stall-check-shutdown-time-seconds`: 600 s, and 10 s in the job in which it is played.
A fault that is only slow, or harmless, must end no generation: then no time is measured.

With PyTorch all ranks vote on every step. JAX and Keras (`make faults FRAMEWORK=jax`, `FRAMEWORK=keras`) return to the
last commit, in these jobs every second step: only steps that were not committed are computed again. Their training
counts in its weights how often each sample was applied; at the end all weights equal the number of epochs, on every
worker. *reduced* is inside the compiled step, after the reduction and before the weights change.

"""

QUIET = 1.0
"""Load of a machine that runs nothing else; a build that has just ended still counts."""

HEAD = "| fault | phase | detect | re-form | first step | together | |\n|---|---|---|---|---|---|---|\n"


def page(jobs: Mapping[str, Sequence[CaseResult]], before: str = "", load: float = 0.0) -> str:
    """The whole page: a table for each job, under its title, and tables of the page ``before`` under other titles.

    ``load``: load of the machine when the jobs began.
    """
    beside = f"Measured beside other work, a load of {load:.0f}.\n\n" if load > QUIET else ""
    machine = f"Measured on a machine with {os.cpu_count()} cores ({platform.machine()}, Linux)"
    machine += " that ran nothing else, unless another load is named."
    sections = {title: text for title, _, text in (each.partition("\n\n") for each in before.split("\n## ")[1:])}
    sections |= {title: "".join([beside, *_table(results)]) for title, results in jobs.items()}
    return "".join([TEXT, machine, "\n", *(f"\n## {title}\n\n{text.rstrip()}\n" for title, text in sections.items())])


def row(result: CaseResult) -> str:
    """One line of the table."""
    times = (result.detect_s, result.form_s, result.first_step_s, result.total_s)
    shown = " | ".join("" if each is None else f"{each:.3f}" for each in times)
    return f"| {result.case.fault} | {result.case.phase} | {shown} | {'**failed**' if result.wrong else 'survived'} |"


def _table(results: Sequence[CaseResult]) -> list[str]:
    own: list[Callable[[CaseResult], float | None]] = [
        lambda r: r.detect_s, lambda r: r.form_s, lambda r: r.first_step_s, lambda r: r.total_s,
    ]  # fmt: skip
    found = [[value for each in results if (value := get(each)) is not None] for get in own]
    medians = " | ".join(f"{statistics.median(values):.3f}" if values else "" for values in found)
    return [HEAD, *(row(result) + "\n" for result in results), f"| **median** | | {medians} | |\n"]
