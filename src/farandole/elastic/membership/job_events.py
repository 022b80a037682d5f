"""Events of the workers and hosts of an elastic job: the input of ``Membership``.

    membership.on(now, WorkerConnected(worker_id=3, ready=True, step=412))

A *worker id* identifies one process; ids count up in start order and are never reused. A *slot* is a host and an index
on it; a worker runs in a slot. Each event is passed on once, in the order of arrival.
"""

from __future__ import annotations

from typing import TypeAlias, final

import msgspec

from farandole.control.exits import GenerationEnded, HostLost, WorkerExited

UNTOLD = -1
"""Worker id of a ``LongestStep`` in old journals, which do not record it."""


class Event(msgspec.Struct, frozen=True, tag=True):
    """Base of all events. The tag is the class name, which is what a journal shows."""


@final
class HostsFound(Event, frozen=True):
    """Current hosts of the job with their number of slots, in filling order; no other host may be used."""

    hosts: dict[str, int]


@final
class WorkerStarted(Event, frozen=True):
    """The process of a worker runs."""

    worker_id: int


@final
class WorkerConnected(Event, frozen=True):
    """A worker called ``init()`` (``Hello``). It is ``ready`` to be a member, or has yet to build its model.

    ``step``, for a former member: the step from which the job can go on with its state, which is whole (0: the state
    with which it began the job). ``NEW``: its state is not whole, because a transfer or a step was interrupted.
    """

    worker_id: int
    ready: bool
    step: int = 0


@final
class WorkerLeft(Event, frozen=True):
    """A member called ``shutdown()`` without reporting a failure: it will rejoin or exit.

    ``ending``: its script has raised, and the process exits next. ``told``: it got SIGTERM and will exit, perhaps only
    after it has written a last checkpoint; such a worker may also be no member, or not a member yet.
    """

    worker_id: int
    ending: bool = False
    told: bool = False


@final
class Answered(Event, frozen=True):
    """A sign of life from a member that is busy while the others wait for it to form the next generation."""

    worker_id: int


@final
class WorkerHung(Event, frozen=True):
    """A member makes no progress while others wait for it; its process is alive."""

    worker_id: int
    reason: str


@final
class WorkerUnfit(Event, frozen=True):
    """A worker cannot be a member: it has another version, or engines that do not match."""

    worker_id: int
    reason: str


@final
class LongestStep(Event, frozen=True):
    """Duration of a worker's longest recent step. A step that takes much longer counts as a hang.

    In old journals, without ``worker_id``, all reports count as reports of one worker.
    """

    step_s: float
    worker_id: int = UNTOLD


@final
class ControllerReplaced(Event, frozen=True):
    """Another controller has taken over: workers that wait in ``init()`` have yet to send it their ``Hello``."""


@final
class MemberSlot(msgspec.Struct, frozen=True):
    """Place of a member: its worker id, its host, and its slot on this host."""

    worker_id: int
    host: str
    slot: int


@final
class LeadReplaced(Event, frozen=True):
    """Another leader has taken over without its predecessor's journal: the last ``generation``, members by rank.

    ``HostLost`` follows for hosts that were lost with the predecessor and for hosts that do not connect. If no member
    is left then, the job restarts from its checkpoint. Workers that were never members are given up.
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
