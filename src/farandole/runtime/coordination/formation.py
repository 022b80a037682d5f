"""Formation of generations: the abstract class that decides which workers belong to the next one, and its actions.

    formation.hello(b"7f3a", hello, now)
    formation.decide(now)              # None: a worker is missing. Later Formed(...), or Refused(...) with the reason

Jobs of fixed size use ``static_formation``; in an elastic job the membership decides (``farandole.elastic``).

Registry of workers: the process of each ``worker_id``, so that no other process takes that of a live worker.

    registry = WorkerRegistry()
    registry.objection(hello)                  # "" if the worker_id is free; otherwise the reason for a refusal
    registry.enter(uid, hello)
    registry.free_worker_id(worker_id=1)       # the worker has left, or has exited

Environment variables are inherited: any child of a worker can send ``Hello`` with its parent's ``worker_id``. Without
any I/O, except for the check whether a worker is connected.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias, final

from farandole.control.exits import GenerationEnded, WorkerExited
from farandole.control.message import Message
from farandole.control.messages import Hello, Refuse, Welcome
from farandole.runtime.coordination.downlink import CONTROL
from farandole.runtime.coordination.forked_children import GUARD
from farandole.runtime.coordination.process_groups import fitting
from farandole.runtime.coordination.rank_names import by_saying


class _Occupant(NamedTuple):
    uid: bytes
    hello: Hello


@final
class WorkerRegistry:
    """Workers of one controller, which sets the check for connected workers: by default all are, always."""

    def __init__(self) -> None:
        self.is_connected: Callable[[bytes], bool] = lambda _: True
        """True if the socket with this identity, of a worker without a relay, is still connected."""
        self._is_relayed: Callable[[bytes], bool] = lambda _: False
        self._by_worker_id: dict[tuple[int, int], _Occupant] = {}  # by size of the job, and worker_id in it

    def below(self, is_relayed: Callable[[bytes], bool]) -> WorkerRegistry:
        """Set the predicate that returns whether a worker, by the identity prefix of its sockets, uses a relay."""
        self._is_relayed = is_relayed
        return self

    def objection(self, hello: Hello) -> str:
        """Reason why a process cannot have its ``worker_id``; "" if it can."""
        occupant = self._by_worker_id.get((hello.expected, hello.worker_id))
        if occupant is None or occupant.hello.pid == hello.pid or not self._is_there(occupant.uid):
            return ""
        where, other = f"rank {hello.worker_id} on {occupant.hello.host}", occupant.hello.pid
        return (
            f"{where} is process {other}, which has not left the job, and process {hello.pid} on {hello.host} says "
            f"that it is rank {hello.worker_id}, too. {GUARD}. Or is the job started twice with one controller?"
        )

    def enter(self, uid: bytes, hello: Hello) -> None:
        """Register the process of a ``worker_id``."""
        self._by_worker_id[hello.expected, hello.worker_id] = _Occupant(uid, hello)

    def free_worker_id(self, worker_id: int) -> None:
        """Free ``worker_id``."""
        for known in [known for known in self._by_worker_id if known[1] == worker_id]:
            del self._by_worker_id[known]

    def _is_there(self, uid: bytes) -> bool:
        """True if a worker is connected, or is behind a relay, where its connection is not visible.

        Not every exit is reported: for example, a process that a wrapper shell started may exit unnoticed.
        """
        return self._is_relayed(uid) or self.is_connected(uid + CONTROL)


Choose: TypeAlias = Callable[[Sequence[str], Sequence[Sequence[str]]], tuple[str, str]]
"""Maps hosts and usable engines, by rank, to an engine and the reason; raises ``FarandoleError`` if none fits."""


@final
@dataclass(frozen=True, slots=True)
class Member:
    """A worker: the identity prefix of its sockets, and its ``Hello``."""

    uid: bytes
    hello: Hello

    @property
    def name(self) -> str:
        """Name in texts, also for a worker that has no rank yet."""
        return f"rank {self.hello.worker_id} on {self.hello.host}"


@final
@dataclass(frozen=True, slots=True)
class Formed:
    """Action: form the next generation, with its members by rank, its engine and the reason for that engine."""

    generation: int
    members: tuple[Member, ...]
    engine: str
    reason: str

    @property
    def hosts(self) -> list[str]:
        """Host of each rank."""
        return [member.hello.host for member in self.members]

    @property
    def static_sets(self) -> list[list[int]]:
        """Process sets passed to ``init``, the same on every rank, that fit a job of this size."""
        return fitting(self.members[0].hello.process_sets, len(self.members))


@final
@dataclass(frozen=True, slots=True)
class Refused:
    """Action: refuse workers and tell them why; ``orderly`` if nothing is wrong with them."""

    members: tuple[Member, ...]
    reason: str
    orderly: bool = False

    @property
    def answer(self) -> Message:
        """Message to these workers."""
        return Refuse(self.reason, self.orderly)


@final
@dataclass(frozen=True, slots=True)
class Deferred:
    """Action: let a worker build its model alone and send ``Hello`` again; ``rank`` and ``hosts`` are provisional."""

    members: tuple[Member]
    rank: int
    hosts: tuple[str, ...]
    engine: str
    reason: str

    @property
    def answer(self) -> Message:
        """Message to this worker: a ``Welcome`` to a generation 0 of its own."""
        return Welcome(0, self.rank, list(self.hosts), self.engine, self.reason)


@final
@dataclass(frozen=True, slots=True)
class Due:
    """Action: ask the members to end their generation at their next commit, so that workers can join or leave."""

    reason: str


@final
@dataclass(frozen=True, slots=True)
class EndNow:
    """Action: end the generation now."""

    reason: str


@final
@dataclass(frozen=True, slots=True)
class WaitInInit:
    """Wait of ``members`` for the next generation; ``who`` (texts) waits for ``whom``."""

    since_s: float
    members: tuple[Member, ...]
    who: str
    whom: str


Decision: TypeAlias = Formed | Refused | Deferred | Due | EndNow


class Formation(ABC):
    """Decides, from events of workers, which of them form a generation."""

    def __init__(self) -> None:
        self.registry = WorkerRegistry()
        """Process of each ``worker_id``; any other process with the same ``worker_id`` is refused."""

    @abstractmethod
    def started(self, worker_id: int, description: str) -> None:
        """Record that the worker of ``worker_id`` runs, for texts that describe a missing worker."""

    @abstractmethod
    def turn_away(self, uid: bytes, hello: Hello) -> str:
        """Reason why a process cannot be a worker of the job, sent to it by a later action; "" if it can."""

    @abstractmethod
    def hello(self, uid: bytes, hello: Hello, now: float) -> None:
        """Process the ``Hello`` of a worker, which has called ``init``."""

    @abstractmethod
    def worker_exited(self, event: WorkerExited) -> None:
        """Process the exit of a worker."""

    @abstractmethod
    def left(self, worker_id: int, ending: bool, told: bool) -> None:
        """Process a member's ``Leave``: after ``shutdown()``, ``ending`` after a failure, or ``told`` to exit."""

    @abstractmethod
    def answered(self, worker_id: int) -> None:
        """Process a heartbeat of a member of an ended generation, which does not know of the end or is still busy."""

    @abstractmethod
    def generation_ended(self, event: GenerationEnded) -> None:
        """Process the end of a generation for all its members."""

    @abstractmethod
    def longest_step(self, worker_id: int, step_s: float) -> None:
        """Process the duration of the longest recent step of one worker."""

    @abstractmethod
    def stalled(self, worker_ids: Collection[int], reason: str) -> bool:
        """Give up workers that others waited for too long; True if they are killed and the others continue."""

    @abstractmethod
    def waits(self) -> WaitInInit | None:
        """Wait of workers for the next generation; ``None`` if no worker waits."""

    @property
    @abstractmethod
    def deadline_s(self) -> float | None:
        """Time at which ``decide`` may have an action without a new message."""

    @abstractmethod
    def decide(self, now: float) -> Decision | None:
        """Return the next due action. Call it until it returns ``None``."""


@final
class Roster:
    """Index of workers by ``worker_id``, in a job for which ``expected`` processes were started.

    The process ID is not the key: the worker may be a child of the started process (a wrapper shell). But if only some
    of the started processes form the job (``init(comm=...)``), they renumber themselves and are found by process ID.
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
        """Index of the ``Hello`` of the worker started for ``worker_id`` as process ``pid``; ``None`` if missing."""
        return self._by_worker_id.get(worker_id, self._by_pid.get(pid))


def disagreement(members: Sequence[Member]) -> str:
    """Reason why these workers cannot form one job, with the value of each; "" if they can."""
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
