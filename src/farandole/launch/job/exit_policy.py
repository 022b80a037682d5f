"""Exit policy of a static job: an action, with its reason, for each exit of a worker and each signal. Pure.

>>> policy = ExitPolicy(size=2, on_failure="stop")
>>> policy.exited(WorkerExited(1, -9, "rank 1 on hostA was killed by SIGKILL")).reason
'rank 1 on hostA was killed by SIGKILL'
>>> policy.status
137
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from enum import Enum
from typing import NamedTuple, final

import msgspec

from farandole.control.exits import WorkerExited
from farandole.control.process import exit_status, signal_name
from farandole.launch.job.exit_wording import ExitWording
from farandole.settings import OnFailure

RANKS = ExitWording()
"""Wording for jobs whose workers have ranks and do not write to this terminal."""


@final
class ExitAction(Enum):
    """Next action of the launcher."""

    GO_ON = "go on"
    AWAIT = "wait for workers that have left the job and may be the cause, as long as the grace"
    STOP = "ask every worker to end, and kill those that have not after the grace"
    KILL = "kill every worker now"


class ExitDecision(NamedTuple):
    """An action and why."""

    action: ExitAction
    reason: str


@final
class Loss(msgspec.Struct, frozen=True):
    """Loss of a host: a description, and the exit status of a job that ends because of it."""

    description: str
    status: int = 1


@final
class ExitPolicy:
    """The first failure decides: it ends the job (``stop``), or only sets the exit code (``continue``)."""

    def __init__(self, size: int, on_failure: OnFailure, wording: ExitWording = RANKS) -> None:
        self._size, self._on_failure, self._wording = size, on_failure, wording
        self._ends: list[WorkerExited] = []
        self._failures: list[WorkerExited | Loss] = []
        self._signals: list[int] = []
        self._gone: set[int] = set()  # ranks on lost hosts: no agent will report their exit
        self._ending = False

    @property
    def status(self) -> int:
        """Exit status of the job, as known now."""
        if self._signals:
            return 128 + self._signals[0]
        if not self._failures:
            return 0
        first = self._failures[0]
        return first.status if isinstance(first, Loss) else exit_status(first.code)

    @property
    def cause(self) -> int:
        """The rank whose failure decides; -1 if no rank has failed, or the loss of a host came first."""
        first = self._failures[0] if self._failures else None
        return first.worker_id if isinstance(first, WorkerExited) else -1

    def running(self) -> list[int]:
        """The ranks that have not exited."""
        return sorted(set(range(self._size)) - {end.worker_id for end in self._ends} - self._gone)

    def exited(self, event: WorkerExited, left: Sequence[int] = ()) -> ExitDecision:
        """Handle the exit of a worker. ``left``: the ranks that have left the job so far, in that order.

        A rank that waits for a rank that left fails, and may exit before it: the cause is the rank that left first.
        """
        self._ends.append(event)
        if self._ending:  # the launcher told it to end: it is not a cause
            return ExitDecision(ExitAction.GO_ON, event.description)
        if event.code:
            self._failures.insert(self._rank_among_failures(event, left), event)
        if not self._failures:
            return ExitDecision(ExitAction.GO_ON, event.description)
        first = self._failures[0]
        if self._on_failure == "continue" and not event.error:
            return ExitDecision(ExitAction.GO_ON, f"{event.description}; the others go on (--on-failure continue)")
        # Nothing is earlier than the loss of a host (``cause`` -1, never in ``left``).
        earlier = left[: left.index(self.cause)] if self.cause in left else ()
        if awaited := sorted(set(earlier).intersection(self.running())):
            return ExitDecision(ExitAction.AWAIT, f"{first.description}, but ranks {awaited} had left before that")
        return self._stop()

    def overdue(self) -> ExitDecision:
        """Stop the job: the grace time is over, and the ranks that left, the possible causes, have not exited."""
        return self._stop()

    def _rank_among_failures(self, event: WorkerExited, left: Sequence[int]) -> int:
        """Index among the failures: before ranks that left later, whose failures it may have caused; else last."""
        later = left[left.index(event.worker_id) :] if event.worker_id in left else ()
        worker_ids = [failure.worker_id if isinstance(failure, WorkerExited) else -1 for failure in self._failures]
        return next((i for i, worker_id in enumerate(worker_ids) if worker_id in later), len(worker_ids))

    def _stop(self) -> ExitDecision:
        self._ending = True
        return ExitDecision(ExitAction.STOP, self._failures[0].description)

    def interrupted(self, number: int) -> ExitDecision:
        """Handle a signal that ends the job: the first one stops the workers with grace, the second one kills them."""
        self._signals.append(number)
        self._ending = True
        if len(self._signals) > 1:
            return ExitDecision(ExitAction.KILL, f"{signal_name(number)} again: killing the workers")
        running = len(self.running())
        return ExitDecision(
            ExitAction.STOP,
            f"{signal_name(number)}: ending {running} worker{'s' * (running != 1)} (again: kill at once)",
        )

    def host_lost(self, worker_ids: Collection[int], loss: Loss) -> ExitDecision:
        """Handle the loss of a host or its agent, and of the ranks ``worker_ids`` that ran there."""
        lost = set(worker_ids) & set(self.running())
        self._gone |= lost
        self._failures.append(loss)
        if self._ending:
            return ExitDecision(ExitAction.GO_ON, loss.description)
        if self._on_failure == "continue" and lost and self.running():
            return ExitDecision(ExitAction.GO_ON, f"{loss.description}; the others go on (--on-failure continue)")
        self._ending = True
        return ExitDecision(ExitAction.STOP, loss.description)

    def last_words(self) -> str:
        """The reason why the job failed; "" if it succeeded."""
        if self._signals:
            return f"the job was ended by {signal_name(self._signals[0])}"
        if not self._failures:
            return ""
        first, *later = self._failures
        words = [first.description] if isinstance(first, Loss) else self._wording.account(first)
        return "\n".join([*words, *(f"after that, {failure.description}" for failure in later)])
