"""Virtual workers: the same bits after every step, whatever the number of workers.

optimizer = hvd.DistributedOptimizer(optimizer, virtual_workers=hvd.VirtualWorkers(8, model))
for x, y in global_batches:
    for shard in optimizer.shards(len(x)):
        loss_of(model(x[shard.rows]), y[shard.rows]).backward()
    optimizer.step()

The global batch is cut into as many shards as there are virtual workers. Each shard has its own random stream and
starts from the same batch-norm statistics; what the shards give is added up in one order. How many workers share the
shards, and where they run, then changes who computes and nothing of what is computed.
"""

from __future__ import annotations

import hashlib
import random
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, final

import torch

from farandole.collective import ReduceOp, Reduction
from farandole.elastic.worker.step_vote import Meet, alone
from farandole.errors import UsageError
from farandole.gradients.shard_tree import Shards, block, cover, halves
from farandole.runtime.collectives.divergence import StepDigests
from farandole.runtime.collectives.planned import REFUSED, PlannedLane
from farandole.runtime.session.init import current
from farandole.torch.gradients import Terms
from farandole.torch.identity import Identity
from farandole.torch.reducing import Closure, Reducer
from farandole.torch.shard_sums import ShardSums, add_tensors

STEP = "virtual_step"
"""The key in the optimizer's first parameter group that counts steps: it travels with checkpoints."""


@final
@dataclass(frozen=True)
class VirtualWorkers:
    """Number of shards of every global batch, whatever the number of workers (at most as many).

    >>> hvd.VirtualWorkers(8, model, seed=1)

    ``model``: the module whose floating-point buffers (the running statistics of batch norm) belong to the shards too:
    after a step they are the mean over the shards. ``seed`` is that of the shards' random streams (torch's, Python's
    and, where it is imported, NumPy's global generators).
    """

    count: int
    model: torch.nn.Module | None = None
    seed: int = 0


class Shard(NamedTuple):
    """One shard: its number, and its rows of the global batch."""

    number: int
    rows: slice


