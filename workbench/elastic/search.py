"""Every interleaving of a small job: all orders of messages, steps and faults, each state once.

    >>> found = search(JobSetup({"a": 2}, Policy(hang_timeout_s=5.0), budget=(("kill", 1),)))
    >>> found.fault, found.ends[0] > 0
    ('', True)

From every state that was found, some path must lead to the end of the job.
"""

from __future__ import annotations

import copy
import dataclasses
from collections import Counter, deque
from collections.abc import Hashable, Iterator
from enum import Enum
from typing import Any, NamedTuple, final

import msgspec

from farandole.elastic.membership import job_events
from farandole.elastic.membership.actions import Decision
from farandole.elastic.membership.membership import Membership
from farandole.elastic.membership.policy import Policy
from workbench.elastic import invariants
from workbench.elastic.job import do
from workbench.elastic.world import JobMove, JobSetup, JobWorld

SUSPENDED = -1
"""Counted among the ends: all members hang. No member can miss another, and the job waits until they go on."""


@final
class JobSearch(NamedTuple):
    """Result of a search: states, the steps between them, and counts of the job's exit statuses.

    ``fault`` is the first broken invariant, with the shortest path to it.
    """

    states: int
    transitions: int
    ends: Counter[int]
    fault: str = ""


@final
class MembershipStates:
    """All states that a membership has been in, each once, with the successor for each event."""

    def __init__(self, policy: Policy) -> None:
        self.memberships: list[Membership] = []
        self._pages: dict[Hashable, Page] = {}
        self.known: dict[Hashable, tuple[Page, list[Decision]]] = {}
        self.first = self.page(Membership(policy))

    def page(self, membership: Membership) -> Page:
        """The page of this state; a new page for a new state."""
        key = freeze(membership)
        if key not in self._pages:
            self._pages[key] = Page(self, len(self.memberships), membership.deadline_s)
            self.memberships.append(membership)
        return self._pages[key]


@final
class Page:
    """A state of a membership; a ``SimulatedController`` of the model."""

    def __init__(self, book: MembershipStates, number: int, deadline_s: float | None) -> None:
        self._book, self.number, self.deadline_s = book, number, deadline_s

    def anew(self) -> Page:
        """See ``SimulatedController``."""
        return self._book.first

    def turn(self, now: float, event: job_events.JobEvent | None) -> tuple[Page, list[Decision]]:
        """See ``Membership``."""
        key = (self.number, now, event if event is None or not isinstance(event, job_events.HostsFound) else str(event))
        if key not in self._book.known:
            membership = copy.deepcopy(self._book.memberships[self.number])
            if event is not None:
                membership.on(now, event)
            decisions = membership.decide(now)
            self._book.known[key] = self._book.page(membership), decisions
        return self._book.known[key]


def freeze(value: Any) -> Hashable:
    """Make a value hashable, whatever its type."""
    if isinstance(value, dict):
        return tuple((freeze(key), freeze(each)) for key, each in value.items())
    if isinstance(value, list | tuple):
        return tuple(freeze(each) for each in value)
    if isinstance(value, set):
        return tuple(sorted(value))
    if isinstance(value, str | int | float | Enum | None):
        return value
    if isinstance(value, msgspec.Struct):
        return str(value)
    if dataclasses.is_dataclass(value):
        return tuple(freeze(getattr(value, each.name)) for each in dataclasses.fields(value))
    return freeze(vars(value))


def key_of(world: JobWorld) -> Hashable:
    """Key of a world: two worlds with the same key have the same future, and count as one."""
    page = world.controller
    assert isinstance(page, Page)
    queues = (world.up, world.news, world.down)
    return (
        page.number,
        world.now,
        tuple(world.workers.values()),
        tuple(tuple(sorted((worker_id, queue) for worker_id, queue in each.items() if queue)) for each in queues),
        tuple(sorted((point, tuple(sorted(said))) for point, said in world.met.items())),
        str(world.host_news),
        world.gone,
        tuple(world.budget.values()),
        (world.planned, world.generation, world.best, world.status),
    )


def successors(world: JobWorld) -> Iterator[tuple[JobMove, JobWorld]]:
    """Every possible next action, and the world after it. Time passes when nothing else can happen by itself."""
    actions = world.enabled()
    if not actions and world.status is None and world.controller.deadline_s is not None:
        actions = [JobMove("tick")]
    for action in actions + world.fault_events():
        following = world.copy()
        do(following, action)
        yield action, following


def search(setup: JobSetup, most: int = 1_000_000) -> JobSearch:
    """Visit every reachable state; stops at the first fault."""
    begin = JobWorld(setup, MembershipStates(setup.policy).first, invariants)
    numbers = {key_of(begin): 0}
    reached_from: list[list[int]] = [[]]
    ways: list[tuple[int, JobMove]] = [(-1, JobMove("begin"))]
    ends: Counter[int] = Counter()
    ended: list[int] = []
    stuck: list[int] = []
    waiting = deque([(0, begin)])
    transitions = 0
    while waiting:
        number, world = waiting.popleft()  # the oldest: breadth first, so that the path to a fault is a shortest one
        if world.status is not None:
            ends[world.status] += 1
            ended.append(number)
        has_next = False
        for action, following in successors(world):
            has_next, transitions = True, transitions + 1
            key = key_of(following)
            if key not in numbers:
                numbers[key] = len(ways)
                ways.append((number, action))
                reached_from.append([])
                waiting.append((numbers[key], following))
                if following.faults:
                    return JobSearch(len(ways), transitions, ends, _tell(following.faults[0], numbers[key], ways))
            reached_from[numbers[key]].append(number)
        if not has_next and world.status is None:
            (ended if world.is_suspended else stuck).append(number)
            ends[SUSPENDED] += world.is_suspended
        assert len(ways) <= most, f"more than {most} states: this search is too large"
    astray = _without_end(reached_from, ended)
    fault = _tell("the job goes on for ever, or stops without an end", (stuck + astray)[0], ways) if astray else ""
    return JobSearch(len(ways), transitions, ends, fault)


def _without_end(reached_from: list[list[int]], ended: list[int]) -> list[int]:
    """The states from which no path leads to the end of the job."""
    good = bytearray(len(reached_from))
    waiting = list(ended)
    while waiting:
        number = waiting.pop()
        if not good[number]:
            good[number] = 1
            waiting += reached_from[number]
    return [number for number, is_good in enumerate(good) if not is_good]


def _tell(fault: str, number: int, ways: list[tuple[int, JobMove]]) -> str:
    """The fault and the path to it."""
    steps: list[str] = []
    while number > 0:
        number, action = ways[number]
        steps.append(f"{action.kind} {action.who}" if action.who != -1 else action.kind)
    return f"{fault}\n" + "\n".join(f"{count:4}  {step}" for count, step in enumerate(reversed(steps), 1))
