"""Messages between a run that takes leases and those who ask about it, order it, or train in it."""

from __future__ import annotations

from typing import TypeAlias, final

import msgspec

from farandole.control.message import Message

PERSON = b"person-"
"""Prefix of the identity of everybody who asks about a run, or orders it."""

ANSWER_S = 5.0
"""Time for the run folder to let an order be obeyed, and again to have it on the disk: then whoever gave it hears."""


@final
class RunQuestion(Message, frozen=True):
    """Question how the run stands: a ``RunView`` answers."""


@final
class RunOrder(Message, frozen=True):
    """Order of a person, by its ``verb``: ``scale`` to ``number`` workers, ``hold``, ``release`` or ``stop``."""

    verb: str
    number: int = 0


@final
class RunReply(Message, frozen=True):
    """Reply to an order: what becomes of it, or why it is refused."""

    accepted: bool
    text: str


@final
class HostView(msgspec.Struct, frozen=True):
    """One host of a run: the ranks that train there, and of one that is lent the name of the lease and its end."""

    host: str
    ranks: list[int]
    slots: int
    lease: str = ""
    ends_s: float = 0.0


@final
class LeaseView(msgspec.Struct, frozen=True):
    """One lease: the words of ``Lease``."""

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
    """Advice about the number of workers; or, with a ``refusal``, why there is none.

    ``low`` and ``high`` bound the noise scale, ``batch`` is that of one worker, all in samples; ``saves_s`` is how much
    sooner the training would end.
    """

    workers: int = 0
    low: float = 0.0
    high: float = 0.0
    saves_s: float = 0.0
    batch: float = 0.0
    refusal: str = ""


@final
class Progressed(Message, frozen=True):
    """Metrics that the script of rank 0 reports, by name, and its last advice, if it has any.

    ``pause_s`` is what the last planned change of the workers has cost those that stayed, 0 where there was none.
    """

    metrics: dict[str, float]
    advice: AdviceView | None = None
    pause_s: float = 0.0


RunMessage: TypeAlias = RunQuestion | RunOrder | RunReply | RunView | Progressed
