"""The exit policy of a job: an action, with its reason, for each end of a worker and each signal. Pure.

>>> policy = ExitPolicy(size=2, on_failure="stop")
>>> policy.exited(End(1, "hostA", -9)).reason
'rank 1 on hostA was killed by SIGKILL'
>>> policy.status
137
"""

from __future__ import annotations

import signal
from collections.abc import Collection, Sequence
from enum import Enum
from typing import NamedTuple, final

import msgspec

from farandole.control.process import describe, exit_status, signal_name
from farandole.settings import OnFailure

INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
PASSED_ON = (signal.SIGUSR1, signal.SIGUSR2)
"""To workers that handle them: schedulers announce the end of a job by these, or ask for a checkpoint."""
SHORTAGE = " (out of memory? the kernel has just killed a process of that host for that)"


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
class End(msgspec.Struct, frozen=True):
    """End of one worker. ``error`` says why it could not be started at all, ``title`` how texts call workers.

    ``advice`` is what to do about it, if that is known; ``shown`` if what it wrote is on this terminal already.
    ``out_of_memory`` is as in ``Exited``.
    """

    worker_id: int
    host: str
    code: int
    tail: str = ""
    error: str = ""
    title: str = "rank"
    advice: str = ""
    shown: bool = False
    out_of_memory: bool = False

    def __str__(self) -> str:
        """The worker, its host and how it ended, for people."""
        who = f"{self.title} {self.worker_id} on {self.host}"
        if self.error:
            return f"{who} could not be started: {self.error}"
        return f"{who} {describe(self.code)}{SHORTAGE if self.out_of_memory else ''}"

    @property
    def status(self) -> int:
        """Exit status as a shell would give it."""
        return exit_status(self.code)

    def account(self) -> list[str]:
        """The end with the last lines of its standard error; of a traceback that was shown only the exception."""
        if self.error:
            return [str(self)]
        lines = self.tail.splitlines()
        raised = raised_lines(lines) if self.shown else []
        if raised:
            words = f"{self}; its traceback is above, at [{self.worker_id}]<stderr>:"
        else:
            words = f"{self}; the last lines of its stderr:" if lines else f"{self}; it wrote nothing to stderr"
        return [words, *(f"    {line}" for line in raised or lines), *([self.advice] if self.advice else [])]


def raised_lines(lines: Sequence[str]) -> list[str]:
    """The end of some output from the exception on that ends a traceback; [] if there is none.

    >>> raised_lines(["Traceback ...", '  File "a.py", line 1, in <module>', "    f()", "OSError: no"])
    ['OSError: no']
    """
    frames = [number for number, line in enumerate(lines) if line.startswith('  File "')]
    after = range(frames[-1] + 1, len(lines)) if frames else ()
    return next((list(lines[number:]) for number in after if not lines[number].startswith(" ")), [])


@final
class Loss(msgspec.Struct, frozen=True):
    """Loss of a host: the reason, and the exit status of a job that ends by it."""

    reason: str
    status: int = 1

    def __str__(self) -> str:
        """The reason, for people."""
        return self.reason


@final
class ExitPolicy:
    """The first failure decides: it ends the job (``stop``), or only its exit code (``continue``)."""

    def __init__(self, size: int, on_failure: OnFailure) -> None:
        self._size = size
        self._on_failure = on_failure
        self._ends: list[End] = []
        self._failures: list[End | Loss] = []
        self._signals: list[int] = []
        self._gone: set[int] = set()
        self._ending = False

    @property
    def status(self) -> int:
        """The exit status of the job, as it stands."""
        if self._signals:
            return 128 + self._signals[0]
        return self._failures[0].status if self._failures else 0

    def running(self) -> list[int]:
        """The ranks that have not ended."""
        return sorted(set(range(self._size)) - {end.worker_id for end in self._ends} - self._gone)

    def exited(self, end: End, left: Sequence[int] = ()) -> ExitDecision:
        """Take in the end of a worker. ``left`` are the ranks that have left the job by now, in that order.

        A rank that waits for one that has left fails, and may end before it: the cause is the rank that left first.
        """
        self._ends.append(end)
        if self._ending:
            return ExitDecision(ExitAction.GO_ON, str(end))
        if end.code:
            self._failures.insert(self._rank_among_failures(end, left), end)
        if not self._failures:
            return ExitDecision(ExitAction.GO_ON, str(end))
        first = self._failures[0]
        if self._on_failure == "continue" and not end.error:
            return ExitDecision(ExitAction.GO_ON, f"{end}; the others go on (--on-failure continue)")
        earlier = left[: left.index(first.worker_id)] if isinstance(first, End) and first.worker_id in left else ()
        if awaited := sorted(set(earlier).intersection(self.running())):
            return ExitDecision(ExitAction.AWAIT, f"{first}, but ranks {awaited} had left before that")
        return self._stop()

    def overdue(self) -> ExitDecision:
        """Stop the job: the grace is over, and ranks that had left, which were awaited as the cause, have not ended."""
        return self._stop()

    def _rank_among_failures(self, end: End, left: Sequence[int]) -> int:
        """Index among the failures: before ranks that left after it, whose failures it may have caused; else last."""
        later = left[left.index(end.worker_id) :] if end.worker_id in left else ()
        worker_ids = [failure.worker_id if isinstance(failure, End) else -1 for failure in self._failures]
        return next((i for i, worker_id in enumerate(worker_ids) if worker_id in later), len(worker_ids))

    def _stop(self) -> ExitDecision:
        self._ending = True
        return ExitDecision(ExitAction.STOP, str(self._failures[0]))

    def interrupted(self, number: int) -> ExitDecision:
        """Take in a signal that asks the launcher to end: the first time in good order, the second time at once."""
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
        """Take in the loss of a host or its agent; the ranks of ``worker_ids``, which ran there, are gone with it."""
        lost = set(worker_ids) & set(self.running())
        self._gone |= lost
        self._failures.append(loss)
        if self._ending:
            return ExitDecision(ExitAction.GO_ON, loss.reason)
        if self._on_failure == "continue" and lost and self.running():
            return ExitDecision(ExitAction.GO_ON, f"{loss.reason}; the others go on (--on-failure continue)")
        self._ending = True
        return ExitDecision(ExitAction.STOP, loss.reason)

    def last_words(self) -> str:
        """The reason why the job ended as it did; "" for one that went well."""
        if self._signals:
            return f"the job was ended by {signal_name(self._signals[0])}"
        if not self._failures:
            return ""
        first, *later = self._failures
        words = first.account() if isinstance(first, End) else [first.reason]
        return "\n".join([*words, *(f"after that, {failure}" for failure in later)])
