"""Messages between a search for hyper-parameters and the warm workers of its pool.

The docstring of a message speaks for its sender: *I* send it, *you* receive it. What concerns the membership that a
trial is (``Hello``, ``Submit``, ...) travels beside these, on the connections of the worker's session.
"""

from __future__ import annotations

from typing import TypeAlias, final

import msgspec

from farandole.control.message import Message


@final
class PoolHello(Message, frozen=True):
    """I am a process of the pool, and free; ``version`` is Farandole's here."""

    host: str
    pid: int
    version: str


@final
class TrialOrder(Message, frozen=True):
    """Join trial ``number`` as worker ``worker_id``, and leave it when it is over for you.

    ``call`` is its function, pickled. It trains until ``epochs``, goes on from the checkpoint in ``folder`` if there is
    one, and writes one at each of the ``levels``; what it prints goes to the file ``output``. ``most`` is the largest
    number of workers that it may have.
    """

    worker_id: int
    number: int
    parameters: dict[str, bool | int | float | str]
    seed: int
    epochs: int
    levels: list[int]
    folder: str
    output: str
    most: int
    call: bytes


@final
class TrialReport(Message, frozen=True):
    """My trial's value after ``epoch``: I am its rank 0, and wait for your ``TrialVerdict``.

    ``metrics`` are other numbers by name.
    Its gradient noise scale is ``noise_high`` at most, where a worker takes ``batch`` in a step, both in samples; a
    ``batch`` of 0: that was not measured.
    """

    worker_id: int
    epoch: int
    value: float
    noise_high: float = 0.0
    batch: float = 0.0
    metrics: dict[str, float] = msgspec.field(default_factory=dict)


@final
class TrialVerdict(Message, frozen=True):
    """Go on with the trial, or leave it after this epoch, all of you: it pauses, is complete, or was stopped.

    ``keeps``: write its state first, as it is to go on from here, and not from its last rung.
    """

    worker_id: int
    epoch: int
    goes_on: bool
    reason: str
    keeps: bool = False


@final
class TrialLeft(Message, frozen=True):
    """I have left the trial and am free. I was rank ``rank`` (-1: not yet a member).

    ``end`` says how: "returned" (with a ``value``, if the function returned a number), "ended" by a verdict,
    "dismissed" as the trial got fewer workers, "lost" as others had died, or SIGTERM had come, or
    "raised", with ``text`` for people.
    """

    worker_id: int
    rank: int
    end: str
    value: float | None = None
    text: str = ""


@final
class PoolRetire(Message, frozen=True):
    """The search is over: end."""


@final
class PoolHostView(msgspec.Struct, frozen=True):
    """One host of a search's pool: its workers, and the trials that have some; one that ``leaves`` ends soon."""

    host: str
    workers: int
    trials: list[int]
    leaves: bool = False


@final
class PoolView(Message, frozen=True):
    """State of a search that has been asked with a ``RunQuestion``: its hosts, and its trials in a line."""

    hosts: list[PoolHostView]
    trials: str


SearchMessage: TypeAlias = PoolView | PoolHello | TrialOrder | TrialReport | TrialVerdict | TrialLeft | PoolRetire
