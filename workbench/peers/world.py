"""World of the model: a job's ranks, its controller, and the ordered messages under way between each two of them.

    world = PeerWorld(setup, machines)
    for action in world.enabled(): ...
    world.do(action)                                    # one atomic step; raises AssertionError if something is broken

The driver chooses the order: ``search`` tries all orders, ``simulation`` draws one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeAlias, final

from workbench.peers.controller import CONTROL, ORDERS, Coordinator, Told
from workbench.peers.program import Program
from workbench.peers.rank import LEFT, TO_CONTROLLER, TO_PEERS, Event, Rank, Said, View


@final
@dataclass(frozen=True)
class PeerSetup:
    """Job to play: a program for each rank, and one for each in the generation after an end, if there is one.

    ``warm`` runs first on all ranks, so that names have numbers and grants; for it one order of events is enough.
    """

    programs: tuple[Program, ...]
    warm: Program = ()
    sets: tuple[tuple[int, ...], ...] = ()
    capacity: int = 1024
    fusion_bytes: int = 0
    kills: int = 0
    again: tuple[Program, ...] = ()


class RankMachine(Protocol):
    """Rank of a world: an object that changes in place, or a page of the book that has all its states."""

    view: View

    def turn(self, event: Event) -> tuple[RankMachine, list[Said]]:
        """See ``Rank``."""


class ControllerMachine(Protocol):
    """Controller of a world: an object that changes in place, or a page of the book."""

    undecided: bool
    may_expire: bool

    def turn(self, event: Event) -> tuple[ControllerMachine, list[Told]]:
        """See ``Coordinator``."""


class Machines(Protocol):
    """Factory of the ranks and the controller of a world."""

    def rank(self, rank: Rank) -> RankMachine:
        """Machine of a rank with this initial state."""

    def controller(self, controller: Coordinator) -> ControllerMachine:
        """Machine of a controller with this initial state."""


class PeerMove(NamedTuple):
    """Possible next action: its kind, the rank, and another rank or a name."""

    kind: str
    rank: int = -1
    other: object = None


Queue: TypeAlias = tuple[bytes, ...]
GONE = b""
"""Frame that stands for the end of a connection."""


@final
class PeerWorld:
    """State of a job; the values in it are immutable, so that a copy of it can be shallow."""

    def __init__(self, setup: PeerSetup, machines: Machines) -> None:
        size = len(setup.programs)
        self.setup, self.size = setup, size
        self.ranks: list[RankMachine] = [
            machines.rank(Rank(r, size, 1, setup.warm + setup.programs[r], setup.capacity)) for r in range(size)
        ]
        coordinator = Coordinator(size, setup.sets, setup.capacity, setup.fusion_bytes)
        self.controller: ControllerMachine = machines.controller(coordinator)
        self.wires: dict[tuple[int, int], Queue] = {(a, b): () for a in range(size) for b in range(size) if a != b}
        self.ups: list[Queue] = [()] * size
        self.downs: dict[tuple[int, str], Queue] = {(r, way): () for r in range(size) for way in (ORDERS, CONTROL)}
        self.met: dict[bytes, tuple[tuple[int, bytes], ...]] = {}
        self.generations = [1] * size
        self.waits = [False] * size  # for the next generation
        self.dead: frozenset[int] = frozenset()
        self.kills = setup.kills

    def copy(self) -> PeerWorld:
        """Copy of this world, which can develop differently."""
        other = object.__new__(PeerWorld)
        other.__dict__.update(self.__dict__)
        for name in ("ranks", "wires", "ups", "downs", "met", "generations", "waits"):
            setattr(other, name, getattr(self, name).copy())
        return other

    # -- what can happen ----------------------------------------------------------------------------------------------

    def enabled(self) -> list[PeerMove]:
        """List the possible next actions. Time passes only when nothing else can happen."""
        actions = [PeerMove("up", rank) for rank, queue in enumerate(self.ups) if queue]
        if self.controller.undecided:
            actions.append(PeerMove("decide"))
        for rank in range(self.size):
            if rank not in self.dead:
                actions += self._enabled_at(rank)
        if not actions and self.controller.may_expire:
            return [PeerMove("expire")]
        return actions

    def _enabled_at(self, rank: int) -> list[PeerMove]:
        view = self.ranks[rank].view
        actions = [PeerMove("control", rank)] if self.downs[rank, CONTROL] else []
        if self.waits[rank]:
            return actions
        if view.end:
            # Not if a rank has left after a refusal, and the others lost it: that rank does not reconnect.
            goes_on = self._goes_on(rank) and self.kills < self.setup.kills
            return [*actions, PeerMove("rejoin", rank)] if goes_on else actions
        if view.act:
            actions.append(PeerMove("act", rank))
        actions += [PeerMove("offer", rank, key) for key in view.offers]
        if self.kills:
            actions.append(PeerMove("kill", rank))
        return actions + (
            self._enabled_in_meeting(rank, view.meeting) if view.meeting else self._enabled_lead(rank, view)
        )

    def _enabled_in_meeting(self, rank: int, where: bytes) -> list[PeerMove]:
        if self._is_complete(where):
            return [PeerMove("part", rank)]
        return [PeerMove("miss", rank)] if self._is_hopeless(where) else []

    def _enabled_lead(self, rank: int, view: View) -> list[PeerMove]:
        actions: list[PeerMove] = []
        if view.connected:
            actions += [PeerMove("hear", rank, other) for other in self._others(rank) if self.wires[other, rank]]
        if view.made:
            actions.append(PeerMove("take", rank))
        if self.downs[rank, ORDERS]:
            actions.append(PeerMove("obey", rank))
        if view.missed >= 0:
            actions.append(PeerMove("miss", rank))
        return actions

    def _others(self, rank: int) -> list[int]:
        return [other for other in range(self.size) if other != rank]

    def _goes_on(self, rank: int) -> bool:
        return bool(self.setup.again) and self.generations[rank] == 1

    def members(self, where: bytes) -> tuple[int, ...]:
        """Ranks that meet there: all for a connection, else the members of the process set."""
        kind, _, numbers = where.partition(b" ")
        process_set = 0 if kind == b"connect" else int(numbers.split(b".")[1])
        return self.setup.sets[process_set - 1] if process_set else tuple(range(self.size))

    def _is_complete(self, where: bytes) -> bool:
        return {rank for rank, _ in self.met.get(where, ())}.issuperset(self.members(where))

    def _is_hopeless(self, where: bytes) -> bool:
        """True if a rank that must take part is dead, has ended, or is in a later generation."""
        missing = set(self.members(where)) - {rank for rank, _ in self.met.get(where, ())}
        generation = int(where.partition(b" ")[2].split(b".")[0])
        return any(
            rank in self.dead or self.ranks[rank].view.end or self.generations[rank] > generation for rank in missing
        )

    @property
    def is_over(self) -> bool:
        """True when every rank has ended."""
        return all(self.ranks[rank].view.end for rank in range(self.size) if rank not in self.dead)

    # -- what happens -------------------------------------------------------------------------------------------------

    def do(self, action: PeerMove) -> None:
        """Do one action."""
        kind, rank, other = action
        if kind in ("up", "decide", "expire"):
            self._coordinate(kind, rank)
        elif kind == "hear":
            assert isinstance(other, int)
            self._turn(rank, "hear", other, self._pop(self.wires, (other, rank)))
        elif kind == "obey":
            self._turn(rank, "obey", self._pop(self.downs, (rank, ORDERS)))
        elif kind == "control":
            self._control(rank, self._pop(self.downs, (rank, CONTROL)))
        elif kind == "part":
            where = self.ranks[rank].view.meeting
            self._turn(rank, "part", tuple(tags for _, tags in sorted(self.met[where])))
        elif kind in ("kill", "miss"):
            self.kills -= kind == "kill"
            self._end(rank, b"torn %d" % self.generations[rank])
            self._bury(rank, is_dead=kind == "kill")
        elif kind == "rejoin":
            self._rejoin(rank)
        else:
            self._turn(rank, *[each for each in (kind, other) if each is not None])
        if kind == "act" and self.ranks[rank].view.end == LEFT:
            self._part(rank, b"leave %d" % self.generations[rank])

    @staticmethod
    def _pop(queues: Any, which: object) -> bytes:
        frame, *rest = queues[which]
        queues[which] = tuple(rest)
        return bytes(frame)

    def _turn(self, rank: int, *event: object) -> None:
        self.ranks[rank], said = self.ranks[rank].turn(event)
        for way, frame in said:
            if way == TO_PEERS:
                for other in self._others(rank):
                    if self.generations[other] == self.generations[rank] and other not in self.dead:
                        self.wires[rank, other] = (*self.wires[rank, other], frame)
            elif way == TO_CONTROLLER:
                self.ups[rank] = (*self.ups[rank], frame)
            else:
                where, _, tags = frame.partition(b"|")
                self.met[where] = (*self.met.get(where, ()), (rank, tags))

    def _coordinate(self, kind: str, rank: int) -> None:
        event = (kind, rank, self._pop(self.ups, rank)) if kind == "up" else (kind,)
        self.controller, told = self.controller.turn(event)
        for rank, way, frame in told:
            if rank not in self.dead:
                self.downs[rank, way] = (*self.downs[rank, way], frame)

    def _control(self, rank: int, frame: bytes) -> None:
        word, _, number = frame.partition(b" ")
        if word == b"welcome":
            self.waits[rank] = False
        elif int(number) == self.generations[rank] and not self.ranks[rank].view.end:
            self._end(rank, b"leave %d" % self.generations[rank])

    def _end(self, rank: int, word: bytes) -> None:
        self._turn(rank, "end")
        self._part(rank, word)

    def _part(self, rank: int, word: bytes) -> None:
        """Tell the controller why a rank leaves, and close its connections."""
        self.ups[rank] = (*self.ups[rank], word)
        for other in self._others(rank):
            self.wires[rank, other] = (*self.wires[rank, other], GONE)

    def _bury(self, rank: int, *, is_dead: bool) -> None:
        """Replace a dead process if there is another generation; else it stays dead."""
        if is_dead and self._goes_on(rank):
            self._rejoin(rank)
        elif is_dead:
            self.dead |= {rank}

    def _rejoin(self, rank: int) -> None:
        self._turn(rank, "rejoin", self.setup.again[rank])
        self.generations[rank] += 1
        self.waits[rank] = True
        self.ups[rank] = (*self.ups[rank], b"hello")
        for other in self._others(rank):
            if self.generations[other] == self.generations[rank]:  # what the others have sent is lost with the sockets
                self.wires[other, rank] = self.wires[rank, other] = ()
            else:
                self.wires[other, rank] = ()
