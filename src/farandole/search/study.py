"""Study of a search: its trials, what each has come to, and which one is next. No processes, and no clock.

    study = Study(plan, log, advisor)
    number = study.next()                                   # a trial that is to begin or to go on
    goes_on, reason = study.report(number, epoch=1, value=0.3)
    study.close()                                           # nothing is left to be done

All that is known stands in the log before it is acted on, so a study that is made anew from the same log goes on where
the one before was killed: trials that had begun are the first to go on, from their last rung.
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

if TYPE_CHECKING:  # it is Optuna's, which may not be installed: then ``search`` is to say so, and not an import
    from farandole.search.trial_log import LoggedTrial, TrialLog

ATTEMPTS = 3
"""How often a trial is begun again from its last rung when it has lost all of its workers, until it has failed."""

HELD = "somebody has paused it"


@final
class StudyPlan(msgspec.Struct, frozen=True):
    """StudyPlan of a search: where it looks, how many ``trials``, on which rungs, and whether small values are good."""

    space: Space
    trials: int
    rungs: Rungs
    minimize: bool
    seed: int


@final
class StudyTrial(msgspec.Struct):
    """One trial. ``goal`` is the epoch that it was let go to; it ``is_active`` while workers have it.

    It ``is_held`` where somebody has paused it, until it is let go: this stands in no log. ``said`` counts values.
    It ``is_stopping`` where somebody has ended it, until it has no workers: what it reports till then still counts.
    ``again``: the number of the trial that it repeats, -1 of a planned one.
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
    """Other numbers by epoch and name."""
    at_rungs: tuple[tuple[int, Phase], tuple[float, ...]] | None = None
    """Losses at the rungs that it has come to, with what they were made from."""

    @property
    def epoch(self) -> int:
        """Last epoch that was reported; 0 before the first."""
        return max(self.values, default=0)

    @property
    def value(self) -> float | None:
        """Value at that epoch."""
        return self.values[self.epoch] if self.values else None


