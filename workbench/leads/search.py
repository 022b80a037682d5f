"""Every interleaving of a run with successive leaders, each state once: ``python -m workbench.leads.search``.

>>> found = search(LeadSetup(own=1, lent=1, steps=1))
>>> found.fault, found.ends > 0
('', True)

From every state with a living lent worker of the last generation, some path must lead to the last step.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from typing import NamedTuple, final

from workbench.leads.world import LeadSetup, LeadWorld, Move

SMALL = {
    "one worker and a lent one": LeadSetup(own=1, lent=1, steps=1),
    "one worker and a lent one, two steps": LeadSetup(own=1, lent=1, steps=2, entries=4),
    "one worker and a lent one, one dies": LeadSetup(own=1, lent=1, steps=1, deaths=1, entries=4),
    "two lent ones": LeadSetup(own=0, lent=2, steps=1, entries=4),
    "one worker and a lent one, three leads": LeadSetup(own=1, lent=1, leads=3, steps=1, entries=4),
}
LARGE = {
    "one worker and a lent one, two steps": LeadSetup(own=1, lent=1),
    "two lent ones, two steps": LeadSetup(own=0, lent=2),
    "one worker and two lent ones": LeadSetup(own=1, lent=2, steps=1, entries=4),
    "two workers and a lent one": LeadSetup(own=2, lent=1, steps=1, entries=4),
    "one worker and a lent one, three leads": LeadSetup(own=1, lent=1, leads=3, steps=1),
    "one worker and a lent one, one dies": LeadSetup(own=1, lent=1, steps=1, deaths=1),
}
TRIES = 3
"""Log entries within which a run must go on if it can: of a leader, of a generation that fails, and of another."""


@final
class LeadSearch(NamedTuple):
    """Result of a search. ``fault`` is the first broken invariant, with the shortest path to it."""

    states: int
    transitions: int
    ends: int
    fault: str = ""


def search(setup: LeadSetup, most: int = 2_000_000) -> LeadSearch:
    """Visit all states; stops at the first fault."""
    begin = LeadWorld.of(setup)
    numbers: dict[LeadWorld, int] = {begin: 0}
    ways: list[tuple[int, Move]] = [(-1, ("begin", 0))]
    before: list[list[int]] = [[]]
    waiting = deque([begin])
    transitions = 0
    while waiting:
        world = waiting.popleft()
        number = numbers[world]
        for move in world.moves():
            following = world.after(move)
            if len(following.log) > setup.entries:
                continue
            transitions += 1
            if following not in numbers:
                numbers[following] = len(ways)
                ways.append((number, move))
                before.append([])
                waiting.append(following)
                if following.fault:
                    return LeadSearch(len(ways), transitions, 0, _tell(following.fault, ways, numbers[following]))
            before[numbers[following]].append(number)
        assert len(ways) <= most, f"more than {most} states: this search is too large"
    ends = [number for world, number in numbers.items() if is_end(world)]
    stuck = _stuck(numbers, before, ends, setup.entries)
    fault = "" if stuck is None else _tell("no way leads on from here", ways, stuck)
    return LeadSearch(len(ways), transitions, len(ends), fault)


def is_end(world: LeadWorld) -> bool:
    """True once a worker has applied the last step."""
    return any(rank.step == world.setup.steps for rank in world.ranks)


def is_hopeful(world: LeadWorld) -> bool:
    """True if a worker lives with which the last leader may go on."""
    lead = max(range(len(world.leads)), key=lambda number: world.leads[number].epoch)
    last = world.log[world.last].members if world.last >= 0 else range(len(world.ranks))
    alive = [world.ranks[worker] for worker in world.leads[lead].wishes or last if not world.ranks[worker].is_dead]
    return any((rank.is_lent or rank.lead == lead) and (rank.holds or not world.begun) for rank in alive)


def _stuck(numbers: dict[LeadWorld, int], before: list[list[int]], ends: list[int], entries: int) -> int | None:
    """State from which no path leads to the end, although there is hope, and room in the log for another try."""
    seen, waiting = set(ends), deque(ends)
    while waiting:
        for number in before[waiting.popleft()]:
            if number not in seen:
                seen.add(number)
                waiting.append(number)
    stuck = (
        number
        for world, number in numbers.items()
        if number not in seen and len(world.log) + TRIES <= entries and is_hopeful(world)
    )
    return next(stuck, None)


def _tell(fault: str, ways: list[tuple[int, Move]], number: int) -> str:
    """The fault, with the path to it."""
    moves: list[str] = []
    while number > 0:
        number, (kind, who) = ways[number]
        moves.append(f"{kind} {who}")
    return f"{fault}; the way there: {', '.join(reversed(moves))}"


def main() -> int:
    """Run all searches; 1 if one has found a fault."""
    failed = 0
    for name, setup in (*SMALL.items(), *LARGE.items()):
        begin_s = time.monotonic()
        found = search(setup, most=10_000_000)
        took_s = time.monotonic() - begin_s
        print(f"| {name} | {found.states:,} | {found.transitions:,} | {found.ends:,} | {took_s:.0f} s |", flush=True)
        if found.fault:
            failed = 1
            print(found.fault)
    return failed


if __name__ == "__main__":
    sys.exit(main())
