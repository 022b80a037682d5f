"""A lease: one job of a scheduler that lends its nodes to a training.

>>> lease = Lease("812_3", workers=4)
>>> lease.phase
<LeasePhase.HELD: 'held'>
"""

from __future__ import annotations

from enum import Enum
from typing import final

import msgspec


@final
class LeasePhase(Enum):
    """Phases in the life of a lease, in their order; any of them may be followed by ``GONE``."""

    HELD = "held"
    """Submitted, and held by its user: it is started by being released."""
    ASKED = "asked"
    """Its release was ordered, and no look has seen it since."""
    PENDING = "pending"
    """It waits in the queue."""
    STARTING = "starting"
    """It runs, and its agent has not called yet."""
    WARMING = "warming"
    """Its agent has called, and its workers start; the others train on."""
    MEMBER = "member"
    """Its workers train."""
    LEAVING = "leaving"
    """Its workers leave at the next commit, and then its job ends by itself."""
    GONE = "gone"


@final
class Lease(msgspec.Struct, frozen=True):
    """One lease as it is known now.

    ``job`` is the scheduler's name of it, with the index in its array: ``812_3``. ``workers`` is how many it brings, of
    which its ``nodes`` (0: not known yet) have equal shares. ``since_s`` is when its phase began, and ``ends_s`` when
    its job ends at the latest (0: not known), both in seconds since 1970; ``length_s`` is its time limit (0: that of
    the policy), and ``starts_s`` when a pending one is estimated to start (0: nobody knows). ``cause`` says why it is
    gone. A ``guest`` is lent by a person, and of no array of the run. ``drained`` names a node of it that is being
    drained, and says why.
    """

    job: str
    workers: int
    phase: LeasePhase = LeasePhase.HELD
    since_s: float = 0.0
    ends_s: float = 0.0
    nodes: int = 0
    cause: str = ""
    length_s: float = 0.0
    starts_s: float = 0.0
    guest: bool = False
    drained: str = ""
