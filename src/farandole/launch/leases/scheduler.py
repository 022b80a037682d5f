"""Scheduler of a cluster, as used by leases: abstract class; implemented by ``slurm`` and by a fake for tests.

    scheduler.submit(script, count=16, nonce="b1946ac9")
    wait_for(scheduler.fds, until=scheduler.deadline_s)
    for answer in scheduler.answers(): ...

No method blocks: a call begins, and ``answers`` returns its answer later. Every call gets one answer, even if the
scheduler is unreachable.
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
    """Phase of a job as shown by its scheduler."""

    HELD = "held"
    """Held by its user, who can release it."""
    BARRED = "barred"
    """Held by an administrator: its user cannot release it."""
    PENDING = "pending"
    RUNNING = "running"
    SUSPENDED = "suspended"
    ENDING = "ending"
    GONE = "gone"
    """It has ended, or the scheduler does not know it (any more)."""


@final
class JobView(msgspec.Struct, frozen=True):
    """State of a job at one look. Times are in seconds since 1970; 0: unknown to the scheduler.

    ``starts_s``: estimated start of a pending job; ``began_s``: start of a running job; ``reason``: the scheduler's
    reason why the job waits.
    """

    phase: JobPhase
    nodes: tuple[str, ...] = ()
    starts_s: float = 0.0
    ends_s: float = 0.0
    reason: str = ""
    began_s: float = 0.0


@final
class Submitted(msgspec.Struct, frozen=True):
    """An array was submitted, or found by its nonce; ``array``: its number, or "" if ``find`` found none."""

    nonce: str
    array: str


@final
class Looked(msgspec.Struct, frozen=True):
    """Jobs of an array by index; a job that is missing is gone."""

    array: str
    jobs: Mapping[int, JobView]


@final
class NodesLooked(msgspec.Struct, frozen=True):
    """Nodes that were queried, and the administrator's reason for each node that is being drained."""

    nodes: tuple[str, ...]
    drained: Mapping[str, str]


@final
class CallDone(msgspec.Struct, frozen=True):
    """A ``start``, ``cancel``, ``set_limit`` or ``set_nice`` of ``job`` is done."""

    call: str
    job: str


@final
class CallRefused(msgspec.Struct, frozen=True):
    """The scheduler refused a call, with the message ``words``. ``subject``: the job, array or nonce."""

    call: str
    subject: str
    words: str


@final
class CallUnanswered(msgspec.Struct, frozen=True):
    """The scheduler is unreachable or slow: the call may or may not have had an effect."""

    call: str
    subject: str
    words: str


Answer: TypeAlias = Submitted | Looked | NodesLooked | CallDone | CallRefused | CallUnanswered


class Scheduler(ABC):
    """A scheduler of jobs.

    ``holds``: jobs can be submitted in a held state; releasing them needs no permission to submit.
    """

    holds: ClassVar[bool] = False

    @abstractmethod
    def submit(self, script: str, count: int, nonce: str) -> None:
        """Begin to submit an array of ``count`` held jobs, identified by ``nonce``; answer: ``Submitted``."""

    @abstractmethod
    def find(self, nonce: str) -> None:
        """Begin to search for an array whose ``submit`` was not answered; answer: ``Submitted``."""

    @abstractmethod
    def look(self, array: str) -> None:
        """Begin a query of all jobs of an array, at the cost of one job; answer: ``Looked``."""

    @abstractmethod
    def look_at_nodes(self, nodes: Sequence[str]) -> None:
        """Begin a query of nodes, which may also run other users' jobs; answer: ``NodesLooked``, subject ""."""

    @abstractmethod
    def start(self, job: str) -> None:
        """Begin to release a held job; answer: ``CallDone``."""

    @abstractmethod
    def cancel(self, job: str) -> None:
        """Begin to cancel a job or a whole array in any state; answer: ``CallDone``, also if it is already gone."""

    @abstractmethod
    def set_limit(self, job: str, minutes: int) -> None:
        """Begin to set the time limit of a job; answer: ``CallDone``."""

    @abstractmethod
    def set_nice(self, job: str, nice: int) -> None:
        """Begin to lower the priority of a job; answer: ``CallDone``."""

    @abstractmethod
    def answers(self) -> list[Answer]:
        """Answers that arrived since the last call, in the order of their calls. Does not block."""

    @property
    @abstractmethod
    def fds(self) -> tuple[int, ...]:
        """Descriptors to poll; when one is readable there may be answers."""

    @property
    @abstractmethod
    def deadline_s(self) -> float | None:
        """Time (of ``time.monotonic``) at which a call is given up."""

    @abstractmethod
    def close(self) -> None:
        """Stop a running call."""


def answered(scheduler: Scheduler, calls: int, patience_s: float) -> Iterator[Answer]:
    """Yield the answers to this many calls; wait at most ``patience_s``."""
    until_s = time.monotonic() + patience_s
    while calls and time.monotonic() < until_s:
        wait_for_answers(scheduler, until_s)
        answers: Sequence[Answer] = scheduler.answers()
        calls -= len(answers)
        yield from answers


def wait_for_answers(scheduler: Scheduler, until_s: float) -> None:
    """Block until there may be answers, for callers without a loop of their own."""
    poll = select.poll()
    for fd in scheduler.fds:
        poll.register(fd, select.POLLIN)
    moment_s = until_s if scheduler.deadline_s is None else min(until_s, scheduler.deadline_s)
    poll.poll(max(0.0, moment_s - time.monotonic()) * 1000)
