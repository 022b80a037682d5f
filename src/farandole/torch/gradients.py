"""Reduction of the gradients of all ranks: buckets, unused parameters, sparse gradients.

    exchange = GradientExchange(lane, params, names, Terms())
    exchange.run("step 7")                  # now every param.grad is the average

A run *meets* (are all at the same step, and is everything as last time?), reduces each bucket, and writes what came of
it over the gradients. What the ranks have is compared in detail only where some rank says that it is not as last time.
"""

# Threads take turns with an exchange: the one on which a backward pass ends or ``step()`` is called, those of a lag,
# one of ``join()``. Whoever calls sees to that, and fields have no lock. Only during an overlapped pass there are two:
# its background thread has the lane and the buckets that have begun, until ``OverlappedPass.finish`` has joined it.
#
# ``_pass`` is a pass that has begun and that no run has taken. One that is there when the next begins has failed:
# nothing tells of that (see ``passes``), and the others have reduced a part of it.
#
# A check that may fail on this rank alone calls ``refuse`` before it raises: the other members are in a meeting or will
# come to it, and without this rank they would wait there until the stall shutdown.

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias, final

import torch

from farandole.collective import ReduceOp, Reduction
from farandole.errors import MismatchError, UsageError
from farandole.gradients.buckets import Piece, lay_out
from farandole.gradients.overlap import choose_overlap
from farandole.runtime.collectives.divergence import StepDigests
from farandole.runtime.collectives.planned import JOINED, REFUSED, PlannedLane
from farandole.runtime.session.process_sets import ProcessSet, global_process_set
from farandole.torch.adapter import adapter, verbs
from farandole.torch.compression import Compression, CompressorLike
from farandole.torch.memory import (
    LONE_BYTES,
    CompressedBucket,
    DirectBucket,
    GradientBucket,
    LoneGradient,
    as_bytes,
    dense,
    travelling,
)
from farandole.torch.observers import Observer
from farandole.torch.overlap import BEGIN, WAIT, OverlappedPass
from farandole.torch.reductions import sparse_allreduce_async
from farandole.torch.survey import Agreed, agree, code_of, dtype_of
from farandole.torch.targets import Gradients, GradientSpec, HandedOut, Targets, overlap

Weigh: TypeAlias = Callable[[], float]


def unweighted() -> float:
    """Weight of a rank where all count alike."""
    return 1.0


SAME, CHANGED = "same", "new"
RIDES = "+"


@final
@dataclass(frozen=True)
class Terms:
    """Reduction terms of a ``DistributedOptimizer``. ``groups`` maps ``id(param)`` to the number of its group."""

    how: Reduction = field(default_factory=Reduction)
    compression: CompressorLike = Compression.none
    groups: dict[int, int] = field(default_factory=dict)
    sparse_as_dense: bool = False
    process_set: ProcessSet = global_process_set


