"""A fake engine for tests of the layers above engines: its members are threads of one process.

    world = ThreadWorld()

    def program(member: RankContext) -> None:
        engine = world.create(member.group(), member.exchange)
        ...

    run_threads(program, 3)

It is slow and plain (NumPy, one lock), and passes the contract suite.
"""

# Threads: ``run_threads`` has one for each rank, and they share only meetings. ``_Meetings._lock`` guards the table of
# meetings, ``_Meeting._changed`` the fields of one meeting. Everything else belongs to one thread: only its member uses
# an engine, except for ``abort``, which only takes the meeting's lock. ``results`` and ``errors`` of ``run_threads``
# need no lock: each thread writes the key of its rank, and the starter reads them after it has waited for all threads.
#
# Shared items are copies. A member goes on as soon as all have called, and writes its result into the array of its own
# contribution, while slower members have yet to read this contribution: hence ``copy()`` in every collective.
#
# Each member counts its own rounds, so a fast member can be in round n + 1 while others have yet to wake in round n;
# its next item must not get into their round.

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, final

import numpy as np

from farandole.collective import Array, Reduction
from farandole.engines.engine import Engine, Exchange, Group, Memory, Share
from farandole.engines.interruption import ends_when_interrupted, said_of
from farandole.errors import AbortError, StallError, UnsupportedError
from farandole.testing import reference
from farandole.testing.rank import RankContext
from farandole.testing.reference import Values

T = TypeVar("T")


