"""Gradients that a reduction has left, told from new ones in the same memory.

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
"""A gradient, and its version when a run had left it."""


@final
class ReleasedGradients(Generic[T]):
    """The gradients that a run has left, which another run must not sum up again.

    Known by weak references: strong ones would keep their memory, and an address alone may be that of the next
    gradient, after ``zero_grad()`` has given the memory back.
    """

    def __init__(self, tensors: Tensors[T]) -> None:
        self._tensors = tensors
        self._known: list[_Known[T] | None] = []

    def note(self, params: Iterable[Param]) -> None:
        """A run has left the gradients of ``params``."""
        version = self._tensors.version
        present = map(self._tensors.gradient, params)
        self._known = [None if grad is None else (weakref.ref(grad), version(grad)) for grad in present]

    def any_of(self, params: Sequence[Param]) -> bool:
        """True if one is there still, whatever was added to it."""
        pairs = zip(map(self._tensors.gradient, params), self._known, strict=False)
        return any(known is not None and grad is not None and grad is known[0]() for grad, known in pairs)

    def without_stale(self, params: Sequence[Param], gradients: Gradients[T]) -> Gradients[T]:
        """The gradients but for those of parameters that are frozen now, where they are still what the run has left.

        The same object if there is none.
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
