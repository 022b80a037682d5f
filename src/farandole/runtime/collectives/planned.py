"""Planned lane: collectives whose order every member knows beforehand, so that no negotiation is needed.

    lane = PlannedLane(current(), global_process_set, "optimizer.0")
    said = lane.meet("step 7", "ready")             # an error on every member unless all are at step 7
    lane.allreduce("bucket 0", array, Reduction(ReduceOp.AVERAGE))

One thread at a time uses a lane (its owner ensures this), and any thread may ``abort`` it. A lane has an engine of its
own, so it neither waits for the negotiated lane nor delays it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, final

from farandole import events
from farandole.collective import Array, Reduction
from farandole.engines.engine import Memory
from farandole.errors import MismatchError
from farandole.runtime.collectives.divergence import Comparison, StepDigests
from farandole.runtime.collectives.verbs import number_of
from farandole.runtime.session.process_sets import ProcessSet

if TYPE_CHECKING:
    from farandole.runtime.session.init import Session

JOINED = "joined"
"""State of a member that has called ``join``: it takes part in everything, at any point of the others."""

_GOING_ON, _INTERRUPTED = "|", "!"
"""Sign between a member's mark and its point: ``_INTERRUPTED`` after a user has interrupted the member."""

_MESSAGE = re.compile(r"([^|!]*)([|!])([^|]*)\|(.*)", re.DOTALL)

_REMEDY = (
    ". If a cell has failed when some ranks were a step further, make them the same, on every rank: "
    "hvd.broadcast_parameters(model.state_dict(), root_rank=0), hvd.broadcast_optimizer_state(optimizer, root_rank=0), "
    "and a new DistributedOptimizer"
)

REFUSED = "refused"
"""State of a member that cannot go on: it raises its own error, and all other members an error that names it."""


