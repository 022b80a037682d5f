"""Messages between a worker and the controller about the function that ``farandole.run`` was given."""

from __future__ import annotations

from typing import TypeAlias, final

from farandole.control.message import Message


@final
class FetchTask(Message, frozen=True):
    """Send me a piece of the function given to ``run``: what follows its first ``begin`` bytes."""

    worker_id: int
    begin: int = 0


@final
class TaskPayload(Message, frozen=True):
    """A piece of the function given to ``run``, pickled by the launcher; ``left`` bytes follow it."""

    payload: bytes
    left: int = 0


@final
class TaskResult(Message, frozen=True):
    """A piece of what the function given to ``run`` returned (``ok``), or of the error that it raised.

    The worker has pickled it; ``left`` bytes follow from the same connection.
    """

    worker_id: int
    ok: bool
    payload: bytes
    left: int = 0


TaskMessage: TypeAlias = FetchTask | TaskPayload | TaskResult