def to_reopen(trials: Sequence[LoggedTrial], top: int, epochs: int) -> list[int]:
    """Trials of a search that go on if they are good enough, as it is asked for more trials or epochs than before.

    These are the losers of its end, though none that somebody has stopped; and where ``epochs`` are more than ``top``,
    those that have trained all of these. A function that has returned before has had enough.
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
        self._counted: tuple[list[Any], int] = [], 0  # trials that are left, and what that was counted from
        self.is_paused = False
        """True where somebody has paused the whole search: trials leave at their next report, and none begins."""
        for row in self.rows:
            self._tell(row)
        for row in self.rows:
            if row.phase == "running" and row.epoch >= plan.rungs.levels[-1]:  # its end was the entry that was lost
                self._finish(row, "complete")
            elif row.is_stopping:  # the search was killed before it had left its workers
                self._finish(row, "pruned")

    # -- what is next -------------------------------------------------------------------------------------------------

    def next(self) -> tuple[int | None, str]:
        """Trial that is to have workers now, and why; ``None`` if there is none now. It counts as active."""
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
        """Number of trials that are to have workers some time, as far as that is known."""
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
        """True if no trial is active, and none is left that could be, also of those that somebody has paused."""
        return not any(row.is_active for row in self.rows) and not self._left

    @property
    def summary(self) -> str:
        """Numbers of trials by phase, and of epochs, in a line."""
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
        """Number of rungs that a trial has behind it, and its loss at the last of them."""
        values = self._at_rungs(row)
        return len(values), values[-1] if values else math.inf

    # -- what happens -------------------------------------------------------------------------------------------------

    def report(
        self, number: int, epoch: int, value: float, metrics: Mapping[str, float] | None = None
    ) -> tuple[bool, str]:
        """Take in the value of a trial after ``epoch``, and its metrics; returns if it goes on, and why.

        Without a reason it goes on since nothing is decided after that epoch.
        """
        row = self.rows[number]
        if row.is_stopping and epoch > row.epoch:
            self._take_value(row, epoch, value, metrics)
            self._tell(row)
            if epoch >= self.plan.rungs.levels[-1]:
                self._finish(row, "complete")
        if row.phase != "running":  # said again: the worker that had heard the answer has died
            return False, row.why or f"it is {row.phase}"
        if epoch > row.epoch:  # its workers are often lost where nodes come and go: only those in a row count
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
        self._tell(row)
        row.is_held &= row.phase == "running"  # else it rests, or is over, by itself
        if goes_on and (row.is_held or self.is_paused):
            return False, HELD
        return goes_on, reason

    def returned(self, number: int, value: float | None) -> None:
        """Take in that the function of a trial has returned: it is complete, with this value or its last one."""
        row = self.rows[number]
        if row.phase != "running" and not row.is_stopping:
            return
        if value is not None:
            self._take_value(row, self.plan.rungs.levels[-1], value)
        self._finish(row, "complete")
        if row.value is None:
            row.phase, row.why = "failed", "it has reported no value, and returned none"

    def failed(self, number: int, why: str) -> None:
        """Take in that a trial has failed, and is not tried again."""
        row = self.rows[number]
        if row.phase in ("running", "paused"):
            row.why = why
            self._finish(row, "failed")

    def stop(self, number: int, why: str) -> None:
        """End a trial as somebody wants; it counts with the values that it has when it has left its workers."""
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
        """Begin another trial with the parameters of one, beside those that are planned; returns its number.

        Its seed is another one: with the same a trial that diverged would do so again.
        """
        return self._add(self.rows[number].parameters, number).number

    def hold(self, number: int) -> None:
        """Have a trial leave its workers at its next report, and not go on until it is let go."""
        self.rows[number].is_held = True

    def let_go(self, number: int) -> None:
        """Let a trial go on that was held."""
        self.rows[number].is_held = False

    def let_all_go(self) -> bool:
        """Let all go on that somebody has paused; true if anything was."""
        was_paused = self.is_paused or any(row.is_held for row in self.rows)
        self.is_paused = False
        for row in self.rows:
            row.is_held = False
        return was_paused

    def released(self, number: int, *, lost: str = "") -> None:
        """Take in that a trial has no workers any more; ``lost``: not as it was to be, but it may begin again."""
        row = self.rows[number]
        row.is_active = False
        if row.is_stopping:
            self._finish(row, "pruned")
        if lost and row.phase == "running":
            row.losses += 1
            if row.losses > ATTEMPTS:
                self.failed(number, f"it has lost its workers {row.losses} times; the last time: {lost}")

    def close(self) -> None:
        """End the search, if nothing is left to be done: trials that rest are losers, and the log says so."""
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
        """Number of trials that have begun, without those that repeat one."""
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
        self._tell(self.rows[-1])
        return self.rows[-1]

    def _let_go(self, row: StudyTrial) -> None:
        """Let a trial train to the next rung."""
        behind = len(self._at_rungs(row))
        row.goal, row.phase = self.plan.rungs.levels[min(behind, len(self.plan.rungs.levels) - 1)], "running"
        self._log.go_on(row.number, row.goal)

    def _finish(self, row: StudyTrial, phase: Phase) -> None:
        row.phase, row.is_held, row.is_stopping = phase, False, False
        row.why = "" if phase == "complete" else row.why  # it was to be stopped, and has come to its end before
        if phase == "complete" and (row.value is None or not math.isfinite(row.value)):
            row.phase, row.why = "failed", f"its value is {row.value}"
        self._log.finish(row.number, row.phase, row.value, row.why)
        self._tell(row)

    def _row(self, logged: LoggedTrial) -> StudyTrial:
        row = StudyTrial(
            logged.number, logged.parameters, logged.seed, logged.goal, dict(logged.values), logged.phase, logged.why
        )
        row.again, row.is_stopping, row.metrics = logged.again, bool(logged.stopped), dict(logged.metrics)
        row.why = row.why or logged.stopped
        if row.phase == "running" and row.goal <= row.epoch < self.plan.rungs.levels[-1]:
            row.phase = "paused"
        return row

    def _tell(self, row: StudyTrial) -> None:
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
        """Losses at the rungs that a trial has come to: at each the first that was reported there or later."""
        key = row.said, row.phase
        if row.at_rungs is None or row.at_rungs[0] != key:  # else a search of many trials looks at all with each report
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
        """Value as something to be minimised; infinite where it is not finite, whichever way it left the numbers."""
        return math.inf if value is None else sound(value if self.plan.minimize else -value)
