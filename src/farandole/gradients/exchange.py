"""Reduction of the gradients of all ranks: buckets, unused parameters, sparse gradients.

    exchange = GradientExchange(lane, parameters, names, ReductionOptions())
    exchange.reduce_gradients("step 7")     # now every gradient is the average

A run first *meets*: a barrier where members check that all are at the same step, and report whether their gradients
changed in kind. It then reduces each bucket into the gradients. Only after such a change members compare the details.
"""

# Threads. One thread at a time uses an exchange: the thread that ends a backward pass or calls ``step()``, a thread of
# a lag, or a thread of ``join()``. Callers ensure this, so fields have no lock. Only an overlapped pass has two: its
# background thread owns the lane and the buckets that have begun, until ``OverlappedPass.finish`` has joined it.
#
# ``_pass`` is a pass that has begun and whose run has not started. If ``_pass`` is set when the next pass begins, that
# pass failed: no framework reports this (see ``passes``), and the other members have reduced a part of the pass.
#
# A check that may fail on this rank alone calls ``refuse`` before it raises: the other members are in a meeting or will
# enter it, and without this rank they would wait there until the stall shutdown.

from __future__ import annotations

import hashlib
import math
import time
from array import array
from collections.abc import Callable, Sequence
from typing import Generic, TypeAlias, final

from farandole import events
from farandole.collective import Array, ReduceOp, Reduction
from farandole.errors import MismatchError, UsageError
from farandole.gradients.agreement import Agreed, agree
from farandole.gradients.buckets import lay_out
from farandole.gradients.observers import Observer
from farandole.gradients.overlap import BEGIN, WAIT, OverlappedPass, choose_overlap
from farandole.gradients.parameters import GradientBucket, Parameters
from farandole.gradients.reduction_options import ReductionOptions
from farandole.gradients.tensors import Gradients, Param, T
from farandole.runtime.collectives.divergence import StepDigests
from farandole.runtime.collectives.planned import JOINED, REFUSED, PlannedLane

LONE_BYTES = 2**20
"""Gradients of at least this size are reduced in their own tensors: staging them costs more than it saves."""

Weigh: TypeAlias = Callable[[], float]


def unweighted() -> float:
    """Weight of a rank if all ranks count alike."""
    return 1.0


SAME, CHANGED = "same", "new"
RIDES = "+"


