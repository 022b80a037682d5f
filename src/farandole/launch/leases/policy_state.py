"""Memory of the policy of leases from one call to the next.

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

    ``phase`` is that of the last call. ``told`` is the action that was decided last for it, ``Release``, ``EndLease``
    or ``CancelPending``, at ``told_s``; ``asked_s`` is when its wait in the queue began. A lease that is ``expiring``
    has, or is to have, a successor; one of a ``growth`` is none. ``joined`` once it was a member, ``barred`` while
    somebody holds it, ``limited`` once somebody has set its time limit: then nobody here does. ``spoken`` once its
    wait was told. ``minutes`` and ``nice`` are what was set.
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
    """Pause after ``times`` failures in a row, with what was said about the last one."""

    times: int
    until_s: float
    words: str = ""


@final
class LeasePlan(msgspec.Struct, omit_defaults=True):
    """Everything that ``decide`` remembers. It returns a new one, and changes none that it was given.

    ``goal`` is the number of workers that leases are released and ended for, ``why`` it is so, and ``reached`` the
    most that there were of them since. ``grow_*`` and ``shrink_*`` tell since when the advice has agreed, and on what;
    ``target`` is the latest. ``grown_s`` and ``shrunk_s`` are when the last lease was released for a growth, or ended
    for a shrinking; ``changes_s`` are the new sizes by policy in the last hour. ``waits_s`` are the latest waits in
    the queue, the newest last. ``next_s`` is when ``decide`` is due without any news, 0 if it is not.
    """

    goal: int = 0
    why: str = ""
    reached: int = 0
    target: int = 0
    ordered: int = -1
    """Workers that people have ordered; -1: none."""
    cap: int = 0
    """Most workers by a rule of the user; 0: none has fired."""
    nice: int = 0
    held: bool = False
    stopped: bool = False
    frozen_s: float = 0.0
    """No growth before this time: somebody has cancelled or held a lease."""
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
    """Arrays that were asked for."""
    looked_s: float = 0.0
    """Time of the last ``LookAtQueue``."""
    nodes_looked_s: float = 0.0
    """Time of the last ``LookAtNodes``, or at which no lease ran."""
    said: dict[str, str] = {}
    notes: dict[str, LeaseNote] = {}
    next_s: float = 0.0
