"""Reduction for virtual workers: the same bits after every step, for any number of workers.

    for shard in reducer.shards(rows):
        ...                                     # gradients of the shard's rows
    reducer.settle()                            # now they are those of the global batch
    reducer.stepped()

The global batch is cut into one shard per virtual worker. Each shard has its own random stream and starts from the same
batch-norm statistics; the shards' gradients are added up in one order. So the results do not depend on how many workers
share the shards, nor on where the workers run.
"""

from __future__ import annotations

import hashlib
import random
import sys
import weakref
from abc import abstractmethod
from collections.abc import Generator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any, NamedTuple, final

from farandole.collective import ReduceOp, Reduction
from farandole.elastic.worker.step_vote import Meet, alone
from farandole.errors import MismatchError, UsageError
from farandole.gradients.optimizer_key import OptimizerKey
from farandole.gradients.reducer import Reducer
from farandole.gradients.reduction_options import ReductionOptions
from farandole.gradients.shard_sums import Shards, ShardSums, add_tensors, block, cover, halves
from farandole.gradients.tensors import Param, T, Tensors
from farandole.runtime.collectives.divergence import StepDigests
from farandole.runtime.collectives.planned import REFUSED, PlannedLane
from farandole.runtime.session.init import current, end_step, takes_part

open_shards: list[int] = []
"""Number of the shard that the script computes now, if any."""


class Shard(NamedTuple):
    """One shard: its number and its rows of the global batch."""

    number: int
    rows: slice


@final
class _Buffer:
    """Buffer of the model; ``before`` and ``digest``: its values at the beginning of the step, and their digest."""

    def __init__(self, tensor: Any, before: Any, digest: int) -> None:
        self.tensor, self.before, self.digest = tensor, before, digest