@final
class PlannedLane:
    """Planned lane among the members of a process set. Its creation is collective, with the same ``label``."""

    def __init__(self, session: Session, process_set: ProcessSet, label: str) -> None:
        self.session, self.label = session, label
        self._is_stopping = False  # some member was interrupted; all members know it from the same meeting
        self._process_set = number_of(process_set)
        self._collectives = session.planned.lane(self._process_set, label, f"{label}: ")
        self._engine = session.planned.engine(self._process_set, label, waits=self._collectives)
        self._group = self._engine.group
        self._comparison = Comparison(label, [self._group.name(i) for i in range(self._group.size)])

    @property
    def crosses_hosts(self) -> bool:
        """True if its bytes travel over a network."""
        return len(set(self._group.hosts)) > 1

    @property
    def adds_as_tree(self) -> bool:
        """See ``Engine``."""
        return self._engine.adds_as_tree

    @property
    def size(self) -> int:
        """Number of members."""
        return self._group.size

    @property
    def rank(self) -> int:
        """Index of this process among the members."""
        return self._group.rank

    def name(self, member: int) -> str:
        """Name of a member in errors: its rank and host."""
        return self._group.name(member)

    def allocate(self, nbytes: int) -> Memory:
        """Zeroed memory in which collectives are fastest. Collective."""
        with self._collectives.next("allocating"):
            return self._engine.allocate(nbytes)

    def meet(self, point: str, state: str, snapshot: StepDigests | None = None) -> list[str]:
        """Return every member's ``state``; all must be at the same ``point`` of the program, except ``JOINED`` members.

        Both together have at most 54 bytes. Raises ``MismatchError`` on every member if points differ, or if a member
        has ``REFUSED``; the next call works. Raises ``DivergenceError`` on every member if their snapshots differ.
        """
        mark = "" if snapshot is None else snapshot.mark
        own = f"{mark}{_INTERRUPTED if self.session.cells.interrupted else _GOING_ON}{point}|{state}".encode()
        with self._collectives.next(point or state, needs_all=True, joined=state == JOINED):
            begin_s = time.monotonic()
            answers = self._engine.gather_small(own)
            if events.subscribers:
                self.phase("meet", "negotiate", begin_s)
        if answers.count(own) == len(answers):
            self._is_stopping |= (
                self.session.cells.interrupted and own[len(mark) : len(mark) + 1] == _INTERRUPTED.encode()
            )
            return [state] * len(answers)
        marks, signs, points, states = zip(*map(_read, answers), strict=True)
        self._is_stopping |= _INTERRUPTED in signs
        said = list(zip(points, states, strict=True))
        if len({there for there, how in said if how != JOINED}) > 1:
            each = "; ".join(
                f"{self._group.name(i)} is at {there!r}" for i, (there, how) in enumerate(said) if how != JOINED
            )
            raise MismatchError(
                f"the members of {self.label} are not at the same point of the program: {each}. Every rank must build "
                "the same model and optimizer, and call backward() and step() equally often; uneven data ends in join()"
                + (_REMEDY if self.session.is_interactive else "")
            )
        refused = [self._group.name(i) for i, (_, how) in enumerate(said) if how == REFUSED]
        if refused and state != REFUSED:
            raise MismatchError(f"{self.label} cannot go on at {point!r}: {', '.join(refused)} raised an error there")
        if not refused and self._comparison.is_suspect(marks):
            with self._collectives.next(f"comparing {point}"):
                self._comparison.explain(self._engine.gather_small, snapshot)
        return list(states)

    def stop_if_interrupted(self) -> None:
        """Raise ``KeyboardInterrupt`` if some member was interrupted before the last meeting; all members raise it."""
        if self._is_stopping:
            self._is_stopping = self.session.cells.interrupted = False
            raise KeyboardInterrupt("a rank was interrupted; all of them have applied this step, and no later one")

    def allreduce(self, what: str, array: Array, how: Reduction) -> None:
        """Reduce in place; ``what`` names the collective in reports and in the timeline."""
        with self._collectives.next(what, needs_all=array.count > 0):
            begin_s = time.monotonic()
            self._engine.allreduce(array, how)
            if events.subscribers:
                self.phase(what, "reduce", begin_s, array.nbytes)

    def alltoall(
        self, what: str, send: Array, send_counts: Sequence[int], recv: Array, recv_counts: Sequence[int]
    ) -> None:
        """Send consecutive slices of ``send`` to the members; ``recv`` holds the received slices, in member order."""
        with self._collectives.next(what):
            begin_s = time.monotonic()
            self._engine.alltoall(send, send_counts, recv, recv_counts)
            if events.subscribers:
                self.phase(what, "exchange", begin_s, recv.nbytes)

    def allgather(self, what: str, send: Array, recv: Array, counts: Sequence[int]) -> None:
        """Concatenate the ``send`` of all members in ``recv``."""
        with self._collectives.next(what):
            begin_s = time.monotonic()
            self._engine.allgather(send, recv, counts)
            if events.subscribers:
                self.phase(what, "gather", begin_s, recv.nbytes)

    def phase(self, what: str, phase: str, begin_s: float, nbytes: int = 0, row: str = "planned") -> None:
        """Emit a ``phase`` of ``what`` that ends now, for the timeline. The caller has checked for subscribers."""
        name, end_s = f"{self.label}.{what}", time.monotonic()
        events.emit(events.Phase(row, name, "allreduce", phase, begin_s, end_s, nbytes))

    def abort(self, reason: str) -> None:
        """Wake the thread that waits in the lane, from another thread; the lane can no longer be used."""
        self._engine.abort(f"{self.label}: {reason}")

    def close(self) -> None:
        """Close the engine; memory that it has allocated stays while it is referenced. Other members are notified."""
        # First, because the engine may report less.
        self.session.planned.closed(self._process_set, self.label, self._collectives.sequence)
        self._engine.close()

    def note(self, text: str) -> None:
        """Emit a note about this lane, for the timeline and other subscribers."""
        rank = self._group.ranks[self._group.rank]
        events.emit(events.Note(time.monotonic(), rank, f"{self.label}: {text}"))


def _read(answer: bytes) -> tuple[str, str, str, str]:
    """Mark, sign, point and state of a member."""
    found = _MESSAGE.fullmatch(answer.decode())
    assert found is not None, answer
    mark, sign, point, state = found.groups()
    return mark, sign, point, state
