"""Schedulers of a cluster, as the leases of a training use them: one abstract class, Slurm, and a fake.

    scheduler.submit(script, count=16, nonce="b1946ac9")
    wait_for(scheduler.fds, until=scheduler.deadline_s)
    for answer in scheduler.answers(): ...

Nothing here waits: a call begins, and its answer comes by ``answers``; each call has one, also where the scheduler
is away.
"""

from __future__ import annotations

import select
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from typing import ClassVar, TypeAlias, final

import msgspec


@final
class JobPhase(Enum):
    """Phase of a job as its scheduler shows it."""

    HELD = "held"
    """Held by its user, who can release it."""
    BARRED = "barred"
    """Held by an administrator: its user cannot release it."""
    PENDING = "pending"
    RUNNING = "running"
    SUSPENDED = "suspended"
    ENDING = "ending"
    GONE = "gone"
    """It has ended, or is not known (any more)."""


@final
class JobView(msgspec.Struct, frozen=True):
    """A job at one look. Times are in seconds since 1970, 0 where the scheduler does not know.

    ``starts_s`` is when a pending one is estimated to start, and ``began_s`` when one that runs did; ``reason`` is the
    scheduler's word for why it waits.
    """

    phase: JobPhase
    nodes: tuple[str, ...] = ()
    starts_s: float = 0.0
    ends_s: float = 0.0
    reason: str = ""
    began_s: float = 0.0


@final
class Submitted(msgspec.Struct, frozen=True):
    """An array was submitted, or found again, by its nonce; ``array`` is its number, "" where ``find`` found none."""

    nonce: str
    array: str


@final
class Looked(msgspec.Struct, frozen=True):
    """Jobs of an array by index; a job that is missing is gone."""

    array: str
    jobs: Mapping[int, JobView]


@final
class NodesLooked(msgspec.Struct, frozen=True):
    """Nodes that were looked at, and of those that are being drained the words of whoever does it."""

    nodes: tuple[str, ...]
    drained: Mapping[str, str]


@final
class CallDone(msgspec.Struct, frozen=True):
    """A ``start``, ``cancel``, ``set_limit`` or ``set_nice`` of ``job`` is done."""

    call: str
    job: str


@final
class CallRefused(msgspec.Struct, frozen=True):
    """The scheduler refuses a call, in its ``words``. ``subject`` is the job, array or nonce."""

    call: str
    subject: str
    words: str


@final
class CallUnanswered(msgspec.Struct, frozen=True):
    """The scheduler is away, or slow: what was asked for may have been done or not."""

    call: str
    subject: str
    words: str


Answer: TypeAlias = Submitted | Looked | NodesLooked | CallDone | CallRefused | CallUnanswered


class Scheduler(ABC):
    """A scheduler of jobs.

    It ``holds`` if jobs can be submitted that wait for their user's release, which needs no right to submit.
    """

    holds: ClassVar[bool] = False

    @abstractmethod
    def submit(self, script: str, count: int, nonce: str) -> None:
        """Begin to submit an array of ``count`` held jobs, by which ``find`` knows it again: ``Submitted``."""

    @abstractmethod
    def find(self, nonce: str) -> None:
        """Begin to look for an array whose ``submit`` was not answered: ``Submitted``."""

    @abstractmethod
    def look(self, array: str) -> None:
        """Begin a look at all jobs of an array, at the cost of one: ``Looked``."""

    @abstractmethod
    def look_at_nodes(self, nodes: Sequence[str]) -> None:
        """Begin a look at some nodes, of which there may be others' too: ``NodesLooked``. Their subject is ""."""

    @abstractmethod
    def start(self, job: str) -> None:
        """Begin to release a held job: ``CallDone``."""

    @abstractmethod
    def cancel(self, job: str) -> None:
        """Begin to cancel a job, or a whole array, wherever it is; of one that is gone that is ``CallDone``, too."""

    @abstractmethod
    def set_limit(self, job: str, minutes: int) -> None:
        """Begin to set the time limit of a job: ``CallDone``."""

    @abstractmethod
    def set_nice(self, job: str, nice: int) -> None:
        """Begin to lower the priority of a job: ``CallDone``."""

    @abstractmethod
    def answers(self) -> list[Answer]:
        """Answers that have come since, in the order of their calls. Does not wait."""

    @property
    @abstractmethod
    def fds(self) -> tuple[int, ...]:
        """Descriptors; when one of them is readable there may be answers."""

    @property
    @abstractmethod
    def deadline_s(self) -> float | None:
        """Time (of ``time.monotonic``) at which a call is given up."""

    @abstractmethod
    def close(self) -> None:
        """End what still runs."""


def answered(scheduler: Scheduler, calls: int, patience_s: float) -> Iterator[Answer]:
    """Wait for the answers of so many calls, for at most ``patience_s``."""
    until_s = time.monotonic() + patience_s
    while calls and time.monotonic() < until_s:
        wait_for_answers(scheduler, until_s)
        answers: Sequence[Answer] = scheduler.answers()
        calls -= len(answers)
        yield from answers


def wait_for_answers(scheduler: Scheduler, until_s: float) -> None:
    """Sleep until there may be answers, for callers that have nothing else to do."""
    poll = select.poll()
    for fd in scheduler.fds:
        poll.register(fd, select.POLLIN)
    moment_s = until_s if scheduler.deadline_s is None else min(until_s, scheduler.deadline_s)
    poll.poll(max(0.0, moment_s - time.monotonic()) * 1000)
