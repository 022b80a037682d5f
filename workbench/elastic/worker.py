"""A modelled worker: its stage in the protocol, and its state of the job."""

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
    """The host counts as lost: the process goes on with the messages it has, but sends and receives nothing more."""
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
    """One step in the history of a state: the consumed positions of the epoch's order, and the number of ranks.

    The gradient's last bits depend on the number of ranks.
    """

    start: int
    stop: int
    size: int


class Content(NamedTuple):
    """A state of the job, as its history: the origin of its initial values, and its steps. Equal ones are equal bits.

    ``cursor`` is the number of samples that its sampler has committed.
    """

    origin: int
    steps: tuple[HistoryStep, ...] = ()
    cursor: int = 0


@final
class Simulated(NamedTuple):
    """One process. ``whole``: it has a complete state of the job; ``joined``: it must not provide the initial state."""

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
