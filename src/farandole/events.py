"""Observability by subscription: lower floors emit typed events, whoever wants them subscribes.

    >>> seen = []
    >>> cancel = subscribe(seen.append)
    >>> if subscribers: emit(Note(time_s=0.0, rank=0, text="hello"))
    >>> seen[0].text, cancel()
    ('hello', None)

An event nobody subscribed to costs the one look-up ``if subscribers`` at its source. Subscribers run in the emitting
thread and must return quickly; what they raise is logged, never propagated. ``listen`` is for whoever wants no more
than ``Metric`` and ``Recovery``: subscribers of everything have each collective tell its phases, which a tiny step
feels.

Threads that submit collectives emit, and so does the lane's own; the one that listens to the controller subscribes the
timeline meanwhile. ``subscribers`` has no lock, so that the look-up costs nothing and a subscriber may cancel while it
is called: each change of the list is a single operation, and ``emit`` goes through a copy.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeAlias, final

import msgspec

logger = logging.getLogger("farandole")


@final
class Phase(msgspec.Struct, frozen=True):
    """A finished phase of a collective on this rank.

    It is ``submit``, ``negotiate``, ``queue``, ``execute``, ``reduce``, ``copy``, ``wait`` or, without length,
    ``cycle``; ``begin_s`` and ``end_s`` are ``time.monotonic()`` seconds of this host.
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


@final
class Milestone(msgspec.Struct, frozen=True):
    """A worker of an elastic job comes to ``phase``; sent before it begins, so that tests can end the worker there.

    In a step: ``reduce``, ``vote``, ``voted``, ``applied``. In the script: ``commit``. Between generations: ``reform``,
    ``agree``, ``transfer``, ``receive``, ``put back``, ``synced``. ``step`` counts the voted steps of the job.
    """

    phase: str
    generation: int
    rank: int
    step: int
    time_s: float

    @property
    def text(self) -> str:
        """Text of the milestone in a timeline."""
        return f"{self.phase} of step {self.step}"


@final
class Recovery(msgspec.Struct, frozen=True, tag=True):
    """A worker trains again: what happened, and how long each part took, up to the first step that was voted.

    ``form_s`` is until the new generation was formed and connected, ``agree_s`` until its ranks knew who has the newest
    state, ``transfer_s`` until all had it (``transfer_bytes`` travelled), ``first_step_s`` until the next step.
    """

    time_s: float
    because: str
    generation: int
    rank: int
    size: int
    step: int
    form_s: float
    agree_s: float
    transfer_s: float
    first_step_s: float
    transfer_bytes: int

    @property
    def text(self) -> str:
        """One line for a log or a timeline."""
        return (
            f"generation {self.generation} of {self.size} goes on at step {self.step} after {self.total_s:.3f} s "
            f"(form {self.form_s:.3f}, agree {self.agree_s:.3f}, transfer {self.transfer_s:.3f} for "
            f"{self.transfer_bytes} bytes, first step {self.first_step_s:.3f}): {self.because}"
        )

    @property
    def total_s(self) -> float:
        """From the error that ended the old generation on this rank to the first step of the new one."""
        return self.form_s + self.agree_s + self.transfer_s + self.first_step_s


@final
class Metric(msgspec.Struct, frozen=True):
    """Numbers of a training on this rank: what a script logs, and what optimizers and loaders measure by themselves.

    ``time_s`` is ``time.monotonic()`` of this host. ``step`` counts the steps of the optimizer, or what the script says
    it counts; ``samples`` is how many this rank has seen so far, 0 where nobody counts them. Units are in the names of
    ``values``: ``step_s`` and ``wait_s`` are seconds of a step, and of its waiting for other ranks.
    """

    time_s: float
    rank: int
    step: int
    samples: int
    values: dict[str, float]

    @property
    def text(self) -> str:
        """Text of the numbers in a timeline."""
        return f"step {self.step}: " + ", ".join(f"{name} {value:.6g}" for name, value in self.values.items())


Event: TypeAlias = Phase | Note | Milestone | Recovery | Metric
Subscriber: TypeAlias = Callable[[Event], object]

subscribers: list[Subscriber] = []
listeners: list[Subscriber] = []
"""Subscribers to ``HEARD`` alone."""

shortcuts: list[Callable[[], None]] = []
"""Ends of what goes on without events while nobody subscribes."""

HEARD = (Metric, Recovery)


def subscribe(subscriber: Subscriber) -> Callable[[], None]:
    """Call ``subscriber`` for every event from now on; the returned function ends that."""
    cancel = _add(subscriber, subscribers)
    end_shortcuts()
    return cancel


def listen(listener: Subscriber) -> Callable[[], None]:
    """Call ``listener`` for every ``Metric`` and ``Recovery`` from now on; the returned function ends that.

    >>> heard = []
    >>> cancel = listen(heard.append)
    >>> if listeners or subscribers: emit(Metric(0.0, 0, 7, 0, {"loss": 0.5}))
    >>> heard[0].text, cancel()
    ('step 7: loss 0.5', None)
    """
    return _add(listener, listeners)


def end_shortcuts() -> None:
    """End what goes on without events; it may begin again where nobody subscribes."""
    for end in (*shortcuts,):  # a copy: sessions that end take theirs away
        end()


def _add(subscriber: Subscriber, among: list[Subscriber]) -> Callable[[], None]:
    among.append(subscriber)

    def cancel() -> None:
        if subscriber in among:
            among.remove(subscriber)

    return cancel


def emit(event: Event) -> None:
    """Hand ``event`` to every subscriber, in the calling thread."""
    also = listeners if isinstance(event, HEARD) else ()
    for subscriber in (*subscribers, *also):  # a copy: one that is removed during the loop would make it skip the next
        try:
            subscriber(event)
        except Exception:  # not BaseException: that is how tests inject a fault, and how Ctrl-C comes
            logger.exception("a subscriber of Farandole's events raised")
