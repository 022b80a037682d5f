"""Check of programs against the oracle, on jobs that are reused from program to program.

with Checker(sizes=(1, 2, 3)) as checker:
    verdicts = checker.check(program)
"""

from __future__ import annotations

import gc
from collections.abc import Sequence
from types import TracebackType
from typing import final

import msgspec

from workbench.differential.job import Nursery, RankPool
from workbench.differential.meeting import DeadlockError
from workbench.differential.oracle import consult
from workbench.differential.program import Program
from workbench.differential.verdict import Verdict, judge

DEADLINE_S = 45.0
"""Deadline of a program of some milliseconds, on a busy machine; its job reports and ends a stall before that."""

CHILDREN = frozenset(
    {"spawn loader", "fork loader", "augmentation", "elastic loader", "child with init", "last checkpoint"}
)
CHILDREN_FACTOR = 4.0
"""Factor on the deadline of programs that start interpreters: each child imports PyTorch, slowly on a busy machine."""

STALLS_SOON = {"stall_warning_s": 2, "stall_shutdown_s": 6}
"""Settings of programs whose ranks wait for each other in the oracle, too: a longer wait shows nothing more."""


@final
class Checker:
    """Jobs of the requested sizes, made on demand, by a nursery of its own unless one is given."""

    def __init__(
        self, sizes: Sequence[int] = (1, 2, 3), deadline_s: float = DEADLINE_S, nursery: Nursery | None = None
    ) -> None:
        self.sizes, self.deadline_s = tuple(sizes), deadline_s
        self.started = 0
        self._jobs: dict[int, RankPool] = {}
        self._own = nursery is None
        self._nursery = nursery or Nursery()

    def check(self, program: Program, sizes: Sequence[int] = ()) -> list[Verdict]:
        """Run a program on jobs of these sizes (default: all), and compare with the oracle; one verdict for each."""
        chosen = tuple(sizes) or self.sizes
        function = program.compiled()
        expected = {size: consult(function, size) for size in chosen}
        function.__globals__.clear()  # it is in its own globals: else only the cycle collector would free them
        deadline_s = self.deadline_s * (CHILDREN_FACTOR if CHILDREN & {*program.features} else 1.0)
        # The jobs of all sizes work at once, each in its own processes: nothing is read before all have begun.
        for size in chosen:
            stalls = any(o.failure and o.failure.kind == DeadlockError.__name__ for o in expected[size])
            settings = {**program.settings, **STALLS_SOON} if stalls else program.settings
            self._job(size).begin(msgspec.structs.replace(program, settings=settings), deadline_s)
        return [judge(program, expected[size], self._jobs[size].finish()) for size in chosen]

    def first_finding(self, program: Program, sizes: Sequence[int] = ()) -> Verdict | None:
        """The finding on the smallest job that shows one."""
        return next((verdict for verdict in self.check(program, sizes) if verdict.is_finding), None)

    def confirm(self, program: Program, finding: Verdict) -> Verdict | None:
        """Repeat a finding on a new job; ``None`` if it does not occur again."""
        self.forget(finding.size)
        return self.first_finding(program, (finding.size,))

    def forget(self, size: int) -> None:
        """Use a new job of that size next time."""
        job = self._jobs.pop(size, None)
        if job is not None:
            job.close()

    def close(self) -> None:
        """End the jobs, and free what the oracle's programs left in cycles: a shared model has a descriptor."""
        for size in tuple(self._jobs):
            self.forget(size)
        if self._own:
            self._nursery.close()
        gc.collect()

    def _job(self, size: int) -> RankPool:
        job = self._jobs.get(size)
        if job is None or not job.usable:
            self.forget(size)
            job = self._jobs[size] = self._nursery.job(size)
            self.started += 1
        return job

    def __enter__(self) -> Checker:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close()
