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
    """Kill this worker now. The membership already ignores it; ``WorkerExited`` frees its slot."""

    worker_id: int


@final
class Rest(Action, frozen=True):
    """Report, for information only: no worker is started in this slot (-1: on this host) for ``rest_s`` seconds."""

    host: str
    slot: int
    rest_s: float


@final
class Greet(Action, frozen=True):
    """Let a new worker build its model: it gets a provisional ``Welcome`` to a session of its own.

    ``worker_ids``: expected members of the next generation, by rank, this worker included.
    """

    worker_id: int
    worker_ids: list[int]


@final
class Announce(Action, frozen=True):
    """Announce a change to the members: all of them interrupt training at the same commit, their next one."""


@final
class AbortGeneration(Action, frozen=True):
    """Abort the generation on all its remaining members."""


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
    """Dismiss workers that wait in ``init()`` and are not needed: they exit as if they had finished."""

    worker_ids: list[int]


@final
class Finish(Action, frozen=True):
    """End the job with this exit status, and stop workers that still run. No decision follows."""

    status: int


AnyAction: TypeAlias = (
    Start | Kill | Rest | Greet | Announce | AbortGeneration | Form | RefuseWorkers | Dismiss | Finish
)


@final
class Decision(msgspec.Struct, frozen=True):
    """An action and its reason."""

    action: AnyAction
    reason: str
