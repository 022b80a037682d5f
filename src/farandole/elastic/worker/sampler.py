"""Samples of an epoch, distributed over changing ranks so that each of them is committed exactly once.

    cursor = SampleCursor(length=10, rank=0, size=3)
    [batch.counts(3) for batch in cursor.batches(batch_size=2)]     # [[2, 2, 2], [2, 1, 1]]
    cursor.hand_out(next(cursor.batches(batch_size=2)))
    cursor.advance(6)                                               # the samples of all ranks: the step is committed

An epoch is a fixed order of all samples with a cursor in it: samples before the cursor are committed, samples after it
are not. A step takes the next samples, for any number of ranks, and the cursor moves when the step is voted. So a
fault, or another number of ranks, changes which rank computes a sample, and never whether the sample counts. Pure.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias, TypeVar, final

from farandole.elastic.worker.layout import Layout
from farandole.errors import MismatchError, UsageError
from farandole.runtime.session.training import training

T = TypeVar("T")

Order: TypeAlias = Callable[[int, int, int], Sequence[int]]
"""From the number of samples, the seed and the epoch to all indices in the order of that epoch."""


def shuffled(length: int, seed: int, epoch: int) -> Sequence[int]:
    """The indices below ``length`` in random order; the same on all ranks for one seed and epoch."""
    indices = list(range(length))
    random.Random(f"{seed} {epoch}").shuffle(indices)  # noqa: S311 (no secret)
    return indices


def sequential(length: int, _seed: int, _epoch: int) -> Sequence[int]:
    """The indices below ``length`` in ascending order."""
    return range(length)


@final
@dataclass(frozen=True, slots=True)
class GlobalBatch:
    """Samples of one step of all ranks: the positions ``start`` to ``stop`` in the epoch's order.

    Ranks take neighbouring slices whose lengths differ by one at most. ``left_out`` are numbers of corrupt samples in
    it, of this rank and of all ranks: they count as done, and have no part in the gradient.
    """

    start: int
    stop: int
    left_out: tuple[int, int] = field(default=(0, 0), compare=False)

    @property
    def samples(self) -> int:
        """Number of samples of all ranks together."""
        return self.stop - self.start

    def counts(self, size: int) -> list[int]:
        """Number of samples of each of ``size`` ranks."""
        even, odd = divmod(self.samples, size)
        return [even + (rank < odd) for rank in range(size)]

    def positions(self, rank: int, size: int) -> range:
        """The slice of one rank; empty where there are fewer samples than ranks."""
        even, odd = divmod(self.samples, size)
        start = self.start + rank * even + min(rank, odd)
        return range(start, start + even + (rank < odd))

    def computed(self, rank: int, size: int) -> range:
        """The slice of one rank, never empty: a rank without a sample of its own gets the last one, with weight 0."""
        return self.positions(rank, size) or range(self.stop - 1, self.stop)


def per_rank(cursor: int, length: int, size: int, batch_size: int) -> Iterator[GlobalBatch]:
    """The steps from ``cursor`` on, with ``batch_size`` samples for each rank.

    >>> [batch.counts(2) for batch in per_rank(0, 9, 2, batch_size=2)]
    [[2, 2], [3, 2]]

    The rest after the last full batch is one more step or, if some rank would get no sample, part of the last step.
    """
    full = batch_size * size
    while cursor < length:
        left = length - cursor
        taken = left if left < full + size else full
        yield GlobalBatch(cursor, cursor + taken)
        cursor += taken


def fixed(cursor: int, length: int, global_batch_size: int) -> Iterator[GlobalBatch]:
    """The steps from ``cursor`` on, with ``global_batch_size`` samples for all ranks together, however many they are.

    >>> [batch.samples for batch in fixed(4, 11, global_batch_size=4)]
    [4, 3]
    """
    for start in range(cursor, length, global_batch_size):
        yield GlobalBatch(start, min(start + global_batch_size, length))


@final
class SampleCursor:
    """The progress of one rank, number ``rank`` of ``size``, through the epochs of a data set of ``length`` samples.

    The samples are in the order of the ``layout``, if the data set has one, or else in ``order``.
    """

    def __init__(
        self,
        length: int,
        order: Order = shuffled,
        seed: int = 0,
        rank: int = 0,
        size: int = 1,
        layout: Layout | None = None,
    ) -> None:
        self.length, self.seed, self.layout = length, seed, layout
        self.rank, self.size = rank, size
        self.epoch = 0
        self.position = 0
        """Number of committed samples of this epoch."""
        self.left_out = 0
        """Number of corrupt ones among them, which no gradient has seen."""
        self.in_flight: list[GlobalBatch] = []
        """Batches that are handed out and not yet committed."""
        self.is_fresh = False
        """True if batches were handed out since the last backward pass: the next pass is over these batches."""
        self._passing: list[GlobalBatch] = []
        self._rearranged = 0
        self._order = order
        self._rows: tuple[GlobalBatch, Sequence[int]] | None = None
        self._ordered: tuple[tuple[int, int], Sequence[int]] | None = None
        self._named: tuple[tuple[int, int], str] | None = None
        """Seed and epoch, and the name of its order, once that is chosen: the epoch keeps it if the ranks change."""

    @property
    def indices(self) -> Sequence[int]:
        """All indices in the order of this epoch."""
        key = (self.seed, self.epoch)
        if self._ordered is None or self._ordered[0] != key:
            if self.layout is None:
                self._ordered = key, self._order(self.length, self.seed, self.epoch)
            else:
                self._named = key, self._order_name or self.layout.name
                self._ordered = key, self.layout.order(self.length, self.seed, self.epoch, self._named[1])
        return self._ordered[1]

    @property
    def _order_name(self) -> str:
        """Name of this epoch's order in the layout; "" if it is yet to be chosen."""
        return self._named[1] if self._named and self._named[0] == (self.seed, self.epoch) else ""

    @property
    def remaining(self) -> Sequence[int]:
        """The indices of this epoch that are not committed."""
        return self.indices[self.position :]

    @property
    def arrangement(self) -> int:
        """Counter; when it changes, batches that were planned before must no longer be handed out."""
        return self._rearranged

    def set_epoch(self, epoch: int) -> None:
        """Begin ``epoch``; an epoch under way goes on."""
        if epoch != self.epoch:
            self.epoch, self.position, self.left_out = epoch, 0, 0
            self._drop()

    def rearrange(self, rank: int, size: int) -> None:
        """Set a new rank and number of ranks: batches in flight are dropped, and their samples handed out again."""
        self.rank, self.size = rank, size
        self._drop()

    def batches(self, batch_size: int = 0, global_batch_size: int = 0) -> Iterator[GlobalBatch]:
        """The remaining steps of this epoch, with this batch size, after the batches in flight."""
        begin = self.in_flight[-1].stop if self.in_flight else self.position
        if global_batch_size:
            return fixed(begin, self.length, global_batch_size)
        return per_rank(begin, self.length, self.size, batch_size)

    def strided(self) -> Sequence[int]:
        """Indices of this rank for a loader that makes the batches itself, the same number for every rank.

        The first n indices of every rank together are always the beginning of the remaining samples. If the samples do
        not divide evenly, the last ranks get the last sample of the epoch in addition, which is also another rank's.
        """
        mine = [int(index) for index in self.indices[self.position + self.rank :: self.size]]
        if self.rank >= (self.length - self.position) % self.size > 0:
            mine.append(int(self.indices[-1]))
        return mine

    def positions(self, batch: GlobalBatch) -> Sequence[int]:
        """Positions, in the epoch's order, of this rank's samples of a batch: from the layout, or else a slice."""
        if self.layout is None or self.size == 1:
            return batch.positions(self.rank, self.size)
        if self._rows is None or self._rows[0] != batch:
            rows = self.layout.rows(self.indices[batch.start : batch.stop], batch.counts(self.size))
            if rows is None:
                return batch.positions(self.rank, self.size)
            self._rows = batch, [batch.start + int(row) for row in rows[self.rank]]
        return self._rows[1]

    def samples_of(self, batch: GlobalBatch, *, whole: bool = False) -> list[int]:
        """Samples of a batch that this rank computes, or the ``whole`` batch; never empty: see ``computed``."""
        rows = range(batch.start, batch.stop) if whole else self.positions(batch) or range(batch.stop - 1, batch.stop)
        indices = self.indices
        return [int(indices[row]) for row in rows]

    # -- what happens to a batch ---------------------------------------------------------------------------------------

    def hand_out(self, batch: GlobalBatch, trains: bool = True) -> None:
        """Hand a batch to the training loop; it is in flight until ``advance``. ``trains``: a backward pass uses it."""
        if self.layout is not None:
            self.layout.begin(self.indices, batch.start)
        self.in_flight.append(batch)
        if trains:
            if not self.is_fresh:
                self._passing, self.is_fresh = [], True
            self._passing.append(batch)

    def leave_out(self, mine: int, everywhere: int) -> int:
        """Leave corrupt samples out of the last batch: ``mine`` of this rank, ``everywhere`` of all ranks.

        Returns the number of them in this epoch so far.
        """
        batch = self.in_flight[-1]
        self.in_flight[-1] = replace(batch, left_out=(mine, everywhere))
        if self._passing and self._passing[-1] is batch:
            self._passing[-1] = self.in_flight[-1]
        return self.left_out + sum(each.left_out[1] for each in self.in_flight)

    def hand_out_with(
        self, batches: Iterable[GlobalBatch], contents: Iterable[T], trains: Callable[[], bool] = lambda: True
    ) -> Iterator[T]:
        """Iterate over ``contents``, which a loader has made of planned ``batches``, and hand out each batch.

        ``trains`` is called for each batch: see ``hand_out``. Raises ``UsageError`` if the workers or the epoch changed
        after the batches were planned.
        """
        arrangement = self.arrangement
        for batch, content in zip(batches, contents, strict=True):
            if self.arrangement != arrangement:
                raise UsageError(
                    "this iteration began before the workers or the epoch changed: begin a new one, for batch in loader"
                )
            self.hand_out(batch, trains())
            yield content

    def own_indices(self) -> list[int]:
        """The samples of this rank in all batches that are in flight."""
        indices = self.indices
        return [int(indices[position]) for batch in self.in_flight for position in self.positions(batch)]

    def weigh(self) -> float:
        """Factor for this rank's mean gradient that makes the mean over the ranks the mean over the samples of a pass.

        It is 1 if all ranks have equally many. A pass is over batches handed out since the previous pass or, without
        any, over the same again: two optimizers may use one batch in a step each, or one optimizer several times.
        """
        return weight([self])

    def passing(self) -> tuple[int, int]:
        """Numbers of samples of the pass that begins: of this rank, and of all ranks together (1 at least)."""
        self.is_fresh = False
        mine = sum(len(batch.positions(self.rank, self.size)) - batch.left_out[0] for batch in self._passing)
        return mine, sum(batch.samples - batch.left_out[1] for batch in self._passing) or min(1, len(self._passing))

    def forget_pass(self) -> None:
        """Note that the pass under way is over samples of other cursors."""
        self._passing = []

    def samples(self) -> int:
        """Number of this rank's samples in flight; ``advance`` expects their sum over the ranks."""
        return sum(len(batch.positions(self.rank, self.size)) for batch in self.in_flight)

    def place(self) -> tuple[int, int, int, int]:
        """Epoch and position of this rank, and number of batches and of samples in flight; the same on all ranks."""
        return self.epoch, self.position, len(self.in_flight), sum(batch.samples for batch in self.in_flight)

    def advance(self, samples: int) -> None:
        """Commit the step: all ranks together have computed ``samples``, which must be the number in flight."""
        expected = sum(batch.samples for batch in self.in_flight)
        if samples != expected:
            raise MismatchError(
                f"the ranks have together computed {samples} samples in this step, and {expected} were handed out from "
                f"place {self.position} of epoch {self.epoch}: every rank must take the same number of batches from "
                "its loader for each step"
            )
        training.saw(self.samples())
        self.position += samples
        self.left_out += sum(batch.left_out[1] for batch in self.in_flight)
        self.in_flight.clear()

    def record(self, samples: int) -> None:
        """Commit ``samples`` of every rank, for a loader that makes the batches itself."""
        self.position = min(self.length, self.position + samples * self.size)

    # -- saving and loading --------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Progress for ``load_state_dict``, with any number of ranks."""
        more: dict[str, Any] = {"order": self._order_name} if self._order_name else {}
        if self.left_out:
            more["left_out"] = self.left_out
        return {
            "epoch": self.epoch,
            "processed_num": self.position,
            "seed": self.seed,
            "length": self.length,
            **more,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on at the position of ``state``; batches in flight are dropped.

        Raises ``UsageError`` for the state of another data set.
        """
        if state.get("length", self.length) != self.length:
            raise UsageError(
                f"the state is that of a data set of {state['length']} samples, and this one has {self.length}: "
                "the order of its samples is another one, begin the epoch anew"
            )
        if self.layout is not None and "order" in state:
            self.layout.check(str(state["order"]))
        self.epoch, self.position = int(state["epoch"]), int(state["processed_num"])
        self.left_out = int(state.get("left_out", 0))
        self.seed = int(state.get("seed", self.seed))
        if self.layout is not None:
            self._named = ((self.seed, self.epoch), str(state["order"])) if "order" in state else None
            self._ordered = None
        self._drop()

    def _drop(self) -> None:
        self.in_flight.clear()
        self._rows = None
        self._passing, self.is_fresh = [], False
        self._rearranged += 1


def weight(cursors: Sequence[SampleCursor]) -> float:
    """Weight of this rank's gradient of a pass over the samples of all ``cursors`` together: see ``weigh``.

    The sum of two losses, each of a batch of its own, has one gradient. If both batches are split alike, because they
    have the same size, the weight is that of either batch; a product of both weights would count a difference twice.
    """
    mine, total = map(sum, zip(*(cursor.passing() for cursor in cursors), strict=True)) if cursors else (0, 0)
    return mine * cursors[0].size / total if total else 1.0