@final
class _Buffer:
    """A buffer of the model, and what it was when the step began."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor, self.before = tensor, tensor.clone()


@final
class ShardReducer(Reducer):
    """Does for an optimizer with virtual workers what ``GradientReducer`` does for others: gradients of all shards."""

    def __init__(
        self, groups: Callable[[], list[dict[str, Any]]], identity: Identity, terms: Terms, virtual: VirtualWorkers
    ) -> None:
        super().__init__(terms)
        self._groups, self._identity, self._virtual = groups, identity, virtual
        self._whole = Shards(0, virtual.count)
        self._lanes: list[PlannedLane] = []
        """The one that is used now, if any; closed when the optimizer is gone."""
        # The finalizer has this very list, not the reducer, which it would keep alive: so it is changed in place.
        # Not at exit: shutdown() closes the engines.
        weakref.finalize(self, _close, self._lanes).atexit = False
        self._sums: ShardSums | None = None
        self._plan = ""
        self._stack: list[tuple[Shards, list[torch.Tensor]]] = []
        self._used: list[bool] = []
        self._counted: list[int] = []
        self._statistics: list[_Buffer] = []
        """Floating-point buffers of the model: their new values are means over the shards."""
        self._counters: list[_Buffer] = []
        """Whole numbers: every shard leaves the same ones."""
        self._reduced = False

    def shards(self, rows: int) -> Iterator[Shard]:
        """Iterate over this worker's shards of ``rows`` rows; gradients belong to the shard that was given out last."""
        own = self._own()
        self.abandon()
        buffers = [] if self._virtual.model is None else [_Buffer(b) for b in self._virtual.model.buffers()]
        self._statistics = [each for each in buffers if each.tensor.is_floating_point()]
        self._counters = [each for each in buffers if each.tensor.dtype is torch.int64 and not each.tensor.dim()]
        self._counted = [0] * len(self._counters)
        params = self._params()
        self._used = [False] * len(params)
        for param in params:
            param.grad = None
        step = self._groups()[0].get(STEP, 0)
        for number in range(own.begin, own.end):
            part = block(number, self._virtual.count, rows)
            self._rewind()
            with _stream(self._virtual.seed, step, number):
                if part.end > part.begin:
                    yield Shard(number, slice(part.begin, part.end))
            self._counted = [max(n, int(each.tensor)) for n, each in zip(self._counted, self._counters, strict=True)]
            self._take(number, params, (part.end - part.begin) * self._virtual.count / rows)

    # -- what the optimizer calls -------------------------------------------------------------------------------------

    def rejoin(self, label: str) -> None:
        """See ``Reducer``. A step that was not applied never was."""
        self._identity.rename(label)
        _close(self._lanes)
        self._forget_snapshots()
        self.abandon()

    def settle(self) -> None:
        """Add up over all workers' shards; afterwards every gradient is that of the global batch."""
        if self._reduced:
            return
        session, process_set = current("the reduction of gradients"), self._terms.process_set
        if len(process_set.ranks) == 1:
            self._require_complete()
            totals = add_tensors(self._whole, dict(self._stack))
            for total, scale in zip(totals, self._scales(), strict=True):
                total.mul_(scale)
            self._publish(totals, [*map(int, self._used), *self._counted])
            return
        if not self._lanes or self._lanes[0].session is not session:
            self._pair()
            # A lane of an earlier session was closed with it; the sums have memory of that lane's engine.
            self._lanes[:], self._sums = [PlannedLane(session, process_set, self._identity.label)], None
        lane, plan = self._lanes[0], self._fingerprint()
        point = f"step {self._groups()[0].get(STEP, 0)}, plan {plan}"
        if not self._is_complete():
            lane.meet(point, REFUSED)  # the others are in this meeting: they raise, too, instead of waiting
            self._require_complete()
        lane.meet(point, "ready", self._uncompared())
        if self._sums is None or plan != self._plan:
            self._plan, self._sums = plan, ShardSums(lane, self._whole, self._leaves(), self._scales())
        self._publish(self._sums.of(dict(self._stack)), self._sums.largest([*map(int, self._used), *self._counted]))

    def stepped(self) -> None:
        """The gradients have been applied."""
        if self.step_vote is not None:
            self.step_vote.applied()
        group = self._groups()[0]
        group[STEP] = group.get(STEP, 0) + 1
        self._forget()

    def zeroed(self) -> None:
        """Nothing to do: ``shards`` begins anew."""

    def restart(self) -> None:
        """Forget the shards that were computed."""
        self._stack, self._reduced = [], False

    def abandon(self) -> None:
        """Go back to before the step, which will not be applied."""
        self._rewind()
        self._forget()

    def wrap(self, closure: Closure) -> Closure:
        """Raise ``UsageError``: there are no closures with virtual workers."""
        raise UsageError("step(closure) evaluates the loss as it likes: virtual workers need shards(), and step()")

    def watch_again(self) -> None:
        """There are more parameters than before."""
        self.restart()

    def _named(self) -> list[tuple[str, torch.Tensor]]:
        return [(f"parameter {i}", p) for i, p in enumerate(self._params())] if self._lanes else []

    def _meet(self, snapshot: StepDigests | None) -> Meet:
        return partial(self._lanes[0].meet, snapshot=snapshot) if self._lanes else alone

    # -- shards -------------------------------------------------------------------------------------------------------

    def _own(self) -> Shards:
        process_set = self._terms.process_set
        self._pair()
        size, rank = len(process_set.ranks), process_set.rank()
        if size > self._virtual.count:
            raise UsageError(
                f"{size} workers share {self._virtual.count} virtual workers: some would have nothing to do. "
                f"Start at most {self._virtual.count}, or take more virtual workers (from the beginning of a training)"
            )
        return block(rank or 0, size, self._virtual.count)

    def _take(self, number: int, params: Sequence[torch.Tensor], weight: float) -> None:
        """Put what a shard has given on the stack, and add up what is complete there."""
        leaf: list[torch.Tensor] = []
        for i, param in enumerate(params):
            grad, param.grad = param.grad, None
            if grad is not None and grad.layout is not torch.strided:
                raise UsageError("virtual workers take dense gradients: use nn.Embedding(..., sparse=False)")
            self._used[i] |= grad is not None
            leaf.append(torch.zeros_like(param) if grad is None else grad.detach())
        leaf += [each.tensor.clone() for each in self._statistics]
        if weight != 1.0:
            torch._foreach_mul_(leaf, weight)
        self._stack.append((Shards(number, number + 1), leaf))
        while len(self._stack) > 1:
            (first, left), (second, right) = self._stack[-2:]
            both = Shards(first.begin, second.end)
            if halves(both) != (first, second) or cover(self._whole, both) != [both]:
                break
            torch._foreach_add_(left, right)
            self._stack[-2:] = [(both, left)]

    def _publish(self, sums: list[torch.Tensor], largest: Sequence[int]) -> None:
        """Make them the gradients, and the buffers' new values; ``largest`` says what was used, and the counters."""
        params = self._params()
        gradients, means = sums[: len(params)], sums[len(params) :]
        for param, gradient, is_used in zip(params, gradients, largest, strict=False):
            param.grad = gradient if is_used else None
        for each, total in zip(self._statistics, means, strict=True):
            each.tensor.copy_(total)
        for each, counted in zip(self._counters, largest[len(params) :], strict=True):
            each.tensor.fill_(counted)
        self._reduced = True

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
        for each in (*self._statistics, *self._counters):
            each.tensor.copy_(each.before)

    def _forget(self) -> None:
        self._statistics, self._counters = [], []
        self.restart()

    def _pair(self) -> None:
        """Find the others' reducers that belong to this one, and one order of the parameters. Collective, once."""
        session, process_set = current("shards()"), self._terms.process_set
        if process_set.included() and len(process_set.ranks) > 1:
            params = [p for group in self._groups() for p in group["params"]]
            if not self._identity.is_settled(session):
                self._identity.settle(session, params, lambda _: False)

    def _params(self) -> list[torch.Tensor]:
        """Trained parameters, in the order agreed on."""
        params = [p for group in self._groups() for p in group["params"] if p.requires_grad]
        return self._identity.arrange(params)

    def _leaves(self) -> list[torch.Tensor]:
        return [*self._params(), *(each.tensor for each in self._statistics)]

    def _scales(self) -> list[float]:
        """Factors of the sums over the shards, one for each leaf."""
        mean = 1.0 / self._virtual.count
        of_gradients = mean if self._terms.how.op is ReduceOp.AVERAGE else 1.0
        return [of_gradients] * len(self._params()) + [mean] * len(self._statistics)

    def _fingerprint(self) -> str:
        shapes = [(str(each.dtype), tuple(each.shape)) for each in self._leaves()]
        return hashlib.blake2b(repr((shapes, self._terms.how, self._whole)).encode(), digest_size=4).hexdigest()


