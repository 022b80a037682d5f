"""State of the policy of leases, kept from one call to the next.

>>> LeasePlan().goal
0
"""

from __future__ import annotations

from typing import final

import msgspec

from farandole.launch.leases.lease import LeasePhase


@final
class LeaseNote(msgspec.Struct, frozen=True, omit_defaults=True):
    """Notes on one lease.

    ``phase``: the phase at the last call. ``told``: the last action decided for the lease, ``Release``, ``EndLease`` or
    ``CancelPending``, at ``told_s``. ``asked_s``: when its wait in the queue began. ``expiring``: its successor is due
    or exists. ``growth``: it was released for growth, not as a successor. ``joined``: it was a member. ``barred``: a
    user or an administrator holds it. ``limited``: its time limit was set from outside, and the policy does not set it.
    ``spoken``: its long wait was reported. ``minutes``, ``nice``: the values that the policy set.
    """

    phase: LeasePhase | None = None
    told: str = ""
    told_s: float = 0.0
    asked_s: float = 0.0
    expiring: bool = False
    growth: bool = False
    joined: bool = False
    barred: bool = False
    limited: bool = False
    spoken: bool = False
    minutes: int = 0
    nice: int = 0


@final
class LeasePause(msgspec.Struct, frozen=True):
    """Pause after ``times`` failures in a row; ``words``: the scheduler's message or the cause of the last one."""

    times: int
    until_s: float
    words: str = ""


@final
class LeasePlan(msgspec.Struct, omit_defaults=True):
    """Everything that ``decide`` remembers. It returns a new plan, and does not change its argument.

    ``goal``: target number of workers, for which leases are released and ended; ``why``: the reason; ``reached``: the
    most workers since the goal was set. ``grow_*``, ``shrink_*``: since when the advice has agreed, and on which size;
    ``target``: the latest advice. ``grown_s``, ``shrunk_s``: when the last lease was released for growth, or ended to
    shrink; ``changes_s``: changes of size by advice in the last hour. ``waits_s``: the latest waits in the queue, the
    newest last. ``next_s``: when ``decide`` is due even if nothing changes (0: not).
    """

    goal: int = 0
    why: str = ""
    reached: int = 0
    target: int = 0
    ordered: int = -1
    """Number of workers that was ordered; -1: none. ``ordered_why``: the reason, if not a user ordered it."""
    ordered_why: str = ""
    cap: int = 0
    """Largest number of workers by a rule of the user; 0: no rule has fired."""
    nice: int = 0
    held: bool = False
    stopped: bool = False
    frozen_s: float = 0.0
    """No growth before this time, because a user or an administrator cancelled or held a lease."""
    fired: tuple[str, ...] = ()
    advice_s: float = 0.0
    grow_since_s: float = 0.0
    grow_target: int = 0
    shrink_since_s: float = 0.0
    shrink_target: int = 0
    grown_s: float = 0.0
    shrunk_s: float = 0.0
    changes_s: tuple[float, ...] = ()
    failed: int = 0
    """Leases in a row that never became members."""
    pauses: dict[str, LeasePause] = {}
    waits_s: tuple[float, ...] = ()
    arrays: int = 0
    """Number of arrays whose submission was requested."""
    looked_s: float = 0.0
    """Time of the last ``LookAtQueue``."""
    nodes_looked_s: float = 0.0
    """Time of the last ``LookAtNodes``, or the last time at which no lease ran."""
    said: dict[str, str] = {}
    notes: dict[str, LeaseNote] = {}
    next_s: float = 0.0