@final
class GradientExchange:
    """Reduces the gradients of ``params``, a list that is the same on every member. ``names`` are for the wire."""

    def __init__(self, lane: PlannedLane, params: Sequence[torch.Tensor], names: Sequence[str], terms: Terms) -> None:
        self.params = list(params)
        self.buckets: list[GradientBucket] = []
        self.lane, self._names, self._terms = lane, names, terms
        self._agreed: Agreed | None = None
        self._bucketed: list[bool] = []
        self._bucket_bytes = lane.session.settings.bucket_bytes
        self._during_backward = self._choose_overlap()
        self._digest = f"{len(self.params)} parameters, plan {self._fingerprint()}"
        self._pass: OverlappedPass | None = None
        self._weight = 1.0
        self._specs = [GradientSpec.of(param) for param in self.params]
        self._targets = Targets(self._specs)
        self._left = HandedOut() if terms.how.op is not ReduceOp.AVERAGE else None

    @property
    def overlaps(self) -> bool:
        """True if gradients are reduced while backward passes run, for which the first run must have made buckets."""
        return self._during_backward and self._agreed is not None

    def begin_pass(self, step: str, weigh: Weigh) -> OverlappedPass | None:
        """Begin a backward pass that will be reduced; if it overlaps, return whom to tell of complete gradients."""
        self._weight = weigh()
        self.refuse_failed_pass(step)
        if self.overlaps:
            self._require_shapes(step)
            gradients = [param.grad for param in self.params]
            waits = overlap(gradients) or self._was_cast() or self._without_stale(gradients) is not gradients
            self._pass = OverlappedPass(
                self.lane, self.buckets, self._point(step), self._terms.how, self._weight, waits
            )
        return self._pass

    def refuse_failed_pass(self, step: str) -> None:
        """Raise on every member if the pass that began last has not come to its end here."""
        failed, self._pass = self._pass, None  # now: ``finish`` may raise, and is not to be called again
        if failed is not None:
            failed.finish()  # as the others do, who will now learn that this rank is not where they are
            self.refuse(step)
            raise UsageError(
                "a backward pass failed half-way, when some of its gradients had been reduced: start again from a "
                "checkpoint, or set FARANDOLE_OVERLAP=step to be able to skip a batch"
            )

    def run(
        self,
        step: str,
        weigh: Weigh = unweighted,
        observer: Observer | None = None,
        snapshot: StepDigests | None = None,
    ) -> list[float] | None:
        """Replace every gradient by the reduced one. ``step`` says where in the program this is.

        ``weigh`` gives the factor of this rank's gradients, and is asked once. ``snapshot`` is of what this rank last
        stepped with, if that is to be compared. Returns the sums of the numbers of all members' observers; ``None``
        unless all of them had some.
        """
        overlapped = self._pass or self.begin_pass(step, weigh)
        if overlapped is not None:
            self._pass = None  # before ``finish``, which may raise: the next run would call it again
            if not overlapped.finish():
                overlapped = None
            elif overlapped.late is not None:
                self._refuse_late(step, overlapped.late)
        gradients, agreed = self._without_stale([param.grad for param in self.params]), self._agreed
        is_ordinary = self._targets.are_ordinary(gradients)
        if not is_ordinary and overlapped is None:
            self._require_shapes(step)
        if is_ordinary and agreed is not None and agreed.is_dense:
            survey = agreed.codes
        else:
            survey = list(map(code_of, self.params, gradients))
        state = SAME if agreed is not None and survey == agreed.codes else CHANGED
        riding = None if observer is None or agreed is None else observer.departs(self._weight)
        # Before anything is written: who is elsewhere in the program makes all raise, and gradients are as they were.
        states = self.lane.meet(self._point(step), state + (RIDES if riding else ""), snapshot)
        agreed = self._conclude(states, survey)
        if overlapped is not None:
            bucketed = self._finish(agreed)
        else:
            self._adopt(agreed)
            bucketed = self._bucketed
            self._reduce(gradients, gradients if is_ordinary else self._targets.of(gradients), agreed)
        self._reduce_others(gradients, agreed, bucketed)
        if self._left is not None:
            self._left.note(self.params)
        return self._sum(riding) if riding and all(state.endswith(RIDES) for state in states) else None

    def _refuse_late(self, step: str, late: torch.Tensor) -> None:
        """Raise on every member: what was added to the gradient of ``late`` would be lost."""
        self.refuse(step)
        [name] = (name for name, param in zip(self._names, self.params, strict=True) if param is late)
        raise UsageError(
            f"the gradient of {name} was reduced during the backward pass and added to afterwards, as reentrant "
            "checkpointing of two blocks that share a parameter does: call checkpoint(..., use_reentrant=False), or "
            "set FARANDOLE_OVERLAP=step"
        )

    def holds_any(self) -> bool:
        """True if some gradient is what a run has left."""
        return self._left is not None and self._left.any_of(self.params)

    def refuse(self, step: str) -> None:
        """Make the others, who are reducing, raise: this rank cannot."""
        self.lane.meet(self._point(step), REFUSED)

    def serve(self) -> int:
        """Contribute nothing to the others' runs until all members serve; for a rank that has joined. Counts them."""
        deferred, served = False, 0
        while set(states := self.lane.meet("", JOINED)) != {JOINED}:
            if WAIT in states:  # said where an overlapped pass begins: its buckets come after the meeting that ends it
                deferred = True
                continue
            served += 1
            overlaps = self.overlaps and not deferred
            deferred = False
            if BEGIN not in states:
                self._adopt(self._conclude(states, [0] * len(self.params)))
            if overlaps == (BEGIN in states):
                for i, bucket in enumerate(self.buckets):
                    bucket.clear()
                    self.lane.allreduce(f"bucket {i}", bucket.array, self._terms.how)
        return served

    def _was_cast(self) -> bool:
        """True if the pass that begins will leave gradients of other dtypes than the last."""
        pairs = zip(map(dtype_of, self.params), self._specs, strict=True)
        return any(dtype is not None and dtype is not spec.dtype for dtype, spec in pairs)

    def _point(self, step: str) -> str:
        return f"{step}, {self._digest}"

    def _require_shapes(self, step: str) -> None:
        """Raise on every member if a parameter has got another shape here, which its place in a bucket has not."""
        for name, param, spec in zip(self._names, self.params, self._specs, strict=True):
            if param.shape != spec.shape:
                self.refuse(step)
                raise UsageError(
                    f"{name} has got the shape {tuple(param.shape)}, it was {tuple(spec.shape)} when its gradient was "
                    "first reduced: make a new DistributedOptimizer after replacing param.data, on every rank"
                )

    def _without_stale(self, gradients: Gradients) -> Gradients:
        """``gradients``, or what is left without those that a run has left and no pass has touched since."""
        return gradients if self._left is None else self._left.without_stale(self.params, gradients)

    def _finish(self, agreed: Agreed) -> list[bool]:
        """After an overlapped pass; says which gradients were in buckets."""
        dtypes, bucketed = self._dtypes(), self._bucketed
        now = agreed.dtypes(dtypes)
        if now != dtypes:
            [name, *_] = (name for name, a, b in zip(self._names, now, dtypes, strict=True) if a is not b)
            raise UsageError(
                f"the dtype of the gradient of {name} changed during a backward pass that reduces gradients as they "
                "come: cast between passes, or set FARANDOLE_OVERLAP=step"
            )
        for bucket in self.buckets:  # not sooner: the meeting after the pass says which gradients some member has
            bucket.publish(agreed)
        self._adopt(agreed)  # after the old buckets have given back what they hold
        return bucketed

    def _reduce(self, gradients: Gradients, targets: Gradients, agreed: Agreed) -> None:
        """Reduce what is in buckets."""
        if targets is not gradients:  # what shares memory with a target is read before that is written
            pairs = zip(gradients, targets, strict=True)
            gradients = [g if g is None or target is not None else dense(g).clone() for g, target in pairs]
        for i, bucket in enumerate(self.buckets):
            with self.lane.phase(f"bucket {i}", "copy", bucket.nbytes):
                taken = [gradients[piece] for piece in bucket.pieces]
                bucket.fill(taken, taken if targets is gradients else [targets[piece] for piece in bucket.pieces])
                if self._weight != 1.0:
                    bucket.weigh(self._weight)
            self.lane.allreduce(f"bucket {i}", bucket.array, self._terms.how)
            bucket.publish(agreed)

    def _conclude(self, states: Sequence[str], mine: list[int]) -> Agreed:
        """Return the agreement of the members: the last one or, if some member says that its own changed, a new one."""
        if self._agreed is not None and (
            states.count(SAME) == len(states) or not any(state.startswith(CHANGED) for state in states)
        ):
            return self._agreed
        return agree(self.lane, mine, self._names)

    def _dtypes(self) -> list[torch.dtype]:
        return [spec.dtype for spec in self._specs]

    def _adopt(self, agreed: Agreed) -> None:
        """Make buckets for what is dense now. Collective where that changed, or a dtype."""
        if agreed is self._agreed:
            return
        known = self._bucketed or [True] * len(agreed.kinds)
        bucketed = [
            before if kind == 0 else kind == 1 or self._terms.sparse_as_dense
            for kind, before in zip(agreed.kinds, known, strict=True)
        ]
        self._agreed, dtypes = agreed, self._dtypes()
        now = agreed.dtypes(dtypes)
        if bucketed == self._bucketed and now == dtypes:
            return
        self._specs = [spec._replace(dtype=dtype) for spec, dtype in zip(self._specs, now, strict=True)]
        self._targets = Targets(self._specs)
        pieces = [
            self._piece(param, spec) if is_dense else None
            for param, spec, is_dense in zip(self.params, self._specs, bucketed, strict=True)
        ]
        self.buckets = self._make_buckets(pieces)
        self._bucketed = bucketed

    def _make_buckets(self, pieces: Sequence[Piece | None]) -> list[GradientBucket]:
        params, specs, compression = self.params, self._specs, self._terms.compression
        plain = compression is Compression.none
        layout = lay_out(pieces, self._bucket_bytes, min(LONE_BYTES, self._bucket_bytes) if plain else math.inf)
        memory = self.lane.allocate(layout.nbytes)
        content = as_bytes(memory)
        if not plain:
            return [CompressedBucket(b, params, specs, content, memory, compression) for b in layout.buckets]
        return [
            LoneGradient(b, params, specs) if b.lone else DirectBucket(b, params, specs, content, memory)
            for b in layout.buckets
        ]

    def _piece(self, param: torch.Tensor, spec: GradientSpec) -> Piece:
        array = adapter.array(travelling(spec, self._terms.compression))
        return Piece(array.count, array.dtype, array.device, self._terms.groups.get(id(param), -1))

    def _sum(self, riding: Sequence[float]) -> list[float]:
        numbers = torch.tensor(riding, dtype=torch.float64)
        self.lane.allreduce("riders", adapter.array(numbers), Reduction(ReduceOp.SUM))
        sums: list[float] = numbers.tolist()
        return sums

    def _reduce_others(self, gradients: Gradients, agreed: Agreed, bucketed: Sequence[bool]) -> None:
        """Reduce what was in no bucket, through the negotiated lane: what is sparse, and what just ceased to be so."""
        if all(bucketed):
            return
        terms = self._terms
        pending: list[tuple[torch.Tensor, Callable[[], torch.Tensor]]] = []
        every = zip(self.params, gradients, self._specs, self._names, agreed.kinds, bucketed, strict=True)
        for param, given, spec, name, kind, done in every:
            if kind == 1 and not done:
                grad = spec.empty().zero_() if given is None else self._weighed(given)
                mean = verbs.allreduce([grad], name, terms.how, terms.process_set).then(lambda found: found[0])
                pending.append((param, mean.begin().wait))
            elif kind > 1 and not done:
                grad = self._weighed(_as_sparse(spec, given, kind - 1))
                pending.append((param, sparse_allreduce_async(grad, name, terms.how.op, terms.process_set)))
        error: MismatchError | None = None
        for param, finish in pending:
            try:
                param.grad = finish()
            except MismatchError as found:  # the others have to be waited for: their names come again
                error = error or found
        if error is not None:
            raise error

    def _weighed(self, grad: torch.Tensor) -> torch.Tensor:
        return grad if self._weight == 1.0 else grad * self._weight

    def _choose_overlap(self) -> bool:
        """True to reduce during backward passes; the same on every member, or their fingerprints would differ."""
        nbytes = sum(p.numel() * p.element_size() for p in self.params)
        choice, why = choose_overlap(self.lane.session.settings.overlap, nbytes, self.lane.crosses_hosts)
        self.lane.note(f"gradients are reduced {'during' if choice == 'backward' else 'after'} backward passes: {why}")
        return choice == "backward"

    def _fingerprint(self) -> str:
        """Digest that two members share if their buckets are laid out and reduced alike."""
        terms = self._terms
        everything = [
            (name, str(p.dtype), tuple(p.shape), p.stride(), terms.groups.get(id(p), -1))
            for name, p in zip(self._names, self.params, strict=True)
        ]
        compression = getattr(terms.compression, "__name__", "")
        also = (terms.how, compression, terms.sparse_as_dense, self._bucket_bytes, self._during_backward)
        return hashlib.blake2b(repr((everything, also)).encode(), digest_size=4).hexdigest()


def _as_sparse(spec: GradientSpec, grad: torch.Tensor | None, sparse_dims: int) -> torch.Tensor:
    if grad is None:
        indices = torch.empty(sparse_dims, 0, dtype=torch.int64)
        values = torch.empty(0, *spec.shape[sparse_dims:], dtype=spec.dtype)
        return torch.sparse_coo_tensor(indices, values, spec.shape, is_coalesced=True, check_invariants=False)
    return grad if grad.is_sparse else grad.to_sparse(sparse_dims)
