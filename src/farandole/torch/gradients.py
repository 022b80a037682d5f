"""How the gradients of all ranks become one: buckets, unused parameters, sparse gradients.

    exchange = GradientExchange(lane, params, names, Terms())
    exchange.run("step 7")                  # now every param.grad is the average

A run *meets* (are all at the same step, and is everything as last time?), reduces each bucket, and makes the buckets'
contents the gradients. What the ranks have is compared in detail only where some rank says that it is not as last time.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias, final

import torch

from farandole.collective import ReduceOp
from farandole.errors import UsageError
from farandole.gradients.buckets import Piece, lay_out
from farandole.gradients.overlap import choose_overlap
from farandole.runtime.collectives.planned import JOINED, REFUSED, PlannedLane
from farandole.runtime.lanes.reduction import Reduction
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
    travelling,
)
from farandole.torch.overlap import BEGIN, OverlappedPass
from farandole.torch.reductions import sparse_allreduce_async
from farandole.torch.riders import Rider

Codes: TypeAlias = list[int]
"""Per parameter: 0 no gradient, 1 a dense one, 1 + d a sparse one with d sparse dimensions."""

Weigh: TypeAlias = Callable[[], float]


def unweighted() -> float:
    """Every rank counts alike."""
    return 1.0


SAME, CHANGED = "same", "changed"
RIDES = "+sums"


@final
@dataclass(frozen=True)
class Terms:
    """What a user asked of a ``DistributedOptimizer``. ``groups`` maps ``id(param)`` to the number of its group."""

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
        self._codes: Codes | None = None
        self._bucketed: list[bool] = []
        self._bucket_bytes = lane.session.settings.bucket_bytes
        self._during_backward = self._choose_overlap()
        self._digest = f"{len(self.params)} parameters, plan {self._fingerprint()}"
        self._pass: OverlappedPass | None = None
        self._weight = 1.0

    @property
    def overlaps(self) -> bool:
        """True if gradients are reduced while backward passes run, for which the first run must have made buckets."""
        return self._during_backward and self._codes is not None

    def begin_pass(self, step: str, weigh: Weigh) -> OverlappedPass | None:
        """A backward pass begins whose gradients will be reduced; returns who wants to know when each is complete."""
        self._weight = weigh()
        failed, self._pass = self._pass, None
        if failed is not None:
            failed.finish()  # as the others do, who will now learn that this rank is not where they are
            self.refuse(step)
            raise UsageError(
                "the backward pass before this one failed half-way, when some of its gradients had been reduced: "
                "start again from a checkpoint, or set FARANDOLE_OVERLAP=step to be able to skip a batch"
            )
        if self.overlaps:
            self._pass = OverlappedPass(self.lane, self.buckets, self._point(step), self._terms.how, self._weight)
        return self._pass

    def run(self, step: str, weigh: Weigh = unweighted, rider: Rider | None = None) -> list[float] | None:
        """Replace every gradient by the reduced one. ``step`` says where in the program this is.

        ``weigh`` gives the factor of this rank's gradients, and is asked once. Returns the sums of what the members'
        riders had to say; ``None`` unless all of them had something.
        """
        overlapped = self._pass or self.begin_pass(step, weigh)
        if overlapped is not None:
            self._pass = None
            overlapped.finish()
        survey = self._survey()
        state = SAME if survey == self._codes else CHANGED
        riding = None if rider is None or self._codes is None else rider.departs(self._weight)
        states = self.lane.meet(self._point(step), state + (RIDES if riding else ""))
        codes = self._conclude(states, survey)
        if overlapped is not None:
            for bucket in self.buckets:
                bucket.publish(codes)
            bucketed = self._bucketed
            self._adopt(codes)
        else:
            self._adopt(codes)
            bucketed = self._bucketed
            for i, bucket in enumerate(self.buckets):
                with self.lane.phase(f"bucket {i}", "copy", bucket.nbytes):
                    bucket.fill()
                    if self._weight != 1.0:
                        bucket.weigh(self._weight)
                self.lane.allreduce(f"bucket {i}", bucket.array, self._terms.how)
                bucket.publish(codes)
        self._reduce_others(codes, bucketed)
        return self._sum(riding) if riding and all(state.endswith(RIDES) for state in states) else None

    def holds_any(self) -> bool:
        """True if some gradient is what a run has left."""
        return any(bucket.holds_any() for bucket in self.buckets)

    def refuse(self, step: str) -> None:
        """Make the others, who are reducing, raise: this rank cannot."""
        self.lane.meet(self._point(step), REFUSED)

    def serve(self) -> None:
        """Contribute nothing to the others' runs until all members serve; for a rank that has joined."""
        while set(states := self.lane.meet("", JOINED)) != {JOINED}:
            overlaps = self.overlaps
            if BEGIN not in states:
                self._adopt(self._conclude(states, [0] * len(self.params)))
            if overlaps == (BEGIN in states):
                for i, bucket in enumerate(self.buckets):
                    bucket.clear()
                    self.lane.allreduce(f"bucket {i}", bucket.array, self._terms.how)

    def _point(self, step: str) -> str:
        return f"{step}, {self._digest}"

    def _survey(self) -> Codes:
        return [
            0 if (grad := param.grad) is None else 1 + grad.sparse_dim() if grad.is_sparse else 1
            for param in self.params
        ]

    def _conclude(self, states: Sequence[str], mine: Codes) -> Codes:
        """What the members have together, from what they said and, if that changed, from asking in detail."""
        if self._codes is not None and not any(state.startswith(CHANGED) for state in states):
            return self._codes
        codes = torch.tensor(mine, dtype=torch.uint8)
        self.lane.allreduce("codes", adapter.array(codes), Reduction(ReduceOp.MAX))
        found: Codes = codes.tolist()
        return found

    def _adopt(self, codes: Codes) -> None:
        """Make buckets for what is dense now. Collective where that changed."""
        known = self._bucketed or [True] * len(codes)
        bucketed = [
            before if code == 0 else code == 1 or self._terms.sparse_as_dense
            for code, before in zip(codes, known, strict=True)
        ]
        self._codes = codes
        if bucketed == self._bucketed:
            return
        pieces = [self._piece(param) if dense else None for param, dense in zip(self.params, bucketed, strict=True)]
        self.buckets = self._make_buckets(pieces)
        self._bucketed = bucketed

    def _make_buckets(self, pieces: Sequence[Piece | None]) -> list[GradientBucket]:
        params, compression = self.params, self._terms.compression
        plain = compression is Compression.none
        layout = lay_out(pieces, self._bucket_bytes, min(LONE_BYTES, self._bucket_bytes) if plain else math.inf)
        memory = self.lane.allocate(layout.nbytes)
        content = as_bytes(memory)
        if not plain:
            return [CompressedBucket(b, params, content, memory, compression) for b in layout.buckets]
        return [LoneGradient(b, params) if b.lone else DirectBucket(b, params, content, memory) for b in layout.buckets]

    def _piece(self, param: torch.Tensor) -> Piece:
        array = adapter.array(travelling(param, self._terms.compression))
        return Piece(array.count, array.dtype, array.device, self._terms.groups.get(id(param), -1))

    def _sum(self, riding: Sequence[float]) -> list[float]:
        numbers = torch.tensor(riding, dtype=torch.float64)
        self.lane.allreduce("riders", adapter.array(numbers), Reduction(ReduceOp.SUM))
        sums: list[float] = numbers.tolist()
        return sums

    def _reduce_others(self, codes: Codes, bucketed: Sequence[bool]) -> None:
        """Reduce what was in no bucket, through the negotiated lane: what is sparse, and what just ceased to be so."""
        if all(bucketed):
            return
        terms = self._terms
        pending: list[tuple[torch.Tensor, Callable[[], torch.Tensor]]] = []
        for param, name, code, done in zip(self.params, self._names, codes, bucketed, strict=True):
            if code == 1 and not done:
                grad = torch.zeros_like(param) if param.grad is None else self._weighed(param.grad)
                dense = verbs.allreduce([grad], name, terms.how, terms.process_set).then(lambda found: found[0])
                pending.append((param, dense.begin().wait))
            elif code > 1 and not done:
                grad = self._weighed(_as_sparse(param, code - 1))
                pending.append((param, sparse_allreduce_async(grad, name, terms.how.op, terms.process_set)))
        for param, finish in pending:
            param.grad = finish()

    def _weighed(self, grad: torch.Tensor) -> torch.Tensor:
        return grad if self._weight == 1.0 else grad * self._weight

    def _choose_overlap(self) -> bool:
        """Whether to reduce during backward passes: the same on every member, as the fingerprint says."""
        nbytes = sum(p.numel() * p.element_size() for p in self.params)
        choice, why = choose_overlap(self.lane.session.settings.overlap, nbytes, self.lane.crosses_hosts)
        self.lane.note(f"gradients are reduced {'during' if choice == 'backward' else 'after'} backward passes: {why}")
        return choice == "backward"

    def _fingerprint(self) -> str:
        """The same on two members if their buckets are laid out and reduced alike."""
        terms = self._terms
        everything = [(str(p.dtype), tuple(p.shape), p.stride(), terms.groups.get(id(p), -1)) for p in self.params]
        compression = getattr(terms.compression, "__name__", "")
        also = (terms.how, compression, terms.sparse_as_dense, self._bucket_bytes, self._during_backward)
        return hashlib.blake2b(repr((everything, also)).encode(), digest_size=4).hexdigest()


def _as_sparse(param: torch.Tensor, sparse_dims: int) -> torch.Tensor:
    grad = param.grad
    if grad is None:
        indices = torch.empty(sparse_dims, 0, dtype=torch.int64)
        values = torch.empty(0, *param.shape[sparse_dims:], dtype=param.dtype)
        return torch.sparse_coo_tensor(indices, values, param.shape, is_coalesced=True, check_invariants=False)
    return grad if grad.is_sparse else grad.to_sparse(sparse_dims)
