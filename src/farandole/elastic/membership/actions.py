"""Actions that ``Membership`` decides on, each with a reason to be logged.

>>> Decision(Start(worker_id=4, host="b", slot=1), "slot 1 of b is free").reason
'slot 1 of b is free'
"""

from __future__ import annotations

from typing import TypeAlias, final

import msgspec


class Action(msgspec.Struct, frozen=True, tag=True):
    """Base of all actions. The tag is the class name, which is what a journal shows."""


@final
class Start(Action, frozen=True):
    """Start a worker, and its host's agent if there is none. ``WorkerStarted`` follows, or else ``WorkerExited``."""

    worker_id: int
    host: str
    slot: int


@final
class Kill(Action, frozen=True):
    """Kill this worker now. It counts for nothing already; ``WorkerExited`` frees its slot."""

    worker_id: int


@final
class Rest(Action, frozen=True):
    """Report that no worker is started in this slot (-1: on this host) for ``rest_s``; nothing is to be done."""

    host: str
    slot: int
    rest_s: float


@final
class Greet(Action, frozen=True):
    """Let a newcomer build its model: a provisional ``Welcome`` to a session of its own.

    ``worker_ids`` are those of the generation that it may become a member of, by rank, its own among them.
    """

    worker_id: int
    worker_ids: list[int]


@final
class Announce(Action, frozen=True):
    """Tell the members that a change is due: they interrupt themselves together, at their next commit."""


@final
class AbortGeneration(Action, frozen=True):
    """End the generation for all who are still in it."""


@final
class Form(Action, frozen=True):
    """Form the next generation of these workers, by rank. All of them wait in ``init()``."""

    generation: int
    worker_ids: list[int]


@final
class RefuseWorkers(Action, frozen=True):
    """Refuse these workers: their ``init()`` raises the reason."""

    worker_ids: list[int]


@final
class Dismiss(Action, frozen=True):
    """Send workers home that wait in ``init()`` and are not needed: they should end as if finished."""

    worker_ids: list[int]


@final
class Finish(Action, frozen=True):
    """End the job with this exit status: workers that still run are stopped. Nothing is decided after it."""

    status: int


AnyAction: TypeAlias = (
    Start | Kill | Rest | Greet | Announce | AbortGeneration | Form | RefuseWorkers | Dismiss | Finish
)


@final
class Decision(msgspec.Struct, frozen=True):
    """An action and its reason."""

    action: AnyAction
    reason: str
