"""Every interleaving of a small job: all orders of messages, threads and ends, each state once.

>>> from workbench.peers.program import of
>>> found = search(PeerSetup((of("a"), of("a")), warm=of("a a")))
>>> found.fault, found.ends > 0
('', True)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from typing import NamedTuple, final

from workbench.peers import invariants
from workbench.peers.book import ControllerPage, PeerStates, RankPage
from workbench.peers.world import PeerMove, PeerSetup, PeerWorld


@final
class PeerSearch(NamedTuple):
    """Result of a search. ``fault`` is the first broken invariant, with the shortest path to it."""

    states: int
    transitions: int
    ends: int
    outcomes: frozenset[object]
    fault: str = ""


def key_of(world: PeerWorld) -> Hashable:
    """Key of a world: equal for worlds in the same state."""
    controller = world.controller
    assert isinstance(controller, ControllerPage)
    return (
        controller.number,
        tuple([machine.number for machine in world.ranks if isinstance(machine, RankPage)]),
        tuple(world.wires.values()),
        tuple(world.ups),
        tuple(world.downs.values()),
        tuple(sorted((where, tuple(sorted(came))) for where, came in world.met.items())),
        tuple(world.generations),
        tuple(world.waits),
        world.dead,
        world.kills,
    )


def warm_up(world: PeerWorld) -> None:
    """Bring all ranks to the end of the warm-up, always by the same order of events."""
    end = len(world.setup.warm)
    while actions := [
        action
        for action in world.enabled()
        if action.kind not in ("kill", "expire") and (action.kind != "act" or world.ranks[action.rank].view.at < end)
    ]:
        world.do(actions[0])


def search(setup: PeerSetup, most: int = 2_000_000) -> PeerSearch:
    """Visit all reachable states; stops at the first fault."""
    begin = PeerWorld(setup, PeerStates())
    warm_up(begin)
    numbers = {key_of(begin): 0}
    ways: list[tuple[int, PeerMove]] = [(-1, PeerMove("begin"))]
    waiting = deque([(0, begin)])
    transitions = ends = 0
    outcomes: set[object] = set()
    while waiting:
        number, world = waiting.popleft()
        actions = world.enabled()
        if not actions:
            ends += 1
            outcomes.update(outcome for machine in world.ranks for *_, outcome in machine.view.outcomes)
            if fault := invariants.fault(world):
                return PeerSearch(len(ways), transitions, ends, frozenset(outcomes), tell(fault, ways, number))
        for action in actions:
            transitions += 1
            following = world.copy()
            try:
                following.do(action)
            except (AssertionError, KeyError) as error:
                fault = tell(f"{type(error).__name__}: {error}", [*ways, (number, action)], len(ways))
                return PeerSearch(len(ways), transitions, ends, frozenset(outcomes), fault)
            key = key_of(following)
            if key not in numbers:
                numbers[key] = len(ways)
                waiting.append((len(ways), following))
                ways.append((number, action))
        assert len(ways) <= most, f"more than {most} states: this search is too large"
    return PeerSearch(len(ways), transitions, ends, frozenset(outcomes))


def tell(fault: str, ways: list[tuple[int, PeerMove]], number: int) -> str:
    """Describe a fault and the path to it."""
    steps: list[str] = []
    while number > 0:
        number, action = ways[number]
        steps.append(" ".join(str(each) for each in action if each not in (-1, None)))
    return f"{fault}\n" + "\n".join(f"{count:4}  {step}" for count, step in enumerate(reversed(steps), 1))
