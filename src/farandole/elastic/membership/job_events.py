"""Events of the workers and hosts of an elastic job, as ``Membership`` is told them.

    membership.on(now, WorkerConnected(worker_id=3, ready=True, step=412))

A *worker id* stands for one process; ids count in the order of starting and are never used again. A *slot* is a host
and an index there, in which a worker runs. Each event is told once, in the order in which it was learnt.
"""

from __future__ import annotations

from typing import TypeAlias, final

import msgspec

from farandole.control.exits import GenerationEnded, WorkerExited

UNTOLD = -1
"""Worker id in events of journals from before these told it."""


class Event(msgspec.Struct, frozen=True, tag=True):
    """Base of all events. The tag is the class name, which is what a journal shows."""


@final
class HostsFound(Event, frozen=True):
    """The hosts of the job as of now, with their slots, in filling order; other hosts may be used no more."""

    hosts: dict[str, int]


@final
class WorkerStarted(Event, frozen=True):
    """The process of a worker runs."""

    worker_id: int


@final
class WorkerConnected(Event, frozen=True):
    """A worker called ``init()`` (``Hello``). It is ``ready`` to be a member, or still has its model to build.

    ``step`` says, of one that has been a member, from where the job can go on with its state: that is whole, or the one
    with which the worker began the job (0). It is ``NEW`` where a state was being received, or changed by a step.
    """

    worker_id: int
    ready: bool
    step: int = 0


@final
class WorkerLeft(Event, frozen=True):
    """A member called ``shutdown()`` and raised no alarm: it is about to come again, or to end.

    If it is ``ending`` its script has raised: nothing but its end is to come. Nor is anything else where it was
    ``told`` to end (SIGTERM), but that may take as long as a last checkpoint does. That may also be one who is no
    member, or not yet.
    """

    worker_id: int
    ending: bool = False
    told: bool = False


@final
class Answered(Event, frozen=True):
    """A member does something of its own while the others wait for it to re-form: its process runs."""

    worker_id: int


@final
class WorkerHung(Event, frozen=True):
    """A member makes no progress, and others wait for it; its process lives."""

    worker_id: int
    reason: str


@final
class WorkerUnfit(Event, frozen=True):
    """A worker cannot be a member: another version, engines that do not match."""

    worker_id: int
    reason: str


@final
class HostLost(Event, frozen=True):
    """A host is silent, or its agent has ended. Nothing that ran there counts any more, should it be heard again."""

    host: str
    reason: str


@final
class LongestStep(Event, frozen=True):
    """Duration of a worker's longest recent step. One that takes much longer than that of any is not merely slow.

    Journals from before ``worker_id`` was told read as those of one worker.
    """

    step_s: float
    worker_id: int = UNTOLD


@final
class ControllerReplaced(Event, frozen=True):
    """Another controller has taken over: workers that wait in ``init()`` have yet to tell this one so."""


@final
class MemberSlot(msgspec.Struct, frozen=True):
    """Place of a member: its number, its host, and its slot there."""

    worker_id: int
    host: str
    slot: int


@final
class LeadReplaced(Event, frozen=True):
    """Another lead has taken over, which has no journal of the one before: its last ``generation``, by rank.

    Hosts that went with the lead are told as lost next, and so are those that do not come. If no member is left then,
    the job begins anew, from its checkpoint. Workers that were never members are given up.
    """

    generation: int
    members: tuple[MemberSlot, ...]
    next_worker_id: int


JobEvent: TypeAlias = (
    HostsFound
    | WorkerStarted
    | WorkerConnected
    | WorkerLeft
    | Answered
    | WorkerExited
    | WorkerHung
    | WorkerUnfit
    | HostLost
    | GenerationEnded
    | LongestStep
    | ControllerReplaced
    | LeadReplaced
)
