"""Invariants of a job in which nothing more can happen."""

from __future__ import annotations

from workbench.peers.rank import OVER
from workbench.peers.world import PeerWorld

ENDED = "AbortError"


def fault(world: PeerWorld) -> str:
    """Describe the broken invariant at the end of a job, or "". ``Rank`` finds a result of another round earlier."""
    if not world.is_over:
        waiting = {rank: machine.view for rank, machine in enumerate(world.ranks) if not machine.view.end}
        return f"no progress: {waiting}"
    decided: dict[tuple[object, ...], object] = {}
    for machine in world.ranks:
        for *what, outcome in machine.view.outcomes:
            if outcome != ENDED and decided.setdefault(tuple(what), outcome) != outcome:
                return f"{what} is {outcome} at one rank and {decided[tuple(what)]} at another"
    nobody_went = world.kills == world.setup.kills and not any(machine.view.early for machine in world.ranks)
    if nobody_went and any(machine.view.end == OVER for machine in world.ranks):
        return "a generation has ended, and nobody has died"
    return ""
