"""One atomic step of a modelled job, in any of its parts."""

from __future__ import annotations

from workbench.elastic import fault_events, invariants, protocol
from workbench.elastic.world import JobMove, JobWorld


def do(world: JobWorld, action: JobMove) -> None:
    """Make one step. Its messages to other parts are then under way; broken invariants are in ``JobWorld.faults``."""
    kind, who = action
    if kind == "obey":
        protocol.obey(world, int(who))
    elif kind == "move":
        protocol.move(world, int(who))
    elif kind in ("hear", "report", "report host", "inspect"):
        world.take(kind, who)
    elif kind == "tick":
        world.pass_time()
    else:
        fault_events.happen(world, kind, who)
    world.forget()
    invariants.check(world)
