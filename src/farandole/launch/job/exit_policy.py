"""Exit policy of a static job: what the exit of a worker, or the loss of a host, means for the others. Pure.

>>> policy = ExitPolicy(size=2, on_failure="stop")
>>> policy.exited(WorkerExited(1, -9, "rank 1 on hostA was killed by SIGKILL"))
<ExitAction.STOP: 'ask every worker to end, and kill those that have not after the grace'>
>>> policy.status, policy.last_words().partition(";")[0]
(137, 'rank 1 on hostA was killed by SIGKILL')
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from enum import Enum
from typing import final

from farandole.control.exits import WorkerExited
from farandole.control.process import exit_status
from farandole.launch.job.exit_wording import ExitWording
from farandole.settings import OnFailure

RANKS = ExitWording()
"""Wording for jobs whose workers have ranks and do not write to this terminal."""

HOST = -1
"""Instead of a worker id: the loss of a host."""


@final
class ExitAction(Enum):
    """Next action of the launcher."""

    GO_ON = "go on"
    AWAIT = "wait for workers that have left the job and may be the cause, as long as the grace"
    STOP = "ask every worker to end, and kill those that have not after the grace"


@final
class ExitPolicy:
    """The first failure decides: it ends the job (``stop``), or only sets the exit code (``continue``)."""

    def __init__(self, size: int, on_failure: OnFailure, wording: ExitWording = RANKS) -> None:
        self._on_failure, self._wording = on_failure, wording
        self.living = dict.fromkeys(range(size), -1)
        """Workers that have not exited, and are not lost, by rank: their pids, -1 before they are started."""
        self.is_stopped = False
        """True if the workers were told to end: those that exit now are no cause."""
        self._failures: list[WorkerExited] = []

    @property
    def status(self) -> int:
        """Exit status of the job, as known now."""
        return exit_status(self._failures[0].code) if self._failures else 0

    @property
    def cause(self) -> int:
        """The rank whose failure decides; -1 if no rank has failed, or the loss of a host came first."""
        return self._failures[0].worker_id if self._failures else HOST

    def exited(self, event: WorkerExited, left: Sequence[int] = ()) -> ExitAction:
        """Handle the exit of a worker. ``left``: the ranks that have left the job so far, in that order.

        A rank that waits for a rank that left fails, and may exit before it: the cause is the rank that left first.
        """
        self.living.pop(event.worker_id, None)
        if self.is_stopped:
            return ExitAction.GO_ON
        if event.code:
            self._failures.insert(self._rank_among_failures(event, left), event)
        if not self._failures or (self._on_failure == "continue" and not event.error):
            return ExitAction.GO_ON
        # Nothing is earlier than the loss of a host, which is never in ``left``.
        earlier = left[: left.index(self.cause)] if self.cause in left else ()
        return self._stop() if self.living.keys().isdisjoint(earlier) else ExitAction.AWAIT

    def host_lost(self, worker_ids: Collection[int], reason: str, status: int = 1) -> ExitAction:
        """Handle the loss of a host, or of its agent, with the living workers there; ``status``: that of the job."""
        for worker_id in worker_ids:
            del self.living[worker_id]
        self._failures.append(WorkerExited(HOST, status, reason, error=reason))
        is_bearable = self._on_failure == "continue" and worker_ids and self.living
        return ExitAction.GO_ON if self.is_stopped or is_bearable else self._stop()

    def last_words(self) -> str:
        """The reason why the job failed; "" if it succeeded."""
        if not self._failures:
            return ""
        first, *later = self._failures
        return "\n".join([*self._wording.account(first), *(f"after that, {each.description}" for each in later)])

    def _rank_among_failures(self, event: WorkerExited, left: Sequence[int]) -> int:
        """Index among the failures: before ranks that left later, whose failures it may have caused; else last."""
        later = left[left.index(event.worker_id) :] if event.worker_id in left else ()
        worker_ids = [failure.worker_id for failure in self._failures]
        return next((i for i, worker_id in enumerate(worker_ids) if worker_id in later), len(worker_ids))

    def _stop(self) -> ExitAction:
        self.is_stopped = True
        return ExitAction.STOP
