"""Formation of generations: the abstract class that decides who belongs to the next one, and its possible actions.

    formation.hello(b"7f3a", hello, now)
    formation.decide(now)              # None: one is missing. Then Formed(...), or Refused(...) with the reason

A job of a fixed size forms by ``static_formation``, an elastic one as its membership decides (``farandole.elastic``).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TypeAlias, final

from farandole.control.exits import GenerationEnded, WorkerExited
from farandole.control.message import Message
from farandole.control.messages import Hello, Refuse, Welcome
from farandole.runtime.coordination.process_groups import fitting
from farandole.runtime.coordination.rank_names import by_saying
from farandole.runtime.coordination.worker_registry import WorkerRegistry

Choose: TypeAlias = Callable[[Sequence[str], Sequence[Sequence[str]]], tuple[str, str]]
"""From hosts and usable engines, by rank, to an engine and the reason; ``FarandoleError`` where none fits."""


@final
@dataclass(frozen=True, slots=True)
class Member:
    """A worker by the identity its sockets share, and what it said of itself."""

    uid: bytes
    hello: Hello

    @property
    def name(self) -> str:
        """Name in texts of a worker that has no rank yet."""
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
    """Action: tell workers that they may not start, and why; ``orderly`` if nothing is wrong with them."""

    members: tuple[Member, ...]
    reason: str
    orderly: bool = False

    @property
    def answer(self) -> Message:
        """Message for these workers."""
        return Refuse(self.reason, self.orderly)


@final
@dataclass(frozen=True, slots=True)
class Deferred:
    """Action: let a worker load its model, alone, and come again; it might be ``rank`` of those on ``hosts`` then."""

    members: tuple[Member]
    rank: int
    hosts: tuple[str, ...]
    engine: str
    reason: str

    @property
    def answer(self) -> Message:
        """Message for this worker: it is welcome in generation 0, which is its own."""
        return Welcome(0, self.rank, list(self.hosts), self.engine, self.reason)


@final
@dataclass(frozen=True, slots=True)
class Due:
    """Action: ask the members to end their generation when their state allows it, so that others can come or go."""

    reason: str


@final
@dataclass(frozen=True, slots=True)
class EndNow:
    """Action: end the generation now."""

    reason: str


@final
@dataclass(frozen=True, slots=True)
class WaitInInit:
    """Wait of some ``members`` for the next generation; ``who`` waits for ``whom``, in words."""

    since_s: float
    members: tuple[Member, ...]
    who: str
    whom: str


Decision: TypeAlias = Formed | Refused | Deferred | Due | EndNow


class Formation(ABC):
    """Decides, from news of workers that come and go, which of them form a generation."""

    def __init__(self) -> None:
        self.registry = WorkerRegistry()
        """Which process has which ``worker_id``; another process that asks for the same one is turned away."""

    @abstractmethod
    def started(self, worker_id: int, description: str) -> None:
        """Note that the worker of ``worker_id`` runs, for texts that say where a missing one is."""

    @abstractmethod
    def turn_away(self, uid: bytes, hello: Hello) -> str:
        """Reason why a process can be none of the job's workers, which a later action tells it; "" if it may be one."""

    @abstractmethod
    def hello(self, uid: bytes, hello: Hello, now: float) -> None:
        """Take in a worker that has called ``init``."""

    @abstractmethod
    def worker_exited(self, event: WorkerExited) -> None:
        """Take in the end of a worker's process."""

    @abstractmethod
    def left(self, worker_id: int, ending: bool, told: bool) -> None:
        """Take in that a member has called ``shutdown``, has failed and is ``ending``, or was ``told`` to end."""

    @abstractmethod
    def answered(self, worker_id: int) -> None:
        """Take in a sign of life of a member of an ended generation: it does not know yet, or has no time yet."""

    @abstractmethod
    def generation_ended(self, event: GenerationEnded) -> None:
        """Take in that a generation has ended for all its members."""

    @abstractmethod
    def longest_step(self, worker_id: int, step_s: float) -> None:
        """Take in the duration of the longest recent step of one worker."""

    @abstractmethod
    def stalled(self, worker_ids: Collection[int], reason: str) -> bool:
        """Give up workers that others waited for too long; True if they will be ended and the others go on."""

    @abstractmethod
    def waits(self) -> WaitInInit | None:
        """The wait of workers for the next generation; ``None`` if none waits."""

    @property
    @abstractmethod
    def deadline_s(self) -> float | None:
        """Time at which ``decide`` may have something to do although no message has come."""

    @abstractmethod
    def decide(self, now: float) -> Decision | None:
        """Next action that is due. Call it until it returns ``None``."""


@final
class Roster:
    """Index of workers by ``worker_id``, in a job for which ``expected`` processes were started.

    The process number does not decide: the worker may be a child of the process that was started (a shell around it).
    Only where fewer than were started have agreed to be the job (``init(comm=...)``) do they number themselves anew,
    and are found by their process numbers.
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
        """Index of the hello of the worker that was started for ``worker_id`` as process ``pid``; ``None`` without."""
        return self._by_worker_id.get(worker_id, self._by_pid.get(pid))


def disagreement(members: Sequence[Member]) -> str:
    """Reason why these workers cannot be one job, with what each said; "" if they can."""
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