def run_threads(program: Callable[[RankContext], T], size: int, timeout_s: float = 60.0) -> list[T]:
    """Call ``program(member)`` in ``size`` threads; return the results by rank, or raise the first rank's exception."""
    meetings = _Meetings()
    results: dict[int, T] = {}
    errors: dict[int, BaseException] = {}

    def share(rank: int) -> Share:
        return lambda key, ranks, payload: meetings.at(key, len(ranks)).share(ranks.index(rank), payload, timeout_s)

    def run_rank(rank: int) -> None:
        try:
            results[rank] = program(RankContext(rank, size, share(rank)))
        except BaseException as error:  # pytest's own are no Exceptions, and would be lost with the thread
            errors[rank] = error

    # Daemons: a thread that hangs is reported below, and must not keep the interpreter from exiting after that.
    threads = [threading.Thread(target=run_rank, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout_s)
    for _, error in sorted(errors.items()):
        raise error
    if len(results) < size:
        raise TimeoutError(f"ranks {sorted(set(range(size)) - set(results))} did not end in {timeout_s} s")
    return [results[rank] for rank in range(size)]


@final
class ThreadWorld:
    """Meeting point of threads that create engines over equal groups."""

    def __init__(self) -> None:
        self._meetings = _Meetings()

    def create(self, group: Group, exchange: Exchange) -> ThreadEngine:
        """Create one member's engine; as with real engines, all members create the same ones in the same order."""
        exchange(b"")  # as with real engines, no member has one before all members create theirs
        return ThreadEngine(group, self._meetings.at(f"{group.label} {group.generation} {group.ranks}", group.size))


@final
class ThreadEngine(Engine):
    """Engine between threads: every collective is an all-gather of copies, and NumPy."""

    name = "threads"

    def __init__(self, group: Group, meeting: _Meeting) -> None:
        self.group, self._meeting = group, meeting

    def allocate(self, nbytes: int) -> Memory:
        """Plain zeroed memory."""
        values = np.zeros(nbytes, np.uint8)
        return Memory(values.ctypes.data, nbytes, values)

    @ends_when_interrupted
    def allreduce(self, array: Array, how: Reduction) -> None:
        """Reduce in place."""
        reference.view(array)[:] = self._reduce(array, how)

    @ends_when_interrupted
    def allgather(self, send: Array, recv: Array, counts: Sequence[int]) -> None:
        """Concatenate; ``counts``: lengths of the copies."""
        assert recv.count == sum(counts)
        reference.view(recv)[:] = np.concatenate(self._share(reference.view(send).copy()))

    @ends_when_interrupted
    def broadcast(self, array: Array, root: int) -> None:
        """Use the copy of the root."""
        reference.view(array)[:] = self._share(reference.view(array).copy())[root]

    @ends_when_interrupted
    def alltoall(self, send: Array, send_counts: Sequence[int], recv: Array, recv_counts: Sequence[int]) -> None:
        """Use this member's slice of each copy."""
        assert recv.count == sum(recv_counts)
        slices = np.split(reference.view(send).copy(), np.cumsum(send_counts)[:-1])
        reference.view(recv)[:] = np.concatenate([said[self.group.rank] for said in self._share(slices)])

    @ends_when_interrupted
    def reducescatter(self, send: Array, recv: Array, counts: Sequence[int], how: Reduction) -> None:
        """Reduce everything, keep a slice."""
        start = sum(counts[: self.group.rank])
        reference.view(recv)[:] = self._reduce(send, how)[start : start + recv.count]

    @ends_when_interrupted
    def barrier(self) -> None:
        """Wait for all."""
        self._share(None)

    @ends_when_interrupted
    def gather_small(self, payload: bytes) -> list[bytes]:
        """Gather in the same way as arrays."""
        return super().gather_small(payload)

    def interrupted(self, error: BaseException) -> None:
        """Fail from now on; the others wait until their deadline."""
        self._meeting.abort(self.group.rank, said_of(self.group.label, error))

    def abort(self, reason: str) -> None:
        """Wake this member, from any thread; other members abort their own engines."""
        self._meeting.abort(self.group.rank, reason)

    def close(self) -> None:
        """Do nothing: the engine holds no resources."""

    def _reduce(self, array: Array, how: Reduction) -> Values:
        if not reference.legal(array.dtype, how.op):
            raise UnsupportedError(f"{how.op.label} of {array.dtype.label} does not exist")
        return reference.reduce(
            array.dtype, how.op, self._share(reference.view(array).copy()), how.prescale, how.postscale
        )

    def _share(self, item: Any) -> list[Any]:
        return self._meeting.share(self.group.rank, item, self.group.deadline_s)


@final
class _Meetings:
    """Meetings by name; the first thread creates a meeting."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._meetings: dict[str, _Meeting] = {}

    def at(self, name: str, size: int) -> _Meeting:
        with self._lock:
            return self._meetings.setdefault(name, _Meeting(size))


@final
class _Meeting:
    """An all-gather of Python objects among ``size`` threads, for any number of rounds."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._changed = threading.Condition()
        self._rounds: dict[int, dict[int, Any]] = {}
        self._count = [0] * size
        self._aborted: dict[int, str] = {}

    def share(self, member: int, item: Any, deadline_s: float) -> list[Any]:
        """Contribute ``item`` and wait for the items of all others."""
        with self._changed:
            self._check(member)
            number = self._count[member]
            self._count[member] += 1
            came = self._rounds.setdefault(number, {})
            came[member] = item
            self._changed.notify_all()
            full = self._changed.wait_for(lambda: len(came) == self._size or member in self._aborted, deadline_s)
            self._check(member)  # the wait also ends, without the others, when this member is aborted
            if not full:
                missing = sorted(set(range(self._size)) - set(came))
                raise StallError(f"members {missing} did not arrive in {deadline_s} s")
            self._rounds.pop(number - 1, None)  # all members are in this round, so none is in the previous one
            return [came[i] for i in range(self._size)]

    def _check(self, member: int) -> None:
        if member in self._aborted:
            raise AbortError(self._aborted[member])

    def abort(self, member: int, reason: str) -> None:
        """Make every share of ``member`` raise, now and later, with the first reason given."""
        with self._changed:
            self._aborted.setdefault(member, reason)
            self._changed.notify_all()
