"""``Work`` objects of ``torch.distributed``: handles of collectives that a program has begun.

work = dist.all_reduce(tensor, async_op=True)
work.wait()
work.get_future().then(lambda future: future.value())
"""

# Threads. The lane's thread finishes a work once; any thread may wait for it, or get its future, before or after that.
# ``_lock`` is held shortly: while one thread makes the future, and while the lane's thread reads it.

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Sequence
from typing import Any, final

import torch
import torch.distributed as dist
from torch.futures import Future

from farandole.errors import StallError

NO_TIMEOUT = dt.timedelta(0)
"""Timeout that PyTorch passes to ``wait`` if the program gives none."""


_Work: Any = dist._Work  # type: ignore[attr-defined]


@final
class DoneWork(_Work):  # type: ignore[misc]
    """Work of a collective that is done."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        super().__init__()
        self._tensors = list(tensors)

    def wait(self, timeout: dt.timedelta = NO_TIMEOUT) -> bool:
        """Return at once."""
        return True

    def is_completed(self) -> bool:
        """True."""
        return True

    def is_success(self) -> bool:
        """True."""
        return True

    def exception(self) -> None:
        """``None``."""

    def result(self) -> list[torch.Tensor]:
        """The tensors with the results."""
        return self._tensors

    def synchronize(self) -> None:
        """Do nothing."""

    def get_future(self) -> Future[list[torch.Tensor]]:
        """A future that is done."""
        future: Future[list[torch.Tensor]] = Future()
        future.set_result(self._tensors)
        return future


@final
class QueuedWork(_Work):  # type: ignore[misc]
    """Work of a collective that the lane's thread runs."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        super().__init__()
        self._tensors = list(tensors)
        self._done, self._lock = threading.Event(), threading.Lock()
        self._end: Future[None] | None = None
        self._future: Future[list[torch.Tensor]] | None = None
        self._error: BaseException | None = None
        self.source = -1
        """Rank that sent the message."""

    def finish(self, error: BaseException | None) -> None:
        """Mark the collective as done (``None``) or failed with ``error``."""
        with self._lock:
            self._error = error
            self._done.set()
            end = self._end
        if end is not None:
            end.set_result(None)

    def wait(self, timeout: dt.timedelta = NO_TIMEOUT) -> bool:
        """Wait until the collective is done; raises its error, or ``StallError`` after a positive ``timeout``."""
        limit_s = timeout.total_seconds()
        if not self._done.wait(limit_s if limit_s > 0 else None):
            raise StallError(f"a collective was not done in the {limit_s:g} s that wait() was given")
        if self._error is not None:
            raise self._error
        return True

    def is_completed(self) -> bool:
        """True once the collective is done or has failed."""
        return self._done.is_set()

    def is_success(self) -> bool:
        """True once the collective is done without an error."""
        return self._done.is_set() and self._error is None

    def exception(self) -> BaseException | None:
        """Error of the collective; ``None`` while it runs, and if it succeeded."""
        return self._error

    def result(self) -> list[torch.Tensor]:
        """Tensors for the results."""
        return self._tensors

    def synchronize(self) -> None:
        """See ``wait``."""
        self.wait()

    def source_rank(self) -> int:
        """Rank that sent the message of a ``recv``."""
        return self.source

    _source_rank = source_rank

    def get_future(self) -> Future[list[torch.Tensor]]:
        """Future of the tensors or the error."""
        with self._lock:
            if self._future is not None:
                return self._future
            end = self._end = Future()
            # Not ``set_exception``: Python then gets an error, but C++ the exception as a result, and DDP crashes. An
            # exception that a callback raises is an error for both.
            future = self._future = end.then(self._outcome)
            is_due = self._done.is_set()  # otherwise ``finish`` sets the future
        if is_due:
            end.set_result(None)
        return future

    def _outcome(self, _: Future[None]) -> list[torch.Tensor]:
        if self._error is not None:
            raise self._error
        return self._tensors
