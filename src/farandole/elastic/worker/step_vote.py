"""The vote of a step: no rank changes a parameter before all know that every rank's part of the step is there.

    step_vote = StepVote()
    step_vote.cursors["sampler"] = cursor
    step_vote.cast(lane.meet)                       # raises, or all ranks are at the same step and may apply it

In the same moment the samples of the step count, and all learn whether some rank has heard that workers are to come or
go. A rank that has not seen the end of a vote may be one step behind another one that has: ``vote.agree`` finds out.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias, final

from farandole import events
from farandole.elastic.membership import vote
from farandole.elastic.worker.sampler import SampleCursor, weight
from farandole.runtime.session.init import current, is_initialized

Meet: TypeAlias = Callable[[str, str], Sequence[str]]
"""``PlannedLane.meet``: from where this rank is, and what it says, to what every rank says, if all are there."""


def alone(_point: str, said: str) -> list[str]:
    """A ``Meet`` for a rank that trains alone."""
    return [said]


@final
class StepVote:
    """The step vote that the optimizers of one state share. ``step`` counts the steps that were voted."""

    def __init__(self) -> None:
        self.step = 0
        self.cursors: dict[str, SampleCursor] = {}
        self._pass = 0
        self.change_due = False
        """True once all ranks know that one of them has heard that workers are to come or go."""
        self.is_applying = False
        """True while a voted step is not wholly applied to the parameters."""
        self.on_voted: Callable[[], object] = _nothing
        """Called after every vote that has passed."""
        self.on_recovered: Callable[[], object] = _nothing
        """Called once, by ``recovered``."""

    def weigh(self) -> float:
        """The weight of this rank's gradient of the pass under way, for whoever asks; see ``SampleCursor.weigh``."""
        cursors = list(self.cursors.values())
        if any(cursor.is_fresh for cursor in cursors):
            self._pass += 1
            for cursor in cursors:
                if not cursor.is_fresh:
                    cursor.leave()
        return weight(cursors)

    def passing(self) -> tuple[int, int]:
        """Number of the pass under way, another one when batches were handed out before it, and its samples."""
        self.weigh()
        return self._pass, sum(cursor.passing()[1] for cursor in self.cursors.values())

    def cast(self, meet: Meet, passed: int = 0) -> int:
        """Vote for this rank's part of the step, whose passes were over ``passed`` samples of all ranks together.

        Returns when everybody has: for how many samples the step is, the same on all ranks; one may lack a pass.
        """
        self.reach("vote")
        current().pace.beat()  # for a rank that is alone, this is all that shows that it trains
        samples = tuple(cursor.samples() for cursor in self.cursors.values())
        mine = vote.Vote(self.step, samples, bool(current().change_due), self._place(), passed)
        outcome = vote.count([_read(said, self.step) for said in meet(f"vote {self.step}", _write(mine))])
        # From here on nothing waits for a peer: the vote has passed for all, and a fault can no longer undo it. Nor may
        # anything raise: the others count the step and its samples. That ranks are at the same ones was voted, too.
        for cursor, sampled in zip(self.cursors.values(), outcome.samples, strict=True):
            cursor.advance(sampled)
        self.step, self.change_due, self.is_applying = outcome.step, outcome.change_due, True
        self.on_voted()
        self.recovered()
        self.reach("voted")
        return outcome.passed

    def _place(self) -> str:
        """Digest of the batches that the vote is about; few bytes, as that is what a meeting carries."""
        places = [cursor.place() for cursor in self.cursors.values()]
        return f"{zlib.crc32(repr(places).encode()):x}" if places else ""

    def recovered(self) -> None:
        """Call ``on_recovered``: a step is voted or, in a training without a vote, committed."""
        recovered, self.on_recovered = self.on_recovered, _nothing  # forgotten first: once, even if it raises
        recovered()

    def applied(self) -> None:
        """Note that the voted step is wholly applied."""
        self.is_applying = False
        self.reach("applied")

    def rearrange(self, step: int, rank: int, size: int) -> None:
        """Begin a new generation at ``step``, with these ranks."""
        self.step, self.change_due, self.is_applying = step, False, False
        for cursor in self.cursors.values():
            cursor.rearrange(rank, size)

    def reach(self, phase: str) -> None:
        """Emit a ``Milestone``: this rank comes to ``phase``."""
        if events.subscribers and is_initialized():
            session = current()
            rank = session.topology.rank
            events.emit(events.Milestone(phase, session.generation, rank, self.step, time.monotonic()))


class Voter(Protocol):
    """Reducer of an optimizer's gradients, as the state that the optimizer belongs to sees it."""

    step_vote: StepVote | None
    """Cast before each of the optimizer's steps."""

    @property
    def is_global(self) -> bool:
        """True if all ranks reduce together."""

    def rejoin(self, label: str) -> None:
        """A generation begins: nothing of the last one counts. ``label`` is the same on all ranks."""


def _write(part: vote.Vote) -> str:
    """Encode a vote, as short as it gets: a meeting carries few bytes. All members are at its step, or it is none."""
    numbers = (f"{number:x}" for number in (part.passed, *part.samples))
    return ",".join(("!" if part.change_due else "", part.place, *numbers))


def _read(said: str, step: int) -> vote.Vote:
    due, place, passed, *samples = said.split(",")
    return vote.Vote(step, tuple(int(each, 16) for each in samples), bool(due), place, int(passed, 16))


def _nothing() -> None:
    pass
