"""Gradients that a reduction has produced, distinguished from new gradients in the same memory.

left = ReleasedGradients(tensors)
left.note(params)                   # after a reduction
left.any_of(params)                 # True until they are replaced

For frameworks whose parameters hold their gradients.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from operator import is_
from typing import Generic, TypeAlias, final

from farandole.gradients.tensors import Gradients, Param, T, Tensors

_Known: TypeAlias = tuple[weakref.ref[T], int]
"""A gradient, and its version at the end of the run that produced it."""


@final
class ReleasedGradients(Generic[T]):
    """Gradients that a run has produced; another run must not sum them up again.

    Weak references: strong ones would keep the memory, and after ``zero_grad()`` has freed it, the next gradient may
    have the same address.
    """

    def __init__(self, tensors: Tensors[T]) -> None:
        self._tensors = tensors
        self._known: list[_Known[T] | None] = []

    def note(self, params: Iterable[Param]) -> None:
        """Remember the gradients of ``params`` as produced by a run."""
        version = self._tensors.version
        present = map(self._tensors.gradient, params)
        self._known = [None if grad is None else (weakref.ref(grad), version(grad)) for grad in present]

    def any_of(self, params: Sequence[Param]) -> bool:
        """True if some parameter still has the remembered gradient, even if more was added to it."""
        pairs = zip(map(self._tensors.gradient, params), self._known, strict=False)
        return any(known is not None and grad is not None and grad is known[0]() for grad, known in pairs)

    def without_stale(self, params: Sequence[Param], gradients: Gradients[T]) -> Gradients[T]:
        """``gradients``, with ``None`` for frozen parameters whose gradient is still the unchanged result of the run.

        Returns the same object if there is none.
        """
        is_trained = self._tensors.is_trained
        if len(self._known) != len(params) or all(map(is_trained, params)):
            return gradients
        triples = zip(params, gradients, self._known, strict=True)
        kept = [None if not is_trained(p) and self._is_untouched(grad, known) else grad for p, grad, known in triples]
        return gradients if all(map(is_, kept, gradients)) else kept

    def _is_untouched(self, gradient: T | None, known: _Known[T] | None) -> bool:
        if gradient is None or known is None:
            return False
        return known[0]() is gradient and known[1] == self._tensors.version(gradient)
