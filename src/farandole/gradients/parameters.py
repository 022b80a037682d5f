"""Parameters of one exchange: the framework's part of the reduction of gradients.

    parameters = TorchParameters(params, groups, terms)
    present = parameters.present()
    parameters.codes(present)                       # which gradients there are, for the agreement of the members

``GradientExchange`` decides what is reduced and when; this says where gradients are, and writes the reduced ones.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Generic

from farandole.collective import Array, DType
from farandole.engines.engine import Memory
from farandole.gradients.agreement import Agreed
from farandole.gradients.buckets import BucketLayout, Piece
from farandole.gradients.reduction_options import ReductionOptions
from farandole.gradients.released_gradients import ReleasedGradients
from farandole.gradients.tensors import Gradients, Param, T, Tensors


class GradientBucket(ABC, Generic[T]):
    """The gradients of some parameters, reduced as one ``array``: what ``fill`` or ``clear`` has left there.

    ``pieces`` say which ones, by their index in the exchange. One thread at a time uses a bucket; in an overlapped pass
    the background thread fills and reduces it, and the script's thread publishes it after that.
    """

    array: Array
    nbytes: int
    pieces: Sequence[int]
    params: Sequence[Param]

    @abstractmethod
    def clear(self) -> None:
        """Contribute nothing."""

    @abstractmethod
    def fill(self, gradients: Gradients[T], targets: Gradients[T]) -> None:
        """Take ``gradients``; zeros where there is none. ``targets``: where ``publish`` may write the reduced ones.

        If they are the same object, all gradients are ordinary.
        """

    @abstractmethod
    def fill_alone(self) -> None:
        """Take the gradients as they are now, none of which shares memory with those of another bucket."""

    @abstractmethod
    def weigh(self, weight: float) -> None:
        """Multiply what ``fill`` has taken."""

    @abstractmethod
    def publish(self, agreed: Agreed) -> None:
        """Make the reduced values the gradients; those of parameters that no member used stay as they are."""


class Parameters(ABC, Generic[T]):
    """Parameters in an order that all members share, and their gradients.

    ``dtypes``: those in which gradients are reduced, ``None`` for one that does not travel. ``groups``: the numbers of
    the parameters' groups, -1 for none.
    """

    dtypes: Sequence[DType | None]

    def __init__(
        self, tensors: Tensors[T], params: Sequence[Param], groups: Sequence[int], terms: ReductionOptions
    ) -> None:
        self.tensors, self.params, self.groups, self._terms = tensors, list(params), groups, terms

    @abstractmethod
    def described(self) -> list[object]:
        """Description of each parameter that members must have alike: dtype, shape, layout."""

    @abstractmethod
    def reshaped(self) -> tuple[int, str] | None:
        """The first parameter that has got another shape since the exchange was made, and which; ``None`` if none."""

    # -- gradients as they are ----------------------------------------------------------------------------------------

    @abstractmethod
    def present(self) -> Gradients[T]:
        """The gradients that are there."""

    @abstractmethod
    def put(self, gradients: Gradients[T]) -> None:
        """Make these the gradients."""

    def without_stale(self, gradients: Gradients[T]) -> Gradients[T]:
        """``gradients``, or what is left without those that a run has left and nothing has touched since."""
        return gradients

    def note(self) -> None:
        """Remember that a run has left the gradients that are there now."""

    def holds_any(self) -> bool:
        """True if some gradient is what a run has left, whatever was added to it."""
        return False

    @abstractmethod
    def are_ordinary(self, gradients: Gradients[T]) -> bool:
        """True if all are there as the framework makes them, and may be written over. Every step asks."""

    @abstractmethod
    def targets(self, gradients: Gradients[T]) -> Gradients[T]:
        """Per gradient: itself if it may be written over, or ``None``."""

    @abstractmethod
    def kept_apart(self, gradients: Gradients[T], targets: Gradients[T]) -> Gradients[T]:
        """``gradients``, those without a target as copies: what shares memory with a target is to be overwritten."""

    @abstractmethod
    def codes(self, gradients: Gradients[T]) -> list[int]:
        """The ``agreement.code`` of each gradient."""

    @abstractmethod
    def can_overlap(self) -> bool:
        """True if gradients can be reduced one by one in the pass that begins, before all of them are there."""

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
        """Begin to reduce one gradient in no bucket; the result becomes the gradient when the returned call returns.

        ``kind``: see ``Agreed``.
        """

    # -- a lag --------------------------------------------------------------------------------------------------------

    @abstractmethod
    def shadowed(self) -> Parameters[T]:
        """The same weights, with gradients of their own."""

    @abstractmethod
    def difference(self, shadows: Parameters[T]) -> str | None:
        """Description of a parameter that differs from its shadow by now: in shape, dtype or device."""

    @abstractmethod
    def zeros(self, present: Gradients[T]) -> list[T | None]:
        """Zeros like the gradients that are there, or else like the parameters."""


class HoldingParameters(Parameters[T]):
    """Parameters of a framework where they hold their gradients themselves, as ``Tensors.gradient`` tells."""

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
