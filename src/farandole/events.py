"""Observability by subscription: lower floors emit typed events, whoever wants them subscribes.

    >>> seen = []
    >>> cancel = subscribe(seen.append)
    >>> if subscribers: emit(Note(time_s=0.0, rank=0, text="hello"))
    >>> seen[0].text, cancel()
    ('hello', None)

An event nobody subscribed to costs the one look-up ``if subscribers`` at its source. Subscribers run in the emitting
thread and must return quickly; what they raise is logged, never propagated.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeAlias, final

import msgspec

logger = logging.getLogger("farandole")


@final
class Phase(msgspec.Struct, frozen=True):
    """A finished phase of a collective on this rank (``submit``, ``negotiate``, ``queue``, ``reduce``, ``copy``).

    ``begin_s`` and ``end_s`` are ``time.monotonic()`` seconds of this host.
    """

    lane: str
    name: str
    kind: str
    phase: str
    begin_s: float
    end_s: float
    nbytes: int = 0


@final
class Note(msgspec.Struct, frozen=True):
    """Something worth saying that is no error (the engine chosen and why, a stall, an abort)."""

    time_s: float
    rank: int
    text: str


Event: TypeAlias = Phase | Note
Subscriber: TypeAlias = Callable[[Event], object]

subscribers: list[Subscriber] = []


def subscribe(subscriber: Subscriber) -> Callable[[], None]:
    """Call ``subscriber`` for every event from now on; the returned function ends that."""
    subscribers.append(subscriber)

    def cancel() -> None:
        if subscriber in subscribers:
            subscribers.remove(subscriber)

    return cancel


def emit(event: Event) -> None:
    """Hand ``event`` to every subscriber."""
    for subscriber in tuple(subscribers):
        try:
            subscriber(event)
        except Exception:
            logger.exception("a subscriber of Farandole's events raised")
