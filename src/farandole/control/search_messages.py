"""Messages between a hyper-parameter search and the warm workers of its pool.

Each trial is a membership of its own. Its control messages (``Hello``, ``Submit``, ...) travel on the connections of
the worker's session, not here.
"""

from __future__ import annotations

from typing import TypeAlias, final

import msgspec

from farandole.control.message import Message
from farandole.control.run_messages import LeaseView


@final
class PoolHello(Message, frozen=True):
    """A pool worker has connected and is free; ``worker_id`` is its own in the pool, ``version`` that of Farandole."""

    host: str
    pid: int
    version: str
    worker_id: int = -1


@final
class TrialOrder(Message, frozen=True):
    """Order to a pool worker: join trial ``number`` as worker ``worker_id``, and leave it when the trial ends there.

    ``call`` is the pickled function of the trial. The trial trains until ``epochs``, resumes from the checkpoint in
    ``folder`` if there is one, and writes a checkpoint at each of the ``levels``; its output goes to the file
    ``output``. ``most`` is its largest number of workers.
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
    """Value of a trial after ``epoch``, from its rank 0, which waits for the ``TrialVerdict``.

    ``metrics`` are other numbers by name. ``noise_high`` is an upper bound of the gradient noise scale, measured with
    ``batch`` samples per worker and step, both in samples; ``batch`` 0: not measured.
    """

    worker_id: int
    epoch: int
    value: float
    noise_high: float = 0.0
    batch: float = 0.0
    metrics: dict[str, float] = msgspec.field(default_factory=dict)


@final
class TrialVerdict(Message, frozen=True):
    """Order to all ranks of a trial: continue, or leave it after this epoch (paused, complete or stopped).

    ``keeps``: write its state first, because the trial later resumes from here and not from its last rung.
    """

    worker_id: int
    epoch: int
    goes_on: bool
    reason: str
    keeps: bool = False


@final
class TrialLeft(Message, frozen=True):
    """A pool worker has left the trial and is free. It was rank ``rank`` (-1: not yet a member).

    ``end`` says how: "returned" (with a ``value``, if the function returned a number), "ended" (by a verdict),
    "dismissed" (the trial got fewer workers), "lost" (another worker died, or this worker received SIGTERM), or
    "raised", with ``text`` for users.
    """

    worker_id: int
    rank: int
    end: str
    value: float | None = None
    text: str = ""


@final
class PoolRetire(Message, frozen=True):
    """The search is over; the pool worker exits."""


@final
class PoolHostView(msgspec.Struct, frozen=True):
    """One host of a search's pool: its workers and the trials that use them; a host that ``leaves`` ends soon."""

    host: str
    workers: int
    trials: list[int]
    leaves: bool = False


@final
class PoolView(Message, frozen=True):
    """State of a search, in answer to a ``RunQuestion``: its hosts, and a one-line summary of its trials.

    ``leases``: those that it has asked for; ``said``: the last decisions about them.
    """

    hosts: list[PoolHostView]
    trials: str
    leases: list[LeaseView]
    said: list[str]


SearchMessage: TypeAlias = PoolView | PoolHello | TrialOrder | TrialReport | TrialVerdict | TrialLeft | PoolRetire
