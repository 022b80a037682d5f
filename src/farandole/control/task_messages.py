"""Messages between a worker and the controller that carry the function passed to ``farandole.run`` and its results."""

from __future__ import annotations

from typing import TypeAlias, final

from farandole.control.message import Message


@final
class FetchTask(Message, frozen=True):
    """Request of a worker for a piece of the pickled function passed to ``run``, from byte ``begin`` on."""

    worker_id: int
    begin: int = 0


@final
class TaskPayload(Message, frozen=True):
    """A piece of the function passed to ``run``, pickled by the launcher; ``left`` bytes follow it."""

    payload: bytes
    left: int = 0


@final
class TaskResult(Message, frozen=True):
    """A piece of the return value of the function passed to ``run`` (``ok``), or of the error that it raised.

    The worker pickled the value; ``left`` bytes follow on the same connection.
    """

    worker_id: int
    ok: bool
    payload: bytes
    left: int = 0


TaskMessage: TypeAlias = FetchTask | TaskPayload | TaskResult
