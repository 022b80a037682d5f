"""Messages between a worker and the controller about the function that ``farandole.run`` was given."""

from __future__ import annotations

from typing import TypeAlias, final

from farandole.control.message import Message


@final
class FetchTask(Message, frozen=True):
    """Send me the function given to ``run``."""

    worker_id: int


@final
class TaskPayload(Message, frozen=True):
    """The function given to ``run``, pickled by the launcher."""

    payload: bytes


@final
class TaskResult(Message, frozen=True):
    """The value that the function given to ``run`` returned (``ok``), or the error it raised, pickled by the worker."""

    worker_id: int
    ok: bool
    payload: bytes


Any: TypeAlias = FetchTask | TaskPayload | TaskResult