@final
class GradientExchange(Generic[T]):
    """Reduction of the gradients of ``parameters``, the same on every member. Collectives and errors use ``names``."""

    def __init__(
        self, lane: PlannedLane, parameters: Parameters[T], names: Sequence[str], terms: ReductionOptions
    ) -> None:
        self.buckets: list[GradientBucket[T]] = []
        self.lane, self._parameters, self._names, self._terms = lane, parameters, names, terms
        self.params: Sequence[Param] = parameters.params
        """The parameters, in their order on every member."""
        self.overlaps = False
        """True if gradients are reduced during backward passes; false until the first run has made the buckets."""
        self._agreed: Agreed | None = None
        self._bucketed: list[bool] = []
        self._bucket_bytes = lane.session.settings.bucket_bytes
        self._during_backward = self._choose_overlap()
        self._digest = f"{len(names)} parameters, plan {self._fingerprint()}"
        self._pass: OverlappedPass[T] | None = None
        self._weight = 1.0
        self._is_idempotent = terms.how.op is ReduceOp.AVERAGE

    def begin_pass(self, step: str, weigh: Weigh) -> OverlappedPass[T] | None:
        """Begin a backward pass; if its reduction overlaps, return the pass, to call ``arrived`` on."""
        self._weight = weigh()
        if self._pass is not None:
            self.refuse_failed_pass(step)
        if self.overlaps:
            self._require_shapes(step)
            waits = not self._parameters.can_overlap()
            self._pass = OverlappedPass(
                self.lane,
                self.buckets,
                self._point(step),
                self._terms.how,
                self._weight,
                waits,
                self._parameters.tensors,
            )
        return self._pass

    def refuse_failed_pass(self, step: str) -> None:
        """Raise on every member if the last pass began on this rank but did not end."""
        failed, self._pass = self._pass, None  # first: ``finish`` may raise, and must not be called again
        if failed is not None:
            failed.finish()  # as on the other members; ``refuse`` then reports that this rank failed
            self.refuse(step)
            raise UsageError(
                "a backward pass failed half-way, or step() in a hook came before its end, when some of its gradients "
                "had been reduced: start again from a checkpoint, or set FARANDOLE_OVERLAP=step to be able to do so"
            )

    def reduce_gradients(
        self,
        step: str,
        weigh: Weigh = unweighted,
        observer: Observer | None = None,
        snapshot: StepDigests | None = None,
    ) -> list[float] | None:
        """Replace every gradient by the reduced one. ``step`` names this point of the program.

        ``weigh`` returns the factor of this rank's gradients and is called once. ``snapshot``: digests of this rank's
        last step, if they are to be compared. Returns the sums of the numbers of all members' observers; ``None``
        unless every member's observer had some.
        """
        overlapped = self._pass or self.begin_pass(step, weigh)
        if overlapped is not None:
            self._pass = None  # before ``finish``, which may raise; otherwise the next run would call it again
            if not overlapped.finish():
                overlapped = None
            elif overlapped.spoiled is not None:
                self._refuse_spoiled(step, *overlapped.spoiled)
        parameters, agreed = self._parameters, self._agreed
        present = parameters.present()
        gradients = present if self._is_idempotent else parameters.without_stale(present)  # average: none is stale
        is_ordinary = parameters.are_ordinary(gradients)
        if not is_ordinary and overlapped is None:
            self._require_shapes(step)
        survey = agreed.codes if is_ordinary and agreed is not None and agreed.is_dense else parameters.codes(gradients)
        state = SAME if agreed is not None and survey == agreed.codes else CHANGED
        riding = None if observer is None or agreed is None else observer.departs(self._weight)
        # Before anything is written: if a member is at another point, all members raise with unchanged gradients.
        states = self.lane.meet(self._point(step), state + (RIDES if riding else ""), snapshot)
        if agreed is None or states.count(SAME) != len(states):
            agreed = self._conclude(states, survey)
        if overlapped is not None:
            bucketed = self._finish(agreed)
        else:
            if agreed is not self._agreed:
                self._adopt(agreed)
            bucketed = self._bucketed
            self._reduce(gradients, gradients if is_ordinary else parameters.targets(gradients), agreed)
        if not all(bucketed):
            self._reduce_others(gradients, agreed, bucketed)
        if not self._is_idempotent:
            parameters.note()
        return self._sum(riding) if riding and all(state.endswith(RIDES) for state in states) else None

    def _refuse_spoiled(self, step: str, spoiled: Param, how: str) -> None:
        """Raise on every member: which version of the gradient was reduced is unknown."""
        self.refuse(step)
        [name] = (name for name, param in zip(self._names, self.params, strict=True) if param is spoiled)
        raise UsageError(
            f"the gradient of {name} was reduced during the backward pass and {how}, or set FARANDOLE_OVERLAP=step"
        )

    def holds_any(self) -> bool:
        """True if some gradient is still the result of an earlier run."""
        return not self._is_idempotent and self._parameters.holds_any()

    def refuse(self, step: str) -> None:
        """Make the other members raise in their reduction, because this rank cannot take part."""
        self.lane.meet(self._point(step), REFUSED)

    def serve(self) -> int:
        """Contribute zeros to others' runs until all members serve; return their number. For a rank in ``join()``."""
        deferred, served = False, 0
        while set(states := self.lane.meet("", JOINED)) != {JOINED}:
            if WAIT in states:  # from the beginning of an overlapped pass: the buckets follow the meeting at its end
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

    def _point(self, step: str) -> str:
        return f"{step}, {self._digest}"

    def _require_shapes(self, step: str) -> None:
        """Raise on every member if a parameter changed its shape here: its place in a bucket has the old one."""
        if found := self._parameters.reshaped():
            index, shapes = found
            self.refuse(step)
            raise UsageError(
                f"{self._names[index]} has got {shapes} when its gradient was first reduced: make a new "
                "DistributedOptimizer after replacing param.data, on every rank"
            )

    def _finish(self, agreed: Agreed) -> list[bool]:
        """Publish the buckets after an overlapped pass; return which gradients were in buckets."""
        dtypes, bucketed = self._parameters.dtypes, self._bucketed
        now = agreed.dtypes(dtypes)
        if now != list(dtypes):
            [name, *_] = (name for name, a, b in zip(self._names, now, dtypes, strict=True) if a is not b)
            raise UsageError(
                f"the dtype of the gradient of {name} changed during a backward pass that reduces gradients as they "
                "come: cast between passes, or set FARANDOLE_OVERLAP=step"
            )
        for bucket in self.buckets:  # not sooner: only the meeting after the pass tells which gradients exist
            bucket.publish(agreed)
        self._adopt(agreed)  # after the old buckets have published their gradients
        return bucketed

    def _reduce(self, gradients: Gradients[T], targets: Gradients[T], agreed: Agreed) -> None:
        """Reduce the gradients that are in buckets."""
        if targets is not gradients:  # a gradient that shares memory with a target is read before the target is written
            gradients = self._parameters.kept_apart(gradients, targets)
        for i, bucket in enumerate(self.buckets):
            begin_s = time.monotonic()
            taken = list(map(gradients.__getitem__, bucket.pieces))
            bucket.fill(taken, taken if targets is gradients else list(map(targets.__getitem__, bucket.pieces)))
            if self._weight != 1.0:
                bucket.weigh(self._weight)
            if events.subscribers:
                self.lane.phase(f"bucket {i}", "copy", begin_s, bucket.nbytes)
            self.lane.allreduce(f"bucket {i}", bucket.array, self._terms.how)
            bucket.publish(agreed)

    def _conclude(self, states: Sequence[str], mine: list[int]) -> Agreed:
        """Return the members' agreement: the last one or, if some member reports a change, a new one."""
        if self._agreed is not None and not any(state.startswith(CHANGED) for state in states):
            return self._agreed
        return agree(self.lane, mine, self._names)

    def _adopt(self, agreed: Agreed) -> None:
        """Make buckets for the dense gradients. Collective if the dense set or a dtype changed."""
        if agreed is self._agreed:
            return
        known = self._bucketed or [True] * len(agreed.kinds)
        bucketed = [
            before if kind == 0 else kind == 1 or self._terms.sparse_as_dense
            for kind, before in zip(agreed.kinds, known, strict=True)
        ]
        self._agreed, self.overlaps, dtypes = agreed, self._during_backward, self._parameters.dtypes
        now = agreed.dtypes(dtypes)
        if bucketed == self._bucketed and now == list(dtypes):
            return
        self._parameters.adopt(now)
        self.buckets = self._make_buckets(bucketed)
        self._bucketed = bucketed

    def _make_buckets(self, bucketed: Sequence[bool]) -> list[GradientBucket[T]]:
        pieces = [self._parameters.piece(i) if is_dense else None for i, is_dense in enumerate(bucketed)]
        lone_bytes = min(LONE_BYTES, self._bucket_bytes) if self._terms.compression is None else math.inf
        layout = lay_out(pieces, self._bucket_bytes, lone_bytes)
        return self._parameters.buckets(layout, self.lane.allocate(layout.nbytes))

    def _sum(self, riding: Sequence[float]) -> list[float]:
        numbers = array("d", riding)
        self.lane.allreduce("riders", Array.of_numbers(numbers), Reduction(ReduceOp.SUM))
        return numbers.tolist()

    def _reduce_others(self, gradients: Gradients[T], agreed: Agreed, bucketed: Sequence[bool]) -> None:
        """Reduce gradients outside buckets through the negotiated lane: sparse, or sparse until now."""
        pending: list[Callable[[], object]] = []
        every = zip(gradients, self._names, agreed.kinds, bucketed, strict=True)
        for i, (given, name, kind, done) in enumerate(every):
            if kind and not done:
                pending.append(self._parameters.begin_alone(i, given, kind, name, self._weight))
        error: MismatchError | None = None
        for finish in pending:
            try:
                finish()
            except MismatchError as found:  # still wait for the other collectives: the next step reuses their names
                error = error or found
        if error is not None:
            raise error

    def _choose_overlap(self) -> bool:
        """True to reduce during backward passes. All members must choose alike, or their fingerprints differ."""
        spec = self._parameters.tensors.adapter.spec
        nbytes = sum(spec(param).nbytes for param in self.params)
        choice, why = choose_overlap(self.lane.session.settings.overlap, nbytes, self.lane.crosses_hosts)
        self.lane.note(f"gradients are reduced {'during' if choice == 'backward' else 'after'} backward passes: {why}")
        return choice == "backward"

    def _fingerprint(self) -> str:
        """Digest that is equal on two members if they lay out and reduce buckets alike."""
        terms = self._terms
        everything = list(zip(self._names, self._parameters.described(), self._parameters.groups, strict=True))
        compression = getattr(terms.compression, "__name__", "")
        also = (terms.how, compression, terms.sparse_as_dense, self._bucket_bytes, self._during_backward)
        return hashlib.blake2b(repr((everything, also)).encode(), digest_size=4).hexdigest()
