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
    """Phases of a lease, in order; ``GONE`` may follow any of them."""

    HELD = "held"
    """Submitted, and held by its user: a release lets it start."""
    ASKED = "asked"
    """Its release was ordered; no look at the queue has shown it since."""
    PENDING = "pending"
    """It waits in the queue."""
    STARTING = "starting"
    """Its job runs; its agent has not connected yet."""
    WARMING = "warming"
    """Its agent has connected and its workers start; the other workers train on."""
    MEMBER = "member"
    """Its workers train."""
    LEAVING = "leaving"
    """Its workers leave at the next commit; then its job ends."""
    GONE = "gone"


@final
class Lease(msgspec.Struct, frozen=True):
    """State of one lease, as known now.

    ``job`` is the scheduler's name for it, with the index in its array: ``812_3``. It has ``workers``, divided equally
    among its ``nodes`` (0: not known yet). Its phase began at ``since_s``; its job ends at ``ends_s`` at the latest (0:
    not known), both in seconds since 1970. ``length_s``: its time limit (0: that of the policy); ``starts_s``:
    estimated start of a pending lease (0: unknown); ``cause``: why it is gone. A ``guest`` was lent by a user, and
    belongs to no array of the run. ``drained``: the node of it that is being drained, and why. ``idle``: its
    workers have nothing to do now.
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
    idle: bool = False