def _close(lanes: list[PlannedLane]) -> None:
    for lane in lanes:
        lane.close()
    lanes.clear()


def require_plain(terms: Terms, virtual: VirtualWorkers, passes: int) -> None:
    """Raise ``UsageError`` for what cannot be had together with virtual workers."""
    if virtual.count < 1:
        raise UsageError(f"virtual_workers={virtual.count}: give at least 1")
    plain = Terms(how=Reduction(terms.how.op), process_set=terms.process_set)
    if terms != plain or passes != 1 or terms.how.op not in (ReduceOp.AVERAGE, ReduceOp.SUM):
        raise UsageError(
            "virtual workers add up gradients as they are: op is Average or Sum, without compression=, groups=, "
            "sparse_as_dense=, gradient_predivide_factor= and backward_passes_per_step= (shards() does that)"
        )


@contextmanager
def _stream(seed: int, step: int, number: int) -> Iterator[None]:
    """Make the global random generators those of a shard inside; afterwards they go on where they were."""
    digest = hashlib.blake2b(f"{seed} {step} {number}".encode(), digest_size=8).digest()
    own = int.from_bytes(digest, "little") >> 1
    numpy = sys.modules.get("numpy")
    python_state, numpy_state = random.getstate(), numpy.random.get_state() if numpy else None
    with torch.random.fork_rng():
        torch.default_generator.manual_seed(own)
        if torch.cuda.is_initialized():  # otherwise torch.manual_seed would note a stack trace, every time
            torch.cuda.manual_seed_all(own)
        random.seed(own)
        if numpy:
            numpy.random.seed(own % 2**32)
        try:
            yield
        finally:  # also where the script leaves the loop over shards, and their generator is closed
            random.setstate(python_state)
            if numpy:
                numpy.random.set_state(numpy_state)
