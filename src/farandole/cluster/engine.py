"""Seat of an IPython engine in a job of a notebook: its rank, and the contact of the controller.

    take(EngineSeat("3f2a", rank=1, size=2, host="node7", local_rank=1, spans_hosts=False, contact=contact))
    occupied()                  # that seat, in this process and in none of its children
    with as_task():             # a task of a load-balanced view: a job of one, whatever the seat
        ...

The seat is kept in the process and not in ``os.environ``: programs that a cell starts, and tasks, are no ranks. It
overrides the variables of the starter of the engine (``srun``, say), whose ranks are not those of the notebook.
"""

# Threads. The engine handles requests, and so makes all these calls, in its main thread, one at a time. Other threads
# only read one reference each.

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterator, Mapping
from typing import final

import msgspec

from farandole.cluster.contact import Contact, Meeting
from farandole.cluster.environment import Environment, Single, Vocabulary


@final
class EngineSeat(msgspec.Struct, frozen=True):
    """Seat of one engine: its rank in the job named ``job``, and the contact of the controller."""

    job: str
    rank: int
    size: int
    host: str
    local_rank: int
    spans_hosts: bool
    contact: Contact


@final
class SeatedEngine(Environment):
    """Environment of an IPython engine that ``farandole.notebook.attach`` has made a rank."""

    name = "notebook engine"
    remedy = "In the notebook: ranks = farandole.notebook.attach(rc)"
    vocabulary = Vocabulary()
    has_controller = True
    is_interactive = True

    def __init__(self, seat: EngineSeat, variables: Mapping[str, str]) -> None:
        super().__init__(variables)
        self._seat = seat

    @classmethod
    def recognises(cls, variables: Mapping[str, str]) -> bool:  # noqa: ARG003
        """Always false: variables do not describe a seat."""
        return False

    @property
    def worker_id(self) -> int:
        return self._seat.rank

    @property
    def size(self) -> int:
        return self._seat.size

    @property
    def identity(self) -> tuple[str, ...]:
        """See ``Environment``."""
        return (self.name, self._seat.job, str(self._seat.rank))

    @property
    def local_worker_id(self) -> int:
        return self._seat.local_rank

    @property
    def spans_hosts(self) -> bool:
        return self._seat.spans_hosts

    @property
    def host(self) -> str:
        return self._seat.host

    @property
    def controller(self) -> str:
        return ",".join(self._seat.contact.addresses)

    @property
    def key(self) -> str:
        return self._seat.contact.key

    def share(self, contact: Contact | None, meeting: Meeting) -> Contact:
        """Return the contact of the seat, which the notebook has set."""
        return contact or self._seat.contact


@final
class _Process:
    """State of this process."""

    def __init__(self) -> None:
        self.seat: EngineSeat | None = None
        self.tasks = 0


_process = _Process()


def set_seat(seat: EngineSeat | None) -> None:
    """Set the seat of this process, in place of an earlier one; ``None`` removes it."""
    _forget_in_children()
    _process.seat = seat


def occupied() -> EngineSeat | None:
    """Seat of this process; ``None`` without a seat, and in a task."""
    return None if _process.tasks else _process.seat


@contextlib.contextmanager
def as_task() -> Iterator[None]:
    """Context in which this process is a job of one, whatever its seat and its variables say."""
    _process.tasks += 1
    try:
        yield
    finally:
        _process.tasks -= 1


@contextlib.contextmanager
def by_variables() -> Iterator[None]:
    """Context, in a task, in which the variables count: for a worker of a search, which has set them."""
    kept = _process.seat, _process.tasks
    _process.seat, _process.tasks = None, 0
    try:
        yield
    finally:
        _process.seat, _process.tasks = kept


def environment() -> Environment | None:
    """Environment of an engine with a seat, or of its task; ``None`` in any other process."""
    if _process.tasks:
        return Single(os.environ)
    return None if _process.seat is None else SeatedEngine(_process.seat, os.environ)


@functools.cache
def _forget_in_children() -> None:
    os.register_at_fork(after_in_child=_forget)


def _forget() -> None:
    _process.seat, _process.tasks = None, 0
