"""Handles: collectives in flight by number, as Horovod's asynchronous functions return them.

    handle = allreduce_async(loss, name="loss")
    mean = synchronize(handle)

Numbers are unique in a process: a handle is valid in the module of every framework.

Threads. Any thread may begin, poll and synchronize. There is no lock, because ``next`` of a counter and single
operations on a ``dict`` are atomic. A number is in ``_pending`` before ``begin`` returns it. ``synchronize`` removes it
and then waits: of two threads with one handle, one gets the result, and the other ``None``, as for an unknown handle.
"""

from __future__ import annotations

import itertools
from typing import Any, final

from farandole.errors import UsageError
from farandole.runtime.collectives.verbs import Pending, Request


@final
class Handles:
    """Verbs in flight by number.

    handles = Handles()
    number = handles.begin(request)
    result = handles.synchronize(number)
    """

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._pending: dict[int, Pending[Any]] = {}

    def begin(self, request: Request[Any]) -> int:
        """Begin a request; returns its number for ``poll`` and ``synchronize``."""
        number = next(self._numbers)
        self._pending[number] = request.begin()
        return number

    def poll(self, number: int) -> bool:
        """True once ``synchronize`` would not block."""
        pending = self._pending.get(number)
        if pending is None:
            raise UsageError(f"poll: {number!r} is no handle in flight; synchronize() ends a handle's life")
        return pending.done()

    def synchronize(self, number: int) -> Any:
        """Wait for a request and return its result; ``None`` for a number that is not known, as in Horovod."""
        pending = self._pending.pop(number, None)
        return None if pending is None else pending.wait()


handles = Handles()


def poll(handle: int) -> bool:
    """True once ``synchronize(handle)`` would return at once; ``ValueError`` for a handle that is not in flight.

    >>> handle = hvd.allreduce_async(loss, name="loss")
    >>> while not hvd.poll(handle):
    ...     prepare_the_next_batch()
    """
    return handles.poll(handle)


def synchronize(handle: int) -> Any:
    """Wait for the collective of an ``_async`` function, and return its result; ``None`` for a handle not in flight.

    >>> handle = hvd.allreduce_async(loss, name="loss")
    >>> mean = hvd.synchronize(handle)

    Raises ``HorovodInternalError`` if the collective failed.
    """
    return handles.synchronize(handle)
