"""Meeting of the oracle's ranks, which are threads: each contributes a value, and all get all values.

    given = meetings.meet(rank, "allreduce.loss", value, members=(0, 1))

Threads: one or more for each rank, all under one condition, which guards every field of ``Meetings`` and of its
meetings. A meeting is over when each member has contributed or has joined. If the threads of all ranks wait for
contributions that cannot arrive, they raise ``DeadlockError``, so that no clock is needed.

A deadlock is found by counting: ``_threads`` counts the threads that could still contribute, so every thread that
starts, waits or ends must be counted, and at a moment when the sum cannot look like a deadlock. A thread whose meeting
is over counts as waiting until it runs again; so there is a deadlock only if, besides, no predicate in ``_waiting`` is
true. The contributions to a meeting are read without the lock: once it is over no thread adds to them.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias, final

Given: TypeAlias = dict[int, Any]
"""Values of a meeting by rank; ranks that have joined are not in it."""


@final
class DeadlockError(Exception):
    """The ranks wait for each other: the program cannot end."""


@final
@dataclass
class _Meeting:
    members: tuple[int, ...]
    given: Given = field(default_factory=dict)
    over: bool = False


@final
class Meetings:
    """All meetings of the ranks of one program."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._changed = threading.Condition()
        self._open: dict[tuple[str, int], _Meeting] = {}
        self._calls: Counter[tuple[int, str]] = Counter()
        self._threads = Counter(dict.fromkeys(range(size), 1))  # that are neither waiting nor done, by rank
        self._joined: list[int] = []
        self._rounds = self._last = 0
        self._waiting: list[Callable[[], bool]] = []

    def meet(self, rank: int, name: str, value: Any, members: tuple[int, ...]) -> Given:
        """Contribute ``value`` under a name, and return the contributions of all members."""
        with self._changed:
            self._calls[rank, name] += 1
            key = name, self._calls[rank, name]
            meeting = self._open.setdefault(key, _Meeting(members))  # the n-th call of a rank meets the n-th of others
            meeting.given[rank] = value
            self._conclude()
            self._wait(rank, lambda: meeting.over)
            return meeting.given

    def join(self, rank: int) -> int:
        """Join: contribute nothing until all have joined; returns the rank that joined last."""
        with self._changed:
            this_round = self._rounds
            self._joined.append(rank)
            self._conclude()  # before the list is emptied below: meetings that wait for this rank end with it
            if len(self._joined) == self._size:
                self._last, self._joined, self._rounds = rank, [], self._rounds + 1
                self._calls.clear()  # ranks have taken part in different numbers of meetings
                self._open.clear()
                self._changed.notify_all()
            self._wait(rank, lambda: self._rounds > this_round)
            return self._last

    def more_threads(self, rank: int, number: int) -> None:
        """Count ``number`` more threads of a rank that may take part in meetings, or fewer if it is negative."""
        with self._changed:
            self._threads[rank] += number
            self._changed.notify_all()  # with one thread fewer the others may be in a deadlock, and only they detect it

    def _conclude(self) -> None:
        for meeting in self._open.values():
            meeting.over = meeting.over or all(r in meeting.given or r in self._joined for r in meeting.members)
        self._changed.notify_all()

    def _wait(self, rank: int, done: Callable[[], bool]) -> None:
        self._threads[rank] -= 1
        self._waiting.append(done)
        try:
            while not done():
                # Second part: some thread's meeting is over, and it has not woken up to be counted again.
                if not any(self._threads.values()) and not any(each() for each in self._waiting):
                    self._changed.notify_all()
                    raise DeadlockError("every rank waits for another one")
                self._changed.wait(60.0)  # every change notifies; the time only bounds the cost of a mistake in that
        finally:
            self._waiting.remove(done)
            self._threads[rank] += 1  # after an error too: the others find the deadlock once this thread has ended
