"""Role of a rank in writing checkpoints, and a checkpoint to write.

writer = Writer.here(sharded=True)
writer.gather(value, "name")                      # the values of all writers
writer.together(lambda: may_fail())               # an error on one rank is one on all

Agreement of the ranks that write one checkpoint: on its step, and on the tensors that they distribute.

offers = gather(WriterProposal("rank 0 on node1", mark, step, digest_of(outline)))
differing_offers(offers)                          # text on why they cannot write one checkpoint together, or ""
differing_outlines(["rank 0", "rank 1"], gather(outline))
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, final

from farandole.errors import CheckpointError
from farandole.runtime.collectives.objects import allgather_object, broadcast_object
from farandole.runtime.session import init

Outline = Mapping[str, str]
"""Path of each tensor in the state, and its dtype and shape."""

REMEDY = "with sharded=True all ranks save the same tensors: leave out what is not the same, or save without sharded="


@final
@dataclass(frozen=True)
class WriterProposal:
    """Proposal of one rank before anything is written: what it will save, or why it cannot save (``wrong``)."""

    rank: str
    mark: str
    step: int
    digest: str
    wrong: str = ""


def digest_of(outline: Outline) -> str:
    """Digest of the outline, independent of its order."""
    return hashlib.blake2b(repr(sorted(outline.items())).encode(), digest_size=16).hexdigest()


def differing_offers(offers: Sequence[WriterProposal]) -> str:
    """Text on why these ranks cannot save together: a rank that cannot save, or different steps; "" if they can."""
    if wrong := [f"{each.rank} cannot save: {each.wrong}" for each in offers if each.wrong]:
        return "; ".join(wrong)
    first, *others = offers
    for each in others:
        if each.step != first.step:
            return f"{each.rank} saves step {each.step}, and {first.rank} step {first.step}: all ranks save the same"
    return ""


def differing_outlines(ranks: Sequence[str], outlines: Sequence[Outline]) -> str:
    """Text on the first tensor in which a rank differs from the first rank; "" if there is none."""
    for rank, outline in zip(ranks, outlines, strict=True):
        for path in sorted(outlines[0].keys() | outline.keys()):
            own, first = outline.get(path), outlines[0].get(path)
            if own != first:
                return f"{rank} has {own or 'no tensor'} in {path}, and {ranks[0]} {first or 'none'}: {REMEDY}"
    return ""


R = TypeVar("R")


@final
class Writer:
    """Role of this rank in writing in the current generation; a process without a job writes everything.

    ``is_outside``: this worker waits to join the job, or got SIGTERM before it joined, so it must not write.
    """

    def __init__(
        self, rank: int, size: int, generation: int, name: str, sharded: bool, is_outside: bool = False
    ) -> None:
        self.rank, self.generation, self.name, self.is_outside = rank, generation, name, is_outside
        self.writers = size if sharded else 1
        self._size = size

    @classmethod
    def here(cls, sharded: bool) -> Writer:
        """The role of this process now."""
        if not init.is_initialized():
            return cls(0, 1, 0, "this process", sharded, init.is_outside())
        own, topology = init.current(), init.current().topology
        sharded = (
            sharded and not own.end.has_left
        )  # the others no longer write with this rank; rank 0 writes everything
        name = f"rank {topology.rank} on {topology.host}"
        return cls(topology.rank, topology.size, topology.generation, name, sharded, init.is_outside())

    def gather(self, value: Any, name: str) -> list[Any]:
        """The values of all writers, in their order."""
        # Named by the generation in which ``save`` was called: a late thread must not meet threads of the next one.
        return allgather_object(value, f"{name}.{self.generation}") if self.writers > 1 else [value]

    def everybody(self, value: Any) -> list[Any]:
        """The values of all ranks."""
        return allgather_object(value, "checkpoint.everybody") if self._size > 1 else [value]

    def together(self, do: Callable[[], R]) -> R:
        """Return the result of ``do``, or raise ``CheckpointError`` on all ranks if any rank raises it: none waits."""
        failure: CheckpointError | None = None
        try:
            result = do()
        except CheckpointError as error:
            failure = error
        if wrongs := [each for each in self.everybody(str(failure or "")) if each]:
            raise failure or CheckpointError("; ".join(wrongs))
        return result

    def agree(self, value: Any) -> Any:
        """The value of rank 0, on all ranks."""
        return broadcast_object(value, 0, "checkpoint.agree") if self._size > 1 else value


@final
@dataclass(frozen=True)
class Save:
    """One checkpoint to write: the ``content`` of this rank's file, and the ``outline`` of the files of all.

    ``gathers``: name of the all-gathers of this save. ``back_to``: step that training has gone back to.
    """

    step: int
    writer: Writer
    gathers: str
    back_to: int | None
    content: dict[str, Any] = field(default_factory=dict)
    outline: Outline = field(default_factory=dict)
    wrong: str = ""
