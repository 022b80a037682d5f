"""Shrinking: remove what a finding does not need.

small, verdict = shrink(program, finding, checker.first_finding)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

from workbench.differential.program import Program
from workbench.differential.verdict import Verdict

Find: TypeAlias = Callable[[Program, Sequence[int]], Verdict | None]
"""The finding of a program on jobs of these sizes, if there is one."""

SHRINK_S = 120.0


def shrink(
    program: Program,
    finding: Verdict,
    find: Find,
    until_s: float | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> tuple[Program, Verdict]:
    """The smallest program that greedy removal finds, and its verdict, which is of the same kind as ``finding``.

    Tries to remove runs of steps, longest first, then single steps, then settings, until nothing more can be removed or
    ``until_s`` of ``clock`` has passed.
    """
    end = clock() + SHRINK_S if until_s is None else until_s
    best, verdict, smaller = program, finding, True
    while smaller and clock() < end:
        smaller = False
        for candidate in candidates(best):
            if clock() >= end:
                break
            found = find(candidate, (verdict.size,))
            if found is not None and found.kind == verdict.kind:
                best, verdict, smaller = candidate, found, True
                break
    return best, verdict


def candidates(program: Program) -> Iterator[Program]:
    """Programs that are smaller, the smallest first."""
    steps, length = program.steps, len(program.steps)
    run = length // 2
    while run:
        for begin in range(length - run, -1, -run):
            yield program.replace(steps=steps[:begin] + steps[begin + run :])
        run //= 2
    for name in program.settings:
        yield program.replace(settings={key: value for key, value in program.settings.items() if key != name})
