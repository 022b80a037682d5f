"""Works of ``torch.distributed``: what a program waits for that has begun a collective.

work = dist.all_reduce(tensor, async_op=True)
work.wait()
work.get_future().then(lambda future: future.value())
"""

# Threads. The lane's thread finishes a work once; any thread waits for it, or asks for its future, meanwhile or later.
# ``_lock`` is held for the moments in which the one makes the future and the other sets it.

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
"""Time that PyTorch passes to ``wait`` where the program gives none."""


_Work: Any = dist._Work  # type: ignore[attr-defined]


@final
class DoneWork(_Work):  # type: ignore[misc]
    """A collective that is done."""

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
    """A collective that the lane's thread does, sooner or later."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        super().__init__()
        self._tensors = list(tensors)
        self._done, self._lock = threading.Event(), threading.Lock()
        self._end: Future[None] | None = None
        self._future: Future[list[torch.Tensor]] | None = None
        self._error: BaseException | None = None
        self.source = -1
        """Rank that a message has come from."""

    def finish(self, error: BaseException | None) -> None:
        """Note that it is done, or what has ended it."""
        with self._lock:
            self._error = error
            self._done.set()
            end = self._end
        if end is not None:
            end.set_result(None)

    def wait(self, timeout: dt.timedelta = NO_TIMEOUT) -> bool:
        """Wait until it is done; raises what has ended it, and ``StallError`` after a positive ``timeout``."""
        limit_s = timeout.total_seconds()
        if not self._done.wait(limit_s if limit_s > 0 else None):
            raise StallError(f"a collective was not done in the {limit_s:g} s that wait() was given")
        if self._error is not None:
            raise self._error
        return True

    def is_completed(self) -> bool:
        """True once it is done, or has failed."""
        return self._done.is_set()

    def is_success(self) -> bool:
        """True once it is done."""
        return self._done.is_set() and self._error is None

    def exception(self) -> BaseException | None:
        """The error that has ended it; ``None`` while it goes on, and if it is done."""
        return self._error

    def result(self) -> list[torch.Tensor]:
        """The tensors that get the results."""
        return self._tensors

    def synchronize(self) -> None:
        """Wait until it is done."""
        self.wait()

    def source_rank(self) -> int:
        """Rank that the message of ``recv`` has come from."""
        return self.source

    _source_rank = source_rank

    def get_future(self) -> Future[list[torch.Tensor]]:
        """A future with the tensors, or the error."""
        with self._lock:
            if self._future is not None:
                return self._future
            end = self._end = Future()
            # Not ``set_exception``: that gives Python an error and C++ the exception as a result, on which DDP crashes.
            # What a callback raises is an error to both.
            future = self._future = end.then(self._outcome)
            is_due = self._done.is_set()  # else ``finish`` sets it
        if is_due:
            end.set_result(None)
        return future

    def _outcome(self, _: Future[None]) -> list[torch.Tensor]:
        if self._error is not None:
            raise self._error
        return self._tensors
