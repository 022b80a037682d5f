"""Object kept on each worker of a pool between calls, and results that are fetched later.

    pool.call(FunctionCall(make, (Trainer, (), {})))
    pool.call(FunctionCall(execute, (lambda trainer: trainer.step(), (), {}, -1)))

Both run in processes that can import this package, but not the one named ``horovod``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, final

from farandole.cluster.detect import detect

_made: list[Any] = [None]
"""The object of this worker."""


def make(cls: type | None, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Make the object of this worker."""
    _made[0] = None if cls is None else cls(*args, **kwargs)


def execute(func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], only: int) -> Any:
    """Call ``func`` with the object, on the rank ``only`` (-1: on all); others return ``None``."""
    return func(_made[0], *args, **kwargs) if only in (-1, detect().worker_id) else None


@final
class ResultBox:
    """Results of one call, for waiting callers: an actor of Ray."""

    def __init__(self) -> None:
        self._there = asyncio.Event()
        self._values: list[Any] = []
        self._error = ""

    async def fill(self, values: list[Any], error: str) -> None:
        """Store the results, or the error."""
        self._values, self._error = values, error
        self._there.set()

    async def result_of(self, rank: int) -> Any:
        """Wait for the result of a rank; raises ``RuntimeError`` if the call has failed."""
        await self._there.wait()
        if self._error:
            raise RuntimeError(self._error)
        return self._values[rank]


def outcome(done: Future[list[Any]]) -> tuple[list[Any], str]:
    """Arguments of ``ResultBox.fill`` for a completed call."""
    error = done.exception()
    return (done.result(), "") if error is None else ([], str(error) or type(error).__name__)
