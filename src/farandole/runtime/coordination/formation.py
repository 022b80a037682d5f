"""Who belongs to the next generation, and when it is complete: the words of that, and the abstract class.

    formation.hello(b"7f3a", hello, now)
    formation.decide(now)              # None: one is missing. Then Formed(...), or Refused(...) with the reason

A job of a fixed size forms by ``static_formation``, an elastic one as its membership decides (``farandole.elastic``).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TypeAlias, final

from farandole.control.message import Message
from farandole.control.messages import Hello, Refuse, Welcome
from farandole.runtime.coordination.occupants import Occupants
from farandole.runtime.coordination.process_groups import fitting
from farandole.runtime.coordination.rank_names import by_saying

Choose: TypeAlias = Callable[[Sequence[str], Sequence[Sequence[str]]], tuple[str, str]]
"""Hosts by rank and engines usable by rank to the engine and why; raises ``FarandoleError`` where none fits."""


@final
@dataclass(frozen=True, slots=True)
class Member:
    """A worker by the identity its sockets share, and what it said of itself."""

    uid: bytes
    hello: Hello

    @property
    def name(self) -> str:
        """How texts call it before it has a rank."""
        return f"rank {self.hello.worker_id} on {self.hello.host}"


@final
@dataclass(frozen=True, slots=True)
class Formed:
    """The next generation: its members by rank, its engine and why that one."""

    generation: int
    members: tuple[Member, ...]
    engine: str
    reason: str

    @property
    def hosts(self) -> list[str]:
        """The host of each rank."""
        return [member.hello.host for member in self.members]

    @property
    def static_sets(self) -> list[list[int]]:
        """The process sets given to ``init``, the same on every rank, as far as a job of this size has them."""
        return fitting(self.members[0].hello.process_sets, len(self.members))


@final
@dataclass(frozen=True, slots=True)
class Refused:
    """These may not start, and why; ``orderly`` if nothing is wrong with them."""

    members: tuple[Member, ...]
    reason: str
    orderly: bool = False

    @property
    def answer(self) -> Message:
        """What they are told."""
        return Refuse(self.reason, self.orderly)


@final
@dataclass(frozen=True, slots=True)
class Deferred:
    """This one may load its model, alone, and then come again; it might be ``rank`` of those on ``hosts`` then."""

    members: tuple[Member]
    rank: int
    hosts: tuple[str, ...]
    engine: str
    reason: str

    @property
    def answer(self) -> Message:
        """What it is told."""
        return Welcome(0, self.rank, list(self.hosts), self.engine, self.reason)


@final
@dataclass(frozen=True, slots=True)
class Due:
    """The members are to end their generation when their state allows it, so that others can come or go."""

    reason: str


@final
@dataclass(frozen=True, slots=True)
class EndNow:
    """The generation is to end now."""

    reason: str


Decision: TypeAlias = Formed | Refused | Deferred | Due | EndNow


class Formation(ABC):
    """Hears who is there and who is not; says who forms a generation with whom."""

    def __init__(self) -> None:
        self.occupants = Occupants()
        """Who has which place; whoever wants it as well is turned away."""

    @abstractmethod
    def started(self, worker_id: int, description: str) -> None:
        """The worker of ``worker_id`` runs; texts that miss it can say where."""

    @abstractmethod
    def turn_away(self, uid: bytes, hello: Hello) -> str:
        """Why this process can be none of the job's workers; a decision to come tells it. "" if it may be one."""

    @abstractmethod
    def hello(self, uid: bytes, hello: Hello, now: float) -> None:
        """A worker has called ``init``."""

    @abstractmethod
    def gone(self, worker_id: int, pid: int, code: int, description: str) -> None:
        """The worker of ``worker_id`` has ended, with this ``code`` as ``waitpid`` gives it."""

    @abstractmethod
    def left(self, worker_id: int, ending: bool) -> None:
        """A member has called ``shutdown``, and nothing is wrong with that; or has failed, and its process ends."""

    @abstractmethod
    def answered(self, worker_id: int) -> None:
        """A member is heard of whose generation is over: it does not know yet, or has no time yet to form another."""

    @abstractmethod
    def over(self, generation: int, reason: str) -> None:
        """This generation has ended for all."""

    @abstractmethod
    def paced(self, step_s: float) -> None:
        """The longest of the recent steps took so long."""

    @abstractmethod
    def stalled(self, worker_ids: Collection[int], reason: str) -> bool:
        """Others have waited too long for these workers: true if they will be ended, and the others go on."""

    @property
    @abstractmethod
    def deadline_s(self) -> float | None:
        """When ``decide`` may have something to say that no message brings."""

    @abstractmethod
    def decide(self, now: float) -> Decision | None:
        """The next decision that is due. Call it until it returns ``None``."""


@final
class Roster:
    """Finds workers among many, in a job that ``expected`` were started for.

    The place decides: the process may be a child of the one that was started (a shell around it). Only where fewer
    than were started have agreed to be the job (``init(comm=...)``) do they count their places anew.
    """

    def __init__(self, hellos: Sequence[Hello], expected: int) -> None:
        self._by_worker_id: dict[int, int] = {}
        self._by_pid: dict[int, int] = {}
        for index, hello in enumerate(hellos):
            if hello.expected == expected:
                self._by_worker_id.setdefault(hello.worker_id, index)
            else:
                self._by_pid.setdefault(hello.pid, index)

    def find(self, worker_id: int, pid: int) -> int | None:
        """Which of the hellos came from the worker that was started for ``worker_id`` as process ``pid``."""
        return self._by_worker_id.get(worker_id, self._by_pid.get(pid))


def disagreement(members: Sequence[Member]) -> str:
    """What keeps these from being one job, with what each said; "" for nothing."""
    hosts = [member.hello.host for member in members]
    versions = {rank: member.hello.version for rank, member in enumerate(members)}
    if len(set(versions.values())) > 1:
        return f"the ranks run different versions of Farandole: {by_saying(versions, hosts)}"
    sets = {rank: str(member.hello.process_sets) for rank, member in enumerate(members)}
    if len(set(sets.values())) > 1:
        return f"the ranks differ in init(process_sets=...): {by_saying(sets, hosts)}"
    states = {rank: member.hello.state for rank, member in enumerate(members) if member.hello.state}
    if len(set(states.values())) > 1:
        return (
            f"the ranks differ in what they train: {by_saying(states, hosts)}: every worker must run the same script "
            "with the same arguments"
        )
    return ""