class ShardReducer(Reducer[T]):
    """Reducer of the gradients of ``count`` shards; ``seed`` seeds their random streams.

    A subclass provides the framework's part: parameters, gradients, buffers, the count of steps, random generators.
    """

    def __init__(
        self, tensors: Tensors[T], identity: OptimizerKey, terms: ReductionOptions, count: int, seed: int
    ) -> None:
        super().__init__(terms, tensors)
        self._identity, self._seed = identity, seed
        self._whole = Shards(0, count)
        self._lanes: list[PlannedLane] = []
        """The current lane, if any; closed when the optimizer is collected."""
        # The finalizer refers to this list and not to the reducer, which it would keep alive: change the list in place.
        # No finalizer at exit: shutdown() closes the engines.
        weakref.finalize(self, _close, self._lanes).atexit = False
        self._sums: ShardSums[T] | None = None
        self._plan = ""
        self._stack: list[tuple[Shards, list[T]]] = []
        self._rows = 0
        self._taken: list[Param] = []
        """Parameters whose gradients are summed: the trainable ones when the loop over the shards began."""
        self._used: list[bool] = []
        self._changed: list[bool] = []
        self._counted: list[int] = []
        self._statistics: list[_Buffer] = []
        """Floating-point buffers of the model. Those that a shard has changed get the mean over the shards."""
        self._counters: list[_Buffer] = []
        """Integer buffers; every shard produces the same values."""
        self._reduced = False

    @abstractmethod
    def params(self) -> list[Param]:
        """All parameters of the optimizer."""

    @abstractmethod
    def _buffers(self) -> tuple[list[T], list[T]]:
        """Floating-point buffers and integer buffers (counters) of the model."""

    @abstractmethod
    def _step(self) -> int:
        """Number of steps so far, saved in the optimizer's checkpoints."""

    @abstractmethod
    def _count_step(self) -> None:
        """Add one to the number of steps."""

    @abstractmethod
    def _take_gradients(self, params: Sequence[Param]) -> list[T | None]:
        """Remove and return the gradients of ``params``, each in its own memory, which the caller may write to.

        Raises ``UsageError`` for a gradient that cannot be added up.
        """

    def _set_gradient(self, param: Param, gradient: T | None) -> None:
        """Set the gradient of ``param``."""
        self._tensors.set_gradient(param, gradient)

    @abstractmethod
    def _generators(self, seed: int) -> AbstractContextManager[object]:
        """Context in which the framework's random generators start from ``seed``; their state is restored after it."""

    def shards(self, rows: int) -> Generator[Shard, None, None]:
        """Iterate over this worker's shards of ``rows`` rows; gradients belong to the shard yielded last."""
        if rows < 1:
            raise UsageError(f"shards({rows}): a global batch has at least one row")
        own = self._own()
        if not self._reduced:  # an earlier loop did not end, and its generator is still alive
            self.abandon()
        self.restart()
        stack = self._stack
        try:
            yield from self._shards(own, rows)
        except BaseException:  # also if the script breaks out of the loop
            if self._stack is stack:  # false if the generator is closed after a new loop, or a load, has begun
                self.abandon()
            raise

    def _shards(self, own: Shards, rows: int) -> Generator[Shard, None, None]:
        self._rows, self._taken = rows, self._trained()
        self._statistics, self._counters = map(self._kept, self._buffers())
        self._counted = [0] * len(self._counters)
        self._used, self._changed = [False] * len(self._taken), [False] * len(self._statistics)
        for param in self.params():  # also frozen ones: optimizers apply every gradient that is set
            self._set_gradient(param, None)
        step, count = self._step(), self._whole.end
        for number in range(own.begin, own.end):
            part = block(number, count, rows)
            self._rewind()
            with self._stream(step, number):
                if part.end > part.begin:
                    yield Shard(number, slice(part.begin, part.end))
            self._push_shard(number, (part.end - part.begin) * count / rows)

    # -- methods of ``Reducer`` ---------------------------------------------------------------------------------------

    def rejoin(self, label: str) -> None:
        """See ``Reducer``."""
        self._identity.rename(label)
        _close(self._lanes)
        self._forget_snapshots()
        self.restart()

    def settle(self) -> None:
        """Add up the shards of all workers; then every gradient is the gradient of the global batch."""
        if self._reduced:
            return
        if len(self._terms.process_set.ranks) == 1:
            self._require_complete()
            totals = add_tensors(self._tensors, self._whole, dict(self._stack))
            for total, scale in zip(totals, self._scales(), strict=True):
                self._tensors.scale([total], scale)
            self._publish(totals, self._seen())
            return
        lane, plan = self._lane(), self._fingerprint()
        if not self._is_complete():
            self.refuse()
            self._require_complete()
        plans = lane.meet(self._point(), f"{self._rows} rows, plan {plan}", self._uncompared())
        if len(set(plans)) > 1:
            each = "; ".join(f"{lane.name(i)} has {plan}" for i, plan in enumerate(plans))
            raise MismatchError(
                f"the members of {lane.label} have shards of unlike batches or models: {each}. Build the same model on "
                "every rank, and give shards() the number of rows of the global batch"
            )
        if self._sums is None or plan != self._plan:
            self._plan, self._sums = plan, ShardSums(lane, self._tensors, self._whole, self._leaves(), self._scales())
        self._publish(self._sums.of(dict(self._stack)), self._sums.largest(self._seen()))

    def refuse(self) -> None:
        """Make the other workers raise in ``settle`` instead of waiting: this worker's shards are incomplete."""
        if len(self._terms.process_set.ranks) > 1:
            self._lane().meet(self._point(), REFUSED)

    def stepped(self) -> None:
        """See ``Reducer``."""
        if self.step_vote is not None:
            self.step_vote.applied()
        self._count_step()
        self.restart()
        end_step(self._terms.process_set, None if self.step_vote is None else self.step_vote.step)
        if self._lanes:
            self._lanes[0].stop_if_interrupted()

    def zeroed(self) -> None:
        """See ``Reducer``; nothing to do, because ``shards`` starts from zero."""

    def restart(self) -> None:
        """Forget the computed shards; buffers keep their values."""
        self._stack, self._reduced = [], False
        self._statistics, self._counters = [], []

    def abandon(self) -> None:
        """See ``Reducer``."""
        self._rewind()
        self.restart()

    def watch_again(self) -> None:
        """See ``Reducer``."""
        self.abandon()

    def _named(self) -> list[tuple[str, Param]]:
        return [(f"parameter {i}", p) for i, p in enumerate(self._trained())] if self._lanes else []

    def _meeting(self, snapshot: StepDigests | None) -> Meet:
        return partial(self._lanes[0].meet, snapshot=snapshot) if self._lanes else alone

    # -- shards -------------------------------------------------------------------------------------------------------

    def _own(self) -> Shards:
        process_set = self._terms.process_set
        self._pair()
        size, rank = len(process_set.ranks), process_set.rank()
        if size > self._whole.end:
            raise UsageError(
                f"{size} workers share {self._whole.end} virtual workers: some would have nothing to do. "
                f"Start at most {self._whole.end}, or take more virtual workers (from the beginning of a training)"
            )
        return block(rank or 0, size, self._whole.end)

    def _push_shard(self, number: int, weight: float) -> None:
        """Push a shard's gradients and buffers on the stack, and add up complete ranges of the tree."""
        leaf: list[T] = []
        for i, (param, grad) in enumerate(zip(self._taken, self._take_gradients(self._taken), strict=True)):
            self._used[i] |= grad is not None
            leaf.append(self._tensors.zeros_like(param) if grad is None else grad)
        statistics = [each.tensor for each in self._statistics]
        for i, digest in enumerate(self._tensors.digests(statistics)):
            self._changed[i] |= digest != self._statistics[i].digest
        leaf += map(self._tensors.clone, statistics)
        self._counted = [max(n, int(each.tensor)) for n, each in zip(self._counted, self._counters, strict=True)]
        if weight != 1.0:
            self._tensors.scale(leaf, weight)
        self._stack.append((Shards(number, number + 1), leaf))
        while len(self._stack) > 1:
            (first, left), (second, right) = self._stack[-2:]
            both = Shards(first.begin, second.end)
            if halves(both) != (first, second) or cover(self._whole, both) != [both]:
                break
            self._tensors.add(left, right)
            self._stack[-2:] = [(both, left)]

    def _kept(self, buffers: Sequence[T]) -> list[_Buffer]:
        digests = self._tensors.digests(buffers)
        return [_Buffer(each, self._tensors.clone(each), d) for each, d in zip(buffers, digests, strict=True)]

    def _seen(self) -> list[int]:
        """Flags of the gradients and of the changed buffers of this worker's shards, then the counters."""
        return [*map(int, self._used), *map(int, self._changed), *self._counted]

    def _publish(self, sums: list[T], seen: Sequence[int]) -> None:
        """Set gradients and buffers to ``sums``; ``seen``: maximum of ``_seen`` over the workers."""
        params, statistics = self._taken, self._statistics
        are_used, are_changed = seen[: len(params)], seen[len(params) : len(params) + len(statistics)]
        for param, gradient, is_used in zip(params, sums[: len(params)], are_used, strict=True):
            self._set_gradient(param, gradient if is_used else None)
        # A buffer that no shard changed (a mask) keeps its values: a mean would be rounded, and NaN for infinities.
        triples = zip(statistics, sums[len(params) :], are_changed, strict=True)
        moved = [(each.tensor, mean) for each, mean, is_changed in triples if is_changed]
        self._tensors.copy([tensor for tensor, _ in moved], [mean for _, mean in moved])
        for each, counted in zip(self._counters, seen[len(params) + len(statistics) :], strict=True):
            self._tensors.fill(each.tensor, counted)
        self._reduced = True

    def _lane(self) -> PlannedLane:
        """Lane of this session; the first call makes it, collectively."""
        session = current("the reduction of gradients")
        if not self._lanes or self._lanes[0].session is not session:
            self._pair()
            # The lane of an earlier session was closed with the session; the sums use memory of that lane's engine.
            self._lanes[:] = [PlannedLane(session, self._terms.process_set, self._identity.label)]
            self._sums = None
            self._forget_snapshots()  # new members count steps from 0
        return self._lanes[0]

    def _point(self) -> str:
        return f"step {self._step()}"

    def _is_complete(self) -> bool:
        return [shards for shards, _ in self._stack] == cover(self._whole, self._own())

    def _require_complete(self) -> None:
        if not self._is_complete():
            done = sum(shards.end - shards.begin for shards, _ in self._stack)
            own = self._own()
            raise UsageError(
                f"step() after {done} of this worker's {own.end - own.begin} shards: run through all of "
                "optimizer.shards(rows) before each step, with one backward() for each"
            )

    def _rewind(self) -> None:
        buffers = [*self._statistics, *self._counters]
        self._tensors.copy([each.tensor for each in buffers], [each.before for each in buffers])

    def _pair(self) -> None:
        """Pair with the other ranks' reducers, and agree on an order of parameters. Collective, once per session."""
        session, process_set = current("shards()"), self._terms.process_set
        if not takes_part(process_set, "shards()") or len(process_set.ranks) == 1:
            return
        if not self._identity.is_settled(session):
            self._identity.settle(session, self.params(), lambda _: False)

    def _trained(self) -> list[Param]:
        """Trainable parameters, in the agreed order."""
        return self._identity.arrange([param for param in self.params() if self._tensors.is_trained(param)])

    def _leaves(self) -> list[T]:
        return [*self._taken, *(each.tensor for each in self._statistics)]

    def _scales(self) -> list[float]:
        """Factors of the sums over the shards, one for each leaf."""
        mean = 1.0 / self._whole.end
        of_gradients = mean if self._terms.how.op is ReduceOp.AVERAGE else 1.0
        return [of_gradients] * len(self._taken) + [mean] * len(self._statistics)

    def _fingerprint(self) -> str:
        adapter = self._tensors.adapter
        shapes = [(adapter.array(each).dtype, adapter.shape(each)) for each in self._leaves()]
        return hashlib.blake2b(repr((shapes, self._terms.how, self._whole)).encode(), digest_size=4).hexdigest()

    @contextmanager
    def _stream(self, step: int, number: int) -> Iterator[None]:
        """Seed the global random generators for a shard, and restore their state at the end."""
        digest = hashlib.blake2b(f"{self._seed} {step} {number}".encode(), digest_size=8).digest()
        own = int.from_bytes(digest, "little") >> 1
        numpy = sys.modules.get("numpy")
        python_state, numpy_state = random.getstate(), numpy.random.get_state() if numpy else None
        with self._generators(own):
            random.seed(own)
            if numpy:
                numpy.random.seed(own % 2**32)
            open_shards.append(number)
            try:
                yield
            finally:  # also if the script breaks out of the loop over shards, which closes their generator
                open_shards.remove(number)
                random.setstate(python_state)
                if numpy:
                    numpy.random.set_state(numpy_state)


def _close(lanes: list[PlannedLane]) -> None:
    for lane in lanes:
        lane.close()
    lanes.clear()


def require_plain(terms: ReductionOptions, count: int, passes: int) -> None:
    """Raise ``UsageError`` for options that cannot be combined with ``count`` virtual workers."""
    if count < 1:
        raise UsageError(f"virtual_workers={count}: give at least 1")
    plain = ReductionOptions(how=Reduction(terms.how.op), process_set=terms.process_set)
    if terms != plain or passes != 1 or terms.how.op not in (ReduceOp.AVERAGE, ReduceOp.SUM):
        raise UsageError(
            "virtual workers add up gradients as they are: op is Average or Sum, without compression=, groups=, "
            "sparse_as_dense=, gradient_predivide_factor= and backward_passes_per_step= (shards() does that)"
        )
