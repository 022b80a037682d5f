"""Bytes between each two members of a group: all that an engine over a network needs of what it is built on.

    transport.transfer(sends=[(1, mine)], receives=[(1, theirs)])

Sockets and MPI are such transports; ``pairwise`` makes collectives of them.

Threads. One thread at a time is in ``transfer`` or ``interrupted``; it writes the counters and, like ``close``,
``_failure``. ``abort`` may come from any other, or from a signal handler on top of that thread's own frames. So there
is no lock: the handler would wait for the frame below it. Each write is of one reference, and their order does what is
needed: ``reason`` is there before ``aborted`` is set, and ``aborted`` is set before ``_interrupt`` wakes anybody. So
whoever wakes, or sees the flag, finds the reason. Of two aborts at once either may give it. ``check`` and ``failure``
look at ``reason`` first: a lost connection is mostly the consequence of what the abort says.
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
"""The index of a member in the group, and what is sent to or received from it."""

_LOOK_S = 0.02
"""Time between looks, while a transport is being made, whether its generation has ended."""


class Transport(ABC):
    """Point-to-point transfers in the order in which they are asked for.

    One thread at a time calls ``transfer``; ``abort`` may come from any. What has failed once fails for ever.
    """

    def __init__(self, group: Group) -> None:
        self.group = group
        self.reason: str | None = None
        self.aborted = ReentrantEvent()
        self.transfers = self.bytes_sent = 0
        self._failure: tuple[type[CollectiveError], str] | None = None

    @final
    def transfer(self, sends: Sequence[Parcel], receives: Sequence[Parcel]) -> None:
        """Send and receive all at once, at most one array to and from each member, and return when all of it is done.

        Nothing empty travels.

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
            self.reason = reason  # before the flag: who sees that reads this
        self.aborted.set()
        self._interrupt()

    @final
    def close(self) -> None:
        """Give everything back."""
        clean = self.reason is None and self._failure is None  # before ``_failure`` is set to make later calls fail
        if self._failure is None:
            self._failure = EngineError, f"the engine of {self.group.label} is closed"
        self._release(clean)

    @final
    def check(self) -> None:
        """Raise what ended this transport, if something has."""
        if self.reason is not None:
            raise AbortError(self.reason)
        if self._failure is not None:
            kind, text = self._failure
            raise kind(text)

    @final
    def failure(self, kind: type[CollectiveError], text: str) -> CollectiveError:
        """Note what happened; the error to raise is the abort's if there was one."""
        if self._failure is None:
            self._failure = kind, text
        return AbortError(self.reason) if self.reason is not None else kind(text)

    @final
    def interrupted(self, error: BaseException) -> None:
        """Fail from now on, and let nobody wait for this member, as the caller gives up a collective half-way."""
        if self.reason is None and self._failure is None:
            self._failure = EngineError, said_of(self.group.label, error)
            self._interrupt()

    @final
    def stalled(self, peer: int) -> CollectiveError:
        """The error for a member that did not come in time; for this one, where it is not known who."""
        group = self.group
        who = "some member" if peer == group.rank else group.name(peer)
        return self.failure(
            StallError, f"{who} did not come to a collective of {group.label} in {group.deadline_s:g} s"
        )

    @abstractmethod
    def _move(self, sends: Sequence[Parcel], receives: Sequence[Parcel]) -> None:
        """Do what ``transfer`` says, within the group's ``deadline_s``."""

    @abstractmethod
    def _interrupt(self) -> None:
        """Make a ``_move`` in another thread raise soon."""

    @abstractmethod
    def _release(self, clean: bool) -> None:
        """Free what is held; ``clean`` if nothing has failed and nothing is in flight. May be called again."""


def interruptible(group: Group, what: str, limit_s: float, make: Callable[[], T]) -> T:
    """The result of ``make``, which blocks where nothing can wake it; an end of the generation is not waited out.

    ``make`` runs in a thread of its own, which an abort leaves behind: it ends when the library gives up.
    """
    # Lists, as each is written by one thread and read by the other after ``done``. What an abandoned thread still makes
    # stays in them, and nobody gets it.
    made: list[T] = []
    raised: list[BaseException] = []
    done = threading.Event()

    def run() -> None:
        try:
            made.append(make())
        except BaseException as error:  # also SystemExit: without ``done`` the caller would wait for its time limit
            raised.append(error)
        done.set()

    # A daemon: left behind in a library that never gives up, it must not keep the process from ending.
    thread = threading.Thread(target=run, name=f"farandole-{what}", daemon=True)
    thread.start()
    give_up = time.monotonic() + limit_s
    while not done.wait(_LOOK_S):
        if group.broken.is_set():
            raise AbortError(f"the generation ended while {what} of {group.label} was being made")
        if time.monotonic() > give_up:
            raise StallError(f"{what} of {group.label} could not be made within {limit_s:g} s: not every member came")
    thread.join()
    if raised:
        raise raised[0]
    return made[0]
