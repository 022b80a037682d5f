"""Parameters of one exchange: the framework-specific part of the reduction of gradients.

    parameters = TorchParameters(params, groups, terms)
    present = parameters.present()
    parameters.codes(present)                       # which gradients there are, for the agreement of the members

``GradientExchange`` decides what is reduced and when; ``Parameters`` finds the gradients and writes the reduced ones.

Gradients that a reduction has produced, distinguished from new gradients in the same memory.

left = ReleasedGradients(tensors)
left.note(params)                   # after a reduction
left.any_of(params)                 # True until they are replaced

For frameworks whose parameters hold their gradients.
"""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from operator import is_
from typing import Generic, TypeAlias, final

from farandole.collective import Array, DType
from farandole.engines.engine import Memory
from farandole.gradients.agreement import Agreed
from farandole.gradients.buckets import BucketLayout, Piece
from farandole.gradients.reduction_options import ReductionOptions
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


class GradientBucket(ABC, Generic[T]):
    """Gradients of some parameters, reduced as one ``array``, which ``fill`` or ``clear`` has written.

    ``pieces``: indices of the parameters in the exchange. One thread at a time uses a bucket; in an overlapped pass the
    background thread fills and reduces it, and the script's thread publishes it afterwards.
    """

    array: Array
    nbytes: int
    pieces: Sequence[int]
    params: Sequence[Param]

    @abstractmethod
    def clear(self) -> None:
        """Contribute zeros."""

    @abstractmethod
    def fill(self, gradients: Gradients[T], targets: Gradients[T]) -> None:
        """Copy ``gradients`` in; zeros for ``None``. ``targets``: tensors that ``publish`` may write the results to.

        If both are the same object, all gradients are ordinary.
        """

    @abstractmethod
    def fill_alone(self) -> None:
        """Copy the current gradients in, none of which shares memory with a gradient of another bucket."""

    @abstractmethod
    def weigh(self, weight: float) -> None:
        """Multiply the values that ``fill`` has copied."""

    @abstractmethod
    def publish(self, agreed: Agreed) -> None:
        """Make the reduced values the gradients; a parameter that no member used keeps its gradient."""


class Parameters(ABC, Generic[T]):
    """Parameters in an order that all members share, and their gradients.

    ``dtypes``: dtype of each gradient in the reduction, ``None`` if engines cannot reduce it. ``groups``: number of the
    group of each parameter, -1 for none.
    """

    dtypes: Sequence[DType | None]

    def __init__(
        self, tensors: Tensors[T], params: Sequence[Param], groups: Sequence[int], terms: ReductionOptions
    ) -> None:
        self.tensors, self.params, self.groups, self._terms = tensors, list(params), groups, terms

    @abstractmethod
    def described(self) -> list[object]:
        """Properties of each parameter that must agree between members: dtype, shape, layout."""

    @abstractmethod
    def reshaped(self) -> tuple[int, str] | None:
        """Index of the first parameter whose shape changed since the exchange was made, and the shapes; or ``None``."""

    # -- gradients as they are ----------------------------------------------------------------------------------------

    @abstractmethod
    def present(self) -> Gradients[T]:
        """The current gradients."""

    @abstractmethod
    def put(self, gradients: Gradients[T]) -> None:
        """Make these the gradients."""

    def without_stale(self, gradients: Gradients[T]) -> Gradients[T]:
        """``gradients``, with ``None`` for frozen parameters whose gradient is the unchanged result of a run."""
        return gradients

    def note(self) -> None:
        """Remember the current gradients as results of a run."""

    def holds_any(self) -> bool:
        """True if some gradient is a result of a run, even if more was added to it."""
        return False

    @abstractmethod
    def are_ordinary(self, gradients: Gradients[T]) -> bool:
        """True if all gradients exist, have the framework's usual form and may be overwritten. Called in every step."""

    @abstractmethod
    def targets(self, gradients: Gradients[T]) -> Gradients[T]:
        """For each gradient, the gradient itself if it may be overwritten, else ``None``."""

    @abstractmethod
    def kept_apart(self, gradients: Gradients[T], targets: Gradients[T]) -> Gradients[T]:
        """``gradients``, with copies of those without a target: they may share memory with a target."""

    @abstractmethod
    def codes(self, gradients: Gradients[T]) -> list[int]:
        """The ``agreement.code`` of each gradient."""

    @abstractmethod
    def can_overlap(self) -> bool:
        """True if gradients can be reduced one by one in the coming pass, before all of them exist."""

    # -- the reduction ------------------------------------------------------------------------------------------------

    @abstractmethod
    def adopt(self, dtypes: Sequence[DType | None]) -> None:
        """Reduce gradients in these dtypes from now on."""

    @abstractmethod
    def piece(self, index: int) -> Piece:
        """Size, dtype and group of the gradient of a parameter in a bucket."""

    @abstractmethod
    def buckets(self, layout: BucketLayout, memory: Memory) -> list[GradientBucket[T]]:
        """The buckets of a layout in ``memory``."""

    @abstractmethod
    def begin_alone(self, index: int, gradient: T | None, kind: int, name: str, weight: float) -> Callable[[], object]:
        """Begin to reduce one gradient outside buckets; the returned call waits, and makes the result the gradient.

        ``kind``: see ``Agreed``.
        """

    # -- a lag --------------------------------------------------------------------------------------------------------

    @abstractmethod
    def shadowed(self) -> Parameters[T]:
        """Shadows: parameters that share the weights' memory but have their own gradients."""

    @abstractmethod
    def difference(self, shadows: Parameters[T]) -> str | None:
        """Description of a parameter that now differs from its shadow in shape, dtype or device; ``None`` if none."""

    @abstractmethod
    def zeros(self, present: Gradients[T]) -> list[T | None]:
        """Zeros like the present gradients; like the parameter where a gradient is ``None``."""


class HoldingParameters(Parameters[T]):
    """Parameters that hold their gradients themselves (``Tensors.gradient``)."""

    def __init__(
        self, tensors: Tensors[T], params: Sequence[Param], groups: Sequence[int], terms: ReductionOptions
    ) -> None:
        super().__init__(tensors, params, groups, terms)
        self._left = ReleasedGradients(tensors)
        self._shapes = list(map(tensors.adapter.shape, self.params))

    def reshaped(self) -> tuple[int, str] | None:
        """See ``Parameters``."""
        for i, (param, known) in enumerate(zip(self.params, self._shapes, strict=True)):
            if (now := self.tensors.adapter.shape(param)) != known:
                return i, f"the shape {now}, it was {known}"
        return None

    def present(self) -> list[T | None]:
        """See ``Parameters``."""
        return list(map(self.tensors.gradient, self.params))

    def put(self, gradients: Gradients[T]) -> None:
        """See ``Parameters``."""
        for param, gradient in zip(self.params, gradients, strict=True):
            self.tensors.set_gradient(param, gradient)

    def without_stale(self, gradients: Gradients[T]) -> Gradients[T]:
        """See ``Parameters``."""
        return self._left.without_stale(self.params, gradients)

    def note(self) -> None:
        """See ``Parameters``."""
        self._left.note(self.params)

    def holds_any(self) -> bool:
        """See ``Parameters``."""
        return self._left.any_of(self.params)

    def zeros(self, present: Gradients[T]) -> list[T | None]:
        """See ``Parameters``."""
        likes = (param if grad is None else grad for param, grad in zip(self.params, present, strict=True))
        return list(map(self.tensors.zeros_like, likes))
