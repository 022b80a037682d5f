"""Study of a search: its trials, their results, and which trial is next. No processes, and no clock.

    study = Study(plan, log, advisor)
    number = study.next()                                   # a trial that begins or goes on
    goes_on, reason = study.report(number, epoch=1, value=0.3)
    study.close()                                           # the search is over

Each change is written to the log before it takes effect, so a new study with the same log resumes where the previous
study was killed: trials that had begun go on first, from their last rung.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, final, get_args

import msgspec

from farandole.search.advisor import Advisor, Parameters, Phase, TrialResult
from farandole.search.rungs import Next, Rungs, Standing, after_rung, promote, sound
from farandole.search.space import Space

if TYPE_CHECKING:  # it needs Optuna, which may not be installed: ``search`` reports that, not an import
    from farandole.search.trial_log import LoggedTrial, TrialLog

ATTEMPTS = 3
"""Number of times that a trial begins again from its last rung after it lost all its workers; then it has failed."""

HELD = "paused by a user"


@final
class StudyPlan(msgspec.Struct, frozen=True):
    """Plan of a search: its space, the number of ``trials``, the rungs, whether small values are good, and the seed."""

    space: Space
    trials: int
    rungs: Rungs
    minimize: bool
    seed: int


@final
class StudyTrial(msgspec.Struct):
    """One trial. ``goal``: epoch up to which it may train. ``is_active``: it has workers.

    ``is_held``: a user has paused it (not logged). ``said``: number of values that it has reported. ``is_stopping``: a
    user has stopped it, and it still has workers; values that it reports until then count. ``again``: number of the
    trial that it repeats, -1 for a planned trial.
    """

    number: int
    parameters: Parameters
    seed: int
    goal: int
    values: dict[int, float]
    phase: Phase
    why: str = ""
    is_active: bool = False
    losses: int = 0
    is_held: bool = False
    is_stopping: bool = False
    said: int = 0
    again: int = -1
    metrics: dict[int, dict[str, float]] = msgspec.field(default_factory=dict)
    """Other numbers that it has reported, by epoch and name."""
    at_rungs: tuple[tuple[int, Phase], tuple[float, ...]] | None = None
    """Losses at the rungs that it has reached, with the key under which they are cached."""

    @property
    def epoch(self) -> int:
        """Last epoch that was reported; 0 before the first."""
        return max(self.values, default=0)

    @property
    def value(self) -> float | None:
        """Value at the last epoch that was reported."""
        return self.values[self.epoch] if self.values else None


def to_reopen(trials: Sequence[LoggedTrial], top: int, epochs: int) -> list[int]:
    """Trials that may go on because a search is resumed with more trials or epochs than before.

    These are the trials that the end of the search pruned, without those that a user stopped; and, if ``epochs``
    exceeds ``top``, trials that have trained ``top`` epochs. A trial whose function returned earlier does not go on.
    """
    return [
        each.number
        for each in trials
        if (each.phase == "pruned" and not each.why)
        or (each.phase == "complete" and top < epochs and max(each.values, default=0) >= top)
    ]


@final
class Study:
    """Study of a ``plan``, with all trials that its ``log`` has. One thread."""

    def __init__(self, plan: StudyPlan, log: TrialLog, advisor: Advisor) -> None:
        self.plan, self._log, self._advisor = plan, log, advisor
        self.rows = [self._row(each) for each in log.trials()]
        self._is_exhausted = False
        self._counted: tuple[list[Any], int] = [], 0  # key, and number of trials that are left
        self.is_paused = False
        """True if a user has paused the whole search: trials leave at their next report, and none begins."""
        for row in self.rows:
            self._tell_advisor(row)
        for row in self.rows:
            if row.phase == "running" and row.epoch >= plan.rungs.levels[-1]:  # the log entry of its end was lost
                self._finish(row, "complete")
            elif row.is_stopping:  # the search was killed before this trial had left its workers
                self._finish(row, "pruned")

    # -- what is next -------------------------------------------------------------------------------------------------

    def next(self) -> tuple[int | None, str]:
        """Next trial to get workers, and the reason; ``None`` if there is none now. The trial becomes active."""
        if self.is_paused:
            return None, "the search is paused"
        row, reason = self._interrupted(), "it was interrupted"
        if row is not None and row.again >= 0 and not row.values:
            reason = f"it repeats trial {row.again}"
        if row is None:
            number, reason = promote(self.plan.rungs, self._standings(), is_more=self._may_begin)
            row = None if number is None else self.rows[number]
            if row is not None:
                self._let_go(row)
        if row is None and self._may_begin:
            row, reason = self._begin(), "it is new"
        if row is None:
            return None, reason
        row.is_active = True
        return row.number, reason

    @property
    def waiting(self) -> int:
        """Number of trials that could have workers now."""
        held = sum(row.is_held and row.phase == "running" and not row.is_active for row in self.rows)
        return 0 if self.is_paused else self._left - held

    @property
    def _left(self) -> int:
        """Number of trials that will still get workers, as far as this is known."""
        key = [self.plan, self._is_exhausted, *((row.phase, row.is_active, row.said) for row in self.rows)]
        if key != self._counted[0]:
            self._counted = key, self._count_left()
        return self._counted[1]

    def _count_left(self) -> int:
        interrupted = sum(row.phase == "running" and not row.is_active for row in self.rows)
        new = self.plan.trials - self._planned if self._may_begin else 0
        standings, promoted = self._standings(), 0
        while (found := promote(self.plan.rungs, standings, is_more=self._may_begin)[0]) is not None:
            standings = [each._replace(is_going=True) if each.number == found else each for each in standings]
            promoted += 1
        return interrupted + new + promoted

    @property
    def is_over(self) -> bool:
        """True if no trial is active, and no other trial, not even one that a user has paused, could become active."""
        return not any(row.is_active for row in self.rows) and not self._left

    @property
    def summary(self) -> str:
        """Numbers of trials by phase, and number of epochs, in one line."""
        counts = [(phase, sum(row.phase == phase for row in self.rows)) for phase in get_args(Phase)]
        told = ", ".join(f"{number} {phase}" for phase, number in counts if number)
        epochs, whole = sum(row.epoch for row in self.rows), self.plan.rungs.levels[-1] * self.plan.trials
        return f"{len(self.rows)}/{self.plan.trials} trials: {told or 'none yet'}; {epochs} of {whole} epochs"

    @property
    def best(self) -> StudyTrial | None:
        """The best of the trials that are complete."""
        complete = [row for row in self.rows if row.phase == "complete"]
        return min(complete, key=lambda row: self._loss(row.value), default=None)

    def rung(self, row: StudyTrial) -> tuple[int, float]:
        """Number of rungs that a trial has passed, and its loss at the last of them."""
        values = self._at_rungs(row)
        return len(values), values[-1] if values else math.inf

    # -- events -------------------------------------------------------------------------------------------------------

    def report(
        self, number: int, epoch: int, value: float, metrics: Mapping[str, float] | None = None
    ) -> tuple[bool, str]:
        """Record the value and the metrics of a trial after ``epoch``; returns whether it goes on, and why.

        The reason is empty if the trial goes on because there is no decision after this epoch.
        """
        row = self.rows[number]
        if row.is_stopping and epoch > row.epoch:
            self._take_value(row, epoch, value, metrics)
            self._tell_advisor(row)
            if epoch >= self.plan.rungs.levels[-1]:
                self._finish(row, "complete")
        if row.phase != "running":  # reported again: the worker that got the answer has died
            return False, row.why or f"it is {row.phase}"
        if epoch > row.epoch:  # where nodes join and leave, workers are often lost: only losses in a row count
            row.losses = 0
        self._take_value(row, epoch, value, metrics)
        goes_on, reason = True, ""
        if epoch >= row.goal:
            decision, reason = after_rung(self.plan.rungs, self._standings(row), number)
            goes_on = decision is Next.GO_ON
            if goes_on:
                self._let_go(row)
            elif decision is Next.PAUSE:
                row.phase = "paused"
            else:
                self._finish(row, "complete")
        self._tell_advisor(row)
        row.is_held &= row.phase == "running"  # else it has paused or ended without the user
        if goes_on and (row.is_held or self.is_paused):
            return False, HELD
        return goes_on, reason

    def returned(self, number: int, value: float | None) -> None:
        """Record that the function of a trial has returned: it is complete, with this value or its last one."""
        row = self.rows[number]
        if row.phase != "running" and not row.is_stopping:
            return
        if value is not None:
            self._take_value(row, self.plan.rungs.levels[-1], value)
        self._finish(row, "complete")
        if row.value is None:
            row.phase, row.why = "failed", "it has reported no value, and returned none"

    def failed(self, number: int, why: str) -> None:
        """Record that a trial has failed; it does not begin again."""
        row = self.rows[number]
        if row.phase in ("running", "paused"):
            row.why = why
            self._finish(row, "failed")

    def stop(self, number: int, why: str) -> None:
        """End a trial for a user; it counts with the values that it has when it has left its workers."""
        row = self.rows[number]
        if row.phase not in ("running", "paused"):
            return
        row.why = why
        if row.is_active:
            row.phase, row.is_held, row.is_stopping = "pruned", False, True
            self._log.stop(number, why)
        else:
            self._finish(row, "pruned")

    def repeat(self, number: int) -> int:
        """Begin another trial with the parameters of trial ``number``, beside the planned trials; returns its number.

        The new trial has another seed: with the same seed, a trial that diverged would diverge again.
        """
        return self._add(self.rows[number].parameters, number).number

    def hold(self, number: int) -> None:
        """Pause a trial for a user: it leaves its workers at its next report, and does not go on until ``let_go``."""
        self.rows[number].is_held = True

    def let_go(self, number: int) -> None:
        """Let a trial go on that a user has paused."""
        self.rows[number].is_held = False

    def let_all_go(self) -> bool:
        """Let all trials go on that users have paused; true if any was paused, or the search."""
        was_paused = self.is_paused or any(row.is_held for row in self.rows)
        self.is_paused = False
        for row in self.rows:
            row.is_held = False
        return was_paused

    def released(self, number: int, *, lost: str = "") -> None:
        """Record that a trial has no workers any more; ``lost``: why, if by a fault, after which it may begin again."""
        row = self.rows[number]
        row.is_active = False
        if row.is_stopping:
            self._finish(row, "pruned")
        if lost and row.phase == "running":
            row.losses += 1
            if row.losses > ATTEMPTS:
                self.failed(number, f"it has lost its workers {row.losses} times; the last time: {lost}")

    def close(self) -> None:
        """End the search if it is over: paused trials are pruned, and the log records it."""
        is_over = self.is_over
        for row in self.rows:
            if row.is_stopping or (is_over and row.phase == "paused"):
                self._finish(row, "pruned")

    # -- inside -------------------------------------------------------------------------------------------------------

    @property
    def _may_begin(self) -> bool:
        return self._planned < self.plan.trials and not self._is_exhausted

    @property
    def _planned(self) -> int:
        """Number of trials that have begun, without those that repeat another trial."""
        return sum(row.again < 0 for row in self.rows)

    def _take_value(
        self, row: StudyTrial, epoch: int, value: float, metrics: Mapping[str, float] | None = None
    ) -> None:
        row.values[epoch] = value
        if metrics:
            row.metrics[epoch] = dict(metrics)
        row.said += 1
        self._log.report(row.number, epoch, value, metrics)

    def _interrupted(self) -> StudyTrial | None:
        return next(
            (row for row in self.rows if row.phase == "running" and not row.is_active and not row.is_held), None
        )

    def _begin(self) -> StudyTrial | None:
        parameters = self._advisor.ask(self._planned)
        if parameters is None:
            self._is_exhausted = True
            return None
        return self._add(self.plan.space.check(parameters))

    def _add(self, parameters: Parameters, again: int = -1) -> StudyTrial:
        number = len(self.rows)
        digest = hashlib.blake2b(f"{self.plan.seed} {number}".encode(), digest_size=4).digest()
        seed, goal = int.from_bytes(digest, "big"), self.plan.rungs.levels[0]
        self._log.begin(parameters, self.plan.space, seed, goal, again)
        self.rows.append(StudyTrial(number, parameters, seed, goal, {}, "running", again=again))
        self._tell_advisor(self.rows[-1])
        return self.rows[-1]

    def _let_go(self, row: StudyTrial) -> None:
        """Let a trial train to the next rung."""
        behind = len(self._at_rungs(row))
        row.goal, row.phase = self.plan.rungs.levels[min(behind, len(self.plan.rungs.levels) - 1)], "running"
        self._log.go_on(row.number, row.goal)

    def _finish(self, row: StudyTrial, phase: Phase) -> None:
        row.phase, row.is_held, row.is_stopping = phase, False, False
        row.why = "" if phase == "complete" else row.why  # a user has stopped it, but it has reached its end before
        if phase == "complete" and (row.value is None or not math.isfinite(row.value)):
            row.phase, row.why = "failed", f"its value is {row.value}"
        self._log.finish(row.number, row.phase, row.value, row.why)
        self._tell_advisor(row)

    def _row(self, logged: LoggedTrial) -> StudyTrial:
        row = StudyTrial(
            logged.number, logged.parameters, logged.seed, logged.goal, dict(logged.values), logged.phase, logged.why
        )
        row.again, row.is_stopping, row.metrics = logged.again, bool(logged.stopped), dict(logged.metrics)
        row.why = row.why or logged.stopped
        if row.phase == "running" and row.goal <= row.epoch < self.plan.rungs.levels[-1]:
            row.phase = "paused"
        return row

    def _tell_advisor(self, row: StudyTrial) -> None:
        values = {epoch: self._loss(value) for epoch, value in row.values.items()}
        self._advisor.tell(TrialResult(row.number, dict(row.parameters), values, row.phase))

    def _standings(self, at_rung: StudyTrial | None = None) -> list[Standing]:
        return [
            Standing(
                row.number,
                self._at_rungs(row),
                is_going=row.phase == "running" and row is not at_rung,
                is_over=row.phase in ("failed", "pruned", "complete"),
            )
            for row in self.rows
        ]

    def _at_rungs(self, row: StudyTrial) -> tuple[float, ...]:
        """Losses at the rungs that a trial has reached: for each rung, the first loss reported there or later."""
        key = row.said, row.phase
        if row.at_rungs is None or row.at_rungs[0] != key:  # cached: each report of a search looks at all its trials
            row.at_rungs = key, self._losses_at_rungs(row)
        return row.at_rungs[1]

    def _losses_at_rungs(self, row: StudyTrial) -> tuple[float, ...]:
        epochs = sorted(row.values)
        found = []
        for level in self.plan.rungs.levels:
            at = next((epoch for epoch in epochs if epoch >= level), None)
            if at is None:
                break
            found.append(self._loss(row.values[at]))
        if row.phase == "complete":  # its function may have returned before the last rung
            found += [self._loss(row.value)] * (len(self.plan.rungs.levels) - len(found))
        return tuple(found)

    def _loss(self, value: float | None) -> float:
        """Value as a loss to be minimised; infinity for every value that is not finite."""
        return math.inf if value is None else sound(value if self.plan.minimize else -value)
