"""Messages between a run that uses leases and its users and workers: questions, orders and progress."""

from __future__ import annotations

from typing import TypeAlias, final

import msgspec

from farandole.control.message import Message

PERSON = b"person-"
"""Prefix of the identity of a user's connection to a run (questions and orders)."""

ANSWER_S = 5.0
"""Time limit for reading the run folder before an order is obeyed, and again for writing it; then the user is told."""


@final
class RunQuestion(Message, frozen=True):
    """Question for the state of the run; ``RunView`` answers it."""


@final
class RunOrder(Message, frozen=True):
    """Order of a user; its ``verb`` is ``scale`` (to ``number`` workers), ``hold``, ``release`` or ``stop``."""

    verb: str
    number: int = 0


@final
class RunReply(Message, frozen=True):
    """Reply to an order: its effect, or the reason for refusing it."""

    accepted: bool
    text: str


@final
class HostView(msgspec.Struct, frozen=True):
    """One host of a run and the ranks that train there; for a leased host also the name and end of the lease."""

    host: str
    ranks: list[int]
    slots: int
    lease: str = ""
    ends_s: float = 0.0


@final
class LeaseView(msgspec.Struct, frozen=True):
    """One lease; the fields are those of ``Lease``."""

    job: str
    phase: str
    workers: int
    since_s: float
    ends_s: float
    cause: str = ""


@final
class RunView(Message, frozen=True):
    """State of a run at ``now_s``, in seconds since 1970; ``said`` are the last decisions about leases, as texts."""

    now_s: float
    began_s: float
    generation: int
    hosts: list[HostView]
    leases: list[LeaseView]
    min_np: int
    max_np: int
    metrics: dict[str, float]
    said: list[str]


@final
class AdviceView(msgspec.Struct, frozen=True):
    """Advice about the number of workers; or, with a ``refusal``, the reason why no advice is possible.

    ``low`` and ``high`` bound the gradient noise scale, ``batch`` is the batch of one worker, all three in samples;
    ``saves_s`` is the training time that the advice saves.
    """

    workers: int = 0
    low: float = 0.0
    high: float = 0.0
    saves_s: float = 0.0
    batch: float = 0.0
    refusal: str = ""


@final
class Progressed(Message, frozen=True):
    """Metrics that the script of rank 0 reports, by name, and the latest advice, if there is any.

    ``pause_s`` is the time that the last planned change of workers cost the remaining workers (0: no change yet).
    """

    metrics: dict[str, float]
    advice: AdviceView | None = None
    pause_s: float = 0.0


RunMessage: TypeAlias = RunQuestion | RunOrder | RunReply | RunView | Progressed
