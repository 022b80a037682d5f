"""A worker of the model: where it is in the protocol, and what state of the job it has."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple, TypeAlias, final

from farandole.elastic.membership.vote import NEW, VoteClaim


@final
class Life(IntEnum):
    """State of a worker's process."""

    UP = 0
    HUNG = 1
    CUT_OFF = 2
    """The host is thought lost: the process goes on with what has reached it, and nothing leaves or comes any more."""
    ENDED = 3


@final
class At(IntEnum):
    """Stage of a worker in the protocol."""

    IMPORTING = 0
    INIT = 1
    BUILDING = 2
    AGREEING = 3
    RECEIVING = 4
    COMPUTING = 5
    VOTING = 6


IN_GENERATION = (At.AGREEING, At.RECEIVING, At.COMPUTING, At.VOTING)


class HistoryStep(NamedTuple):
    """One step of the history of a state: the positions of the epoch's order that it consumed, and the number of ranks.

    The gradient's last bits depend on the latter.
    """

    start: int
    stop: int
    size: int


class Content(NamedTuple):
    """A state of the job, by all that ever made it: whose initial values, and which steps. Equal ones are equal bits.

    ``cursor`` is how many samples its sampler has committed.
    """

    origin: int
    steps: tuple[HistoryStep, ...] = ()
    cursor: int = 0


@final
class Simulated(NamedTuple):
    """One process. ``whole``: it has all of a state of the job; ``joined``: it cannot be the one to begin it."""

    worker_id: int
    host: str
    content: Content
    life: Life = Life.UP
    at: At = At.IMPORTING
    generation: int = 0
    members: tuple[int, ...] = ()
    step: int = 0
    whole: bool = False
    joined: bool = False
    change_due: bool = False
    sources: tuple[int, ...] = ()

    @property
    def claim(self) -> VoteClaim:
        """Claim that this worker makes when a generation begins."""
        return VoteClaim(self.step if self.whole else NEW, str(self.content), joined=self.joined)


Point: TypeAlias = tuple[int, str, int]
"""Meeting of ranks on the data plane: generation, purpose, step."""
