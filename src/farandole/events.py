"""Observability by subscription: lower floors emit typed events, and higher floors subscribe to them.

    >>> seen = []
    >>> cancel = subscribe(seen.append)
    >>> if subscribers: emit(Note(time_s=0.0, rank=0, text="hello"))
    >>> seen[0].text, cancel()
    ('hello', None)

An event without subscribers costs the one look-up ``if subscribers`` at its source. Subscribers run in the emitting
thread and must return quickly; their exceptions are logged, never propagated. ``listen`` is for subscribers that need
only ``Metric`` and ``Recovery``: a subscriber to all events makes every collective emit its phases, which slows down a
tiny step.

Threads. Threads that submit collectives emit, and so does the lane's own thread; the control thread subscribes the
timeline meanwhile. ``subscribers`` has no lock, so that the look-up costs nothing and a subscriber may cancel while it
is called: each change of the list is a single operation, and ``emit`` iterates over a copy.
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

    ``phase`` is ``submit``, ``negotiate``, ``queue``, ``execute``, ``reduce``, ``copy``, ``wait`` or, with zero length,
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
    """A remark that is no error (the chosen engine and why, a stall, an abort)."""

    time_s: float
    rank: int
    text: str


@final
class Milestone(msgspec.Struct, frozen=True):
    """A worker of an elastic job reaches ``phase``; emitted before the phase, so that tests can kill the worker there.

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
    """A worker trains again after a change: the reason, and the time of each part, up to the first voted step.

    ``form_s``: until the new generation was formed and connected; ``agree_s``: until its ranks knew which rank has the
    newest state; ``transfer_s``: until all had it (``transfer_bytes`` were sent); ``first_step_s``: to the next step.
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
        """Seconds from the error that ended the old generation on this rank to the first step of the new generation."""
        return self.form_s + self.agree_s + self.transfer_s + self.first_step_s


@final
class Metric(msgspec.Struct, frozen=True):
    """Numbers of a training on this rank: logged by the script, or measured by optimizers and data loaders.

    ``time_s`` is ``time.monotonic()`` of this host. ``step`` counts optimizer steps, or is the script's own counter;
    ``samples`` is the number of samples that this rank has seen so far, 0 if they are not counted. Units are in the
    names of ``values``: ``step_s`` and ``wait_s`` are seconds of a step, and of its waiting for other ranks.
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
"""Subscribers to the event types in ``HEARD`` only."""

shortcuts: list[Callable[[], None]] = []
"""Functions that switch off code paths that emit no events, used only while there are no subscribers."""

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
    """Switch off code paths that emit no events; they may be switched on again without subscribers."""
    for end in (*shortcuts,):  # a copy: a session that ends removes its entry
        end()


def _add(subscriber: Subscriber, among: list[Subscriber]) -> Callable[[], None]:
    among.append(subscriber)

    def cancel() -> None:
        if subscriber in among:
            among.remove(subscriber)

    return cancel


def emit(event: Event) -> None:
    """Call every subscriber with ``event``, in the calling thread."""
    also = listeners if isinstance(event, HEARD) else ()
    for subscriber in (*subscribers, *also):  # a copy: a removal during the loop would make it skip the next one
        try:
            subscriber(event)
        except Exception:  # not BaseException: tests inject faults by it, and Ctrl-C raises it
            logger.exception("a subscriber of Farandole's events raised")
