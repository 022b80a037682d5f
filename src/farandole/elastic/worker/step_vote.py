"""Vote on a step: no rank changes a parameter before all ranks know that every rank has computed its part.

    step_vote = StepVote()
    step_vote.cursors["sampler"] = cursor
    step_vote.cast(lane.meet)                       # raises, or all ranks are at the same step and may apply it

The vote also commits the samples of the step, and tells all ranks whether some rank knows that workers will join or
leave. A rank that did not see the result of a vote may be one step behind a rank that did: ``vote.agree`` finds out.
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
"""``PlannedLane.meet``: takes the point of this rank and its text; returns all ranks' texts if all are there."""


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
        """True when all ranks know that workers will join or leave."""
        self.is_applying = False
        """True while a voted step is not wholly applied to the parameters."""
        self.on_voted: Callable[[], object] = _nothing
        """Called after every vote that has passed."""
        self.on_recovered: Callable[[], object] = _nothing
        """Called once, by ``recovered``."""

    def weigh(self) -> float:
        """Weight of this rank's gradient in the pass under way; see ``SampleCursor.weigh``."""
        cursors = list(self.cursors.values())
        if any(cursor.is_fresh for cursor in cursors):
            self._pass += 1
            for cursor in cursors:
                if not cursor.is_fresh:
                    cursor.forget_pass()
        return weight(cursors)

    def passing(self) -> tuple[int, int]:
        """Number of the pass under way, which increases after new batches, and its samples on all ranks together."""
        self.weigh()
        return self._pass, sum(cursor.passing()[1] for cursor in self.cursors.values())

    def cast(self, meet: Meet, passed: int = 0) -> int:
        """Vote for the step, whose passes on this rank were over ``passed`` samples of all ranks together.

        Returns when all ranks have voted: the number of samples of the step, even on a rank that skipped a pass.
        """
        self.reach("vote")
        current().pace.beat()  # the only sign that a single rank trains
        samples = tuple(cursor.samples() for cursor in self.cursors.values())
        mine = vote.Vote(self.step, samples, bool(current().change_due), self._place(), passed)
        outcome = vote.count([_read(said, self.step) for said in meet(f"vote {self.step}", _write(mine))])
        # From here on nothing waits for a peer: the vote has passed for all, and a fault can no longer undo it. Nothing
        # may raise, because others count the step. ``vote.count`` has checked that all ranks are at the same samples.
        for cursor, sampled in zip(self.cursors.values(), outcome.samples, strict=True):
            cursor.advance(sampled)
        self.step, self.change_due, self.is_applying = outcome.step, outcome.change_due, True
        self.on_voted()
        self.recovered()
        self.reach("voted")
        return outcome.passed

    def _place(self) -> str:
        """Digest of the batches of the vote; short, because a meeting carries few bytes."""
        places = [cursor.place() for cursor in self.cursors.values()]
        return f"{zlib.crc32(repr(places).encode()):x}" if places else ""

    def recovered(self) -> None:
        """Call ``on_recovered``: a step is voted or, in a training without a vote, committed."""
        recovered, self.on_recovered = self.on_recovered, _nothing  # reset first: called once, even if it raises
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
        """Emit a ``Milestone``: this rank reaches ``phase``."""
        if events.subscribers and is_initialized():
            session = current()
            rank = session.topology.rank
            events.emit(events.Milestone(phase, session.generation, rank, self.step, time.monotonic()))


@final
class PassedSamples:
    """Samples of one optimizer's passes since its last step, over all ranks, as far as samplers count them."""

    def __init__(self) -> None:
        self.total, self._last_pass = 0, -1

    def add(self, step_vote: StepVote) -> None:
        """Add the samples of a new pass; once in a step, even if several passes use the same samples."""
        number, samples = step_vote.passing()
        self.total += samples if number != self._last_pass else 0
        self._last_pass = number

    def restart(self) -> None:
        """Begin a new step."""
        self.total, self._last_pass = 0, -1


class Voter(Protocol):
    """Interface of an optimizer's gradient reducer for the state that has the optimizer."""

    step_vote: StepVote | None
    """Cast before each of the optimizer's steps."""

    @property
    def is_global(self) -> bool:
        """True if all ranks reduce together."""

    def rejoin(self, label: str) -> None:
        """Begin a generation, and drop everything of the previous one. ``label``: the same on all ranks."""


def _write(part: vote.Vote) -> str:
    """Encode a vote in few bytes, for a meeting. The step is not in it: the meeting takes place at this step only."""
    numbers = (f"{number:x}" for number in (part.passed, *part.samples))
    return ",".join(("!" if part.change_due else "", part.place, *numbers))


def _read(said: str, step: int) -> vote.Vote:
    due, place, passed, *samples = said.split(",")
    return vote.Vote(step, tuple(int(each, 16) for each in samples), bool(due), place, int(passed, 16))


def _nothing() -> None:
    pass
