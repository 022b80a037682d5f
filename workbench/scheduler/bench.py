"""Test bench of a scheduler: calls with their answers, and looks until a condition holds."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Mapping
from typing import final

from farandole.launch.leases.scheduler import Answer, CallDone, JobPhase, JobView, Looked, Scheduler, Submitted
from workbench.scheduler.under_test import SchedulerUnderTest

LONGEST_S = 60.0
"""Time for an answer, and for a condition; by the clock of the scheduler under test."""


@final
class SchedulerBench:
    """One scheduler under test. Raises ``AssertionError`` for wrong answers."""

    def __init__(self, under_test: SchedulerUnderTest, scheduler: Scheduler) -> None:
        self.under_test, self.scheduler = under_test, scheduler

    def answers(self, count: int) -> list[Answer]:
        """Wait for so many answers."""
        found: list[Answer] = []
        until_s = self.under_test.now() + LONGEST_S
        while len(found) < count:
            came = self.scheduler.answers()
            found += came
            if not came:
                left_s = until_s - self.under_test.now()
                assert left_s > 0, f"{len(found)} of {count} answers came in {LONGEST_S:g} s: {found}"
                assert self.scheduler.deadline_s is not None, f"only {found} came, and no call has a deadline"
                self.under_test.wait(self.scheduler)
        assert len(found) == count, f"{count} calls have {len(found)} answers: {found}"
        return found

    def answer(self) -> Answer:
        """Wait for the answer of the only call."""
        return self.answers(1)[0]

    def submitted(self, count: int, minutes: int = 5) -> str:
        """Submit jobs; returns the number of their array."""
        nonce = secrets.token_hex(4)
        self.scheduler.submit(self.under_test.script(minutes), count, nonce)
        answer = self.answer()
        assert isinstance(answer, Submitted), f"submit of {count} jobs: {answer}"
        assert answer.nonce == nonce, f"submit with the nonce {nonce}: {answer}"
        assert answer.array, f"submit of {count} jobs gave no number: {answer}"
        return answer.array

    def started(self, count: int, minutes: int = 5) -> str:
        """Submit jobs, start them and wait until they run; returns the number of their array."""
        array = self.submitted(count, minutes)
        for index in range(count):
            self.done("start", f"{array}_{index}")
        self.until(array, lambda jobs: phases(jobs) == dict.fromkeys(range(count), JobPhase.RUNNING), "all run")
        return array

    def done(self, call: str, job: str, *arguments: int) -> None:
        """Make a call that must succeed."""
        getattr(self.scheduler, call)(job, *arguments)
        answer = self.answer()
        assert answer == CallDone(call, job), f"{call} of {job}: {answer}"

    def look(self, array: str) -> Mapping[int, JobView]:
        """Look at the jobs of an array."""
        self.scheduler.look(array)
        answer = self.answer()
        assert isinstance(answer, Looked), f"look at {array}: {answer}"
        assert answer.array == array, f"look at {array}: {answer}"
        return answer.jobs

    def until(self, array: str, condition: Callable[[Mapping[int, JobView]], bool], what: str) -> Mapping[int, JobView]:
        """Look repeatedly until a condition holds; returns the jobs of the last look."""
        until_s = self.under_test.now() + LONGEST_S
        while not condition(jobs := self.look(array)):
            assert self.under_test.now() < until_s, f"not seen in {LONGEST_S:g} s: {what}; the jobs are {jobs}"
            self.under_test.pause()
        return jobs

    def stays(self, job: str, phase: JobPhase, looks: int = 5) -> None:
        """Look several times, with pauses; the job must be in this phase each time."""
        array, _, index = job.partition("_")
        for _ in range(looks):
            view = self.look(array).get(int(index))
            assert view is not None and view.phase is phase, f"{job} was {phase.value}, and became {view}"  # noqa: PT018
            self.under_test.pause()


def phases(jobs: Mapping[int, JobView]) -> dict[int, JobPhase]:
    """Phases of the jobs that are not gone, by index."""
    return {index: view.phase for index, view in jobs.items() if view.phase is not JobPhase.GONE}


def are_gone(*indices: int) -> Callable[[Mapping[int, JobView]], bool]:
    """Condition that these jobs of an array are gone."""
    gone: Collection[int] = set(indices)
    return lambda jobs: not gone & phases(jobs).keys()
