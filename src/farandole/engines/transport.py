"""Transport: point-to-point transfers between the members of a group, the base of an engine over a network.

    transport.transfer(sends=[(1, mine)], receives=[(1, theirs)])

Sockets and MPI are such transports; ``pairwise`` builds collectives on them.

Threads. One thread at a time is in ``transfer`` or ``interrupted``; it writes the counters and, like ``close``,
``_failure``. Any other thread may call ``abort``, or a signal handler on top of that thread's own frames. So there is
no lock: the handler would wait for the frame below it. Each write is of one reference, and the order of writes is
sufficient: ``reason`` is written before ``aborted`` is set, and ``aborted`` is set before ``_interrupt`` wakes a
thread. So a thread that wakes, or sees the flag, finds the reason. Of two concurrent aborts either may win. ``check``
and ``failure`` read ``reason`` first: a lost connection is mostly the consequence of the abort.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TypeAlias, TypeVar, final

from farandole.collective import Array
from farandole.control.reentrant_event import ReentrantEvent
from farandole.engines.engine import Group
from farandole.engines.interruption import said_of
from farandole.errors import AbortError, CollectiveError, EngineError, StallError

T = TypeVar("T")

Parcel: TypeAlias = tuple[int, Array]
"""Index of a member in the group, and the array to send to it or to receive from it."""

_LOOK_S = 0.02
"""Interval between checks whether the generation has ended, while a transport is being made."""


class Transport(ABC):
    """Point-to-point transfers in the order of the calls.

    One thread at a time calls ``transfer``; any thread may call ``abort``. After a failure every later call fails.
    """

    def __init__(self, group: Group) -> None:
        self.group = group
        self.reason: str | None = None
        self.aborted = ReentrantEvent()
        self.transfers = self.bytes_sent = 0
        self._failure: tuple[type[CollectiveError], str] | None = None

    @final
    def transfer(self, sends: Sequence[Parcel], receives: Sequence[Parcel]) -> None:
        """Send and receive concurrently, at most one array to and from each member, and return when all is done.

        Empty arrays are not transferred.

        Raises ``AbortError``, ``StallError`` or ``EngineError``, and touches none of the arrays afterwards.
        """
        self.check()
        self.transfers += 1
        self.bytes_sent += sum(array.nbytes for _, array in sends)
        self._move(
            [parcel for parcel in sends if parcel[1].nbytes],
            [parcel for parcel in receives if parcel[1].nbytes],
        )

    @final
    def abort(self, reason: str) -> None:
        """Wake the thread that is in ``transfer``, and fail from now on."""
        if self.reason is None:
            self.reason = reason  # before the flag: a thread that sees the flag reads the reason
        self.aborted.set()
        self._interrupt()

    @final
    def close(self) -> None:
        """Free all resources."""
        clean = self.reason is None and self._failure is None  # before ``_failure`` is set to make later calls fail
        if self._failure is None:
            self._failure = EngineError, f"the engine of {self.group.label} is closed"
        self._release(clean)

    @final
    def check(self) -> None:
        """Raise the error that ended this transport, if it has ended."""
        if self.reason is not None:
            raise AbortError(self.reason)
        if self._failure is not None:
            kind, text = self._failure
            raise kind(text)

    @final
    def failure(self, kind: type[CollectiveError], text: str) -> CollectiveError:
        """Record a failure and return the error to raise; after an abort that is the abort's error."""
        if self._failure is None:
            self._failure = kind, text
        return AbortError(self.reason) if self.reason is not None else kind(text)

    @final
    def interrupted(self, error: BaseException) -> None:
        """Fail from now on, and wake members that wait for this one, whose caller leaves a collective unfinished."""
        if self.reason is None and self._failure is None:
            self._failure = EngineError, said_of(self.group.label, error)
            self._interrupt()

    @final
    def stalled(self, peer: int) -> CollectiveError:
        """Make the error for a late member ``peer``; pass this member's own index if the late one is unknown."""
        group = self.group
        who = "some member" if peer == group.rank else group.name(peer)
        return self.failure(StallError, f"{who} did not join a collective of {group.label} in {group.deadline_s:g} s")

    @abstractmethod
    def _move(self, sends: Sequence[Parcel], receives: Sequence[Parcel]) -> None:
        """Do the work of ``transfer``, within the group's ``deadline_s``."""

    @abstractmethod
    def _interrupt(self) -> None:
        """Make a ``_move`` in another thread raise soon."""

    @abstractmethod
    def _release(self, clean: bool) -> None:
        """Free all resources; ``clean`` if nothing has failed and nothing is in flight. Idempotent."""


def interruptible(group: Group, what: str, limit_s: float, make: Callable[[], T]) -> T:
    """Result of ``make``, which blocks without a way to wake it; raises early if the generation ends meanwhile.

    ``make`` runs in a thread of its own, which is abandoned in that case: it ends when the library gives up.
    """
    # Lists, because each is written by one thread and read by the other after ``done``. The result of an abandoned
    # thread stays in them unused.
    made: list[T] = []
    raised: list[BaseException] = []
    done = threading.Event()

    def make_and_signal() -> None:
        try:
            made.append(make())
        except BaseException as error:  # also SystemExit: without ``done`` the caller would wait until its limit
            raised.append(error)
        done.set()

    # A daemon: abandoned in a library that never gives up, it must not keep the process from exiting.
    thread = threading.Thread(target=make_and_signal, name=f"farandole-{what}", daemon=True)
    thread.start()
    give_up = time.monotonic() + limit_s
    while not done.wait(_LOOK_S):
        if group.broken.is_set():
            raise AbortError(f"the generation ended while {what} of {group.label} was being made")
        if time.monotonic() > give_up:
            why = f"could not be made within {limit_s:g} s: not every member took part"
            raise StallError(f"{what} of {group.label} {why}")
    thread.join()
    if raised:
        raise raised[0]
    return made[0]
