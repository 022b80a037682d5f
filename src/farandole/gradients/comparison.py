"""Comparison of parameters across ranks, for optimizers without a planned-lane meeting that carries the digests.

comparison = ParameterComparison(tensors, process_set, "Adasum")
comparison.compare("adasum.compare", lambda: [("fc.weight", weight)])       # before every step, on all ranks
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Generic, final

from farandole.gradients.join import joins
from farandole.gradients.snapshots import Named, StepSnapshots
from farandole.gradients.tensors import T, Tensors
from farandole.runtime.collectives.divergence import Comparison
from farandole.runtime.collectives.objects import allgather_object
from farandole.runtime.session.init import Session, current
from farandole.runtime.session.process_sets import ProcessSet


@final
class ParameterComparison(Generic[T]):
    """Comparison of one optimizer's parameters through ``allgather_object``; error texts begin with ``title``."""

    def __init__(self, tensors: Tensors[T], process_set: ProcessSet, title: str) -> None:
        self._tensors, self._process_set, self._title = tensors, process_set, title
        self._session: weakref.ref[Session] | None = None
        self._joins = -1
        self._snapshots = StepSnapshots(tensors)
        self._comparison = Comparison(title, [])

    def compare(self, name: str, named: Callable[[], Named]) -> None:
        """Raise ``DivergenceError`` on every rank if parameters differ between ranks. Compares only at some steps."""
        session = current("step()")
        is_known = self._session is not None and self._session() is session and self._joins == joins()
        if not is_known:  # the ranks may have made different numbers of steps
            # Weak, like in ``OptimizerKey``: an optimizer must not keep an ended session alive.
            self._session, self._joins, self._snapshots = weakref.ref(session), joins(), StepSnapshots(self._tensors)
            ranks = self._process_set.ranks
            self._comparison = Comparison(self._title, [f"rank {r} on {session.topology.hosts[r]}" for r in ranks])
        snapshot = self._snapshots.digest(named) if self._snapshots.is_due() else None
        if snapshot is None:
            return

        def gather(payload: bytes) -> list[bytes]:
            return allgather_object(payload, name, self._process_set)

        marks = [mark.decode() for mark in gather(snapshot.mark.encode())]
        if len(marks) == len(self._process_set.ranks) and self._comparison.is_suspect(marks):
            self._comparison.explain(gather, snapshot)
