"""Interface of a binding to the contract: its module, and how to make and read its tensors.

    class NumpyUnderTest(BindingUnderTest):
        name, hvd = "numpy", farandole.numpy
        ...

The cases compute what they expect with NumPy, in float64 or complex128.
"""

from __future__ import annotations

import contextlib
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from farandole.collective import DType

Values: TypeAlias = npt.NDArray[Any]

Distributed: TypeAlias = Callable[[Mapping[str, Any]], Mapping[str, Any] | None]
"""From gradients of this rank to those of all ranks; ``None`` while more passes follow; each may be ``None``."""


class Trainer(ABC):
    """Linear regression as a binding's users train it, for cases that need whole steps.

    Weights in float64: ``w`` of shape (3, 1) and ``b`` of shape (1,), zeros at first. The loss is the mean over the
    rows of the square of ``x @ w + b - y``.
    """

    @abstractmethod
    def step(self, x: Values, y: Values) -> None:
        """One step on these rows: the rows of this rank, or with virtual workers the global batch."""

    @abstractmethod
    def weights(self) -> dict[str, Values]:
        """The present weights."""

    @abstractmethod
    def add(self, name: str, amount: float) -> None:
        """Add to every element of one weight, on this rank alone."""

    @abstractmethod
    def state(self, **values: Any) -> Any:
        """The binding's elastic state of weights, optimizer and ``values``."""

    def loss_scale(self) -> float:
        """Factor of the next loss, in a training with a loss scale."""
        return 1.0


class BindingUnderTest(ABC):
    """One binding. ``dtypes`` are the dtypes that it can make here, ``compressors`` names of its ``Compression``.

    ``in_place``: False for a framework with immutable tensors. In-place functions (``allreduce_``) then raise
    ``UsageError``, and ``views`` may be []. ``takes_pytrees``: parameters are any tree of tensors and numbers.
    ``copies_scalars``: False for a binding whose tensors without dimensions cannot be copied.
    """

    name: str
    hvd: Any
    dtypes: Sequence[str] = tuple(dtype.label for dtype in DType)
    compressors: Sequence[str] = ("none", "fp16", "bf16")
    in_place: bool = True
    takes_pytrees: bool = False
    copies_scalars: bool = True

    @abstractmethod
    def make(self, values: npt.ArrayLike, dtype: str = "float64") -> Any:
        """A new tensor of these values, in the shape that NumPy gives them."""

    @abstractmethod
    def values(self, tensor: Any) -> Values:
        """The values of a tensor, in any dtype that holds them."""

    @abstractmethod
    def dtype(self, tensor: Any) -> str:
        """The label of a tensor's dtype."""

    @abstractmethod
    def views(self, values: Values) -> list[Any]:
        """New tensors made of a matrix whose elements lie in another order, or with gaps between them."""

    @abstractmethod
    def repeated(self, value: float, count: int) -> Any:
        """A tensor of that many elements, which share one piece of memory."""

    @abstractmethod
    def outlandish(self) -> Any:
        """Three ones in a kind of tensor that cannot be sent."""

    @abstractmethod
    def distributed(self, like: Mapping[str, Any], **options: Any) -> Distributed:
        """Function that reduces gradients like these tensors, by name, as the binding's optimizer does.

        ``options``: ``op``, ``gradient_predivide_factor``, ``backward_passes_per_step``, ``process_set`` and ``lag``.
        """

    def observed(self, like: Mapping[str, Any]) -> tuple[Distributed, Any] | None:
        """See ``distributed``; with a ``NoiseScale`` of it, or ``None`` if the binding has none.

        It is made with ``every=1`` and ``horizon_samples=1e12``.
        """
        return None

    @abstractmethod
    def trainer(self, rule: str, distributed: bool = True, **options: Any) -> Trainer | None:
        """A training by ``rule``, "sgd" with momentum or "adam"; ``None`` if the binding has nothing of the kind.

        ``distributed``: False for the framework alone, without Farandole. ``options``, one at a time: ``loss_scale``,
        the initial value, which an overflow halves while it skips the step; ``virtual_workers``, their number, with
        ``process_set``, the ranks that take part.
        """

    @abstractmethod
    def state(self, **values: Any) -> Any:
        """The binding's elastic state of ``values``: tensors, nested containers of them, and anything else."""

    def compiled(self, function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Compile a function of a tensor by the framework, if it traces functions of Python."""
        return function

    elastic: Any
    """Module with ``run`` and ``ElasticSampler`` of the binding."""

    def broadcast_parameters(self, params: Any, root_rank: int) -> Any:
        """``params`` with the root's values, as the binding returns them; ``in_place`` it returns its argument."""
        self.hvd.broadcast_parameters(params, root_rank=root_rank)
        return params

    @property
    def rank(self) -> int:
        """The number of this process."""
        return int(self.hvd.rank())

    @property
    def size(self) -> int:
        """The number of processes."""
        return int(self.hvd.size())

    def mine(self, *shape: int, dtype: str = "float64") -> Any:
        """Tensor whose values differ by rank, and are small enough for every dtype to hold their sum."""
        return self.make(sample(self.rank, *shape, dtype=dtype), dtype)

    def every(self, *shape: int, dtype: str = "float64") -> Values:
        """Values of all ranks' ``mine``, stacked."""
        return np.stack([sample(rank, *shape, dtype=dtype) for rank in range(self.size)])

    def same(self, tensor: Any, expected: npt.ArrayLike, tolerance: float = 0.0) -> bool:
        """True if the tensor has this shape and these values."""
        found, wanted = self.values(tensor), np.asarray(expected)
        return found.shape == wanted.shape and bool(np.allclose(found, wanted, rtol=tolerance, atol=tolerance))


def sample(rank: int, *shape: int, dtype: str = "float64") -> Values:
    """Values of a rank: 0 to 5, or booleans."""
    values = np.random.default_rng(100 + rank).integers(0, 6, shape)
    return values > 2 if dtype == "bool" else values.astype("complex128" if "complex" in dtype else "float64")


@contextlib.contextmanager
def raises(kind: type[Exception], pattern: str) -> Iterator[None]:
    """Fail unless the block raises that kind of error, with a text in which ``pattern`` is found."""
    text = None
    try:
        yield
    except kind as error:
        text = str(error)
    assert text is not None, f"nothing was raised; expected a {kind.__name__} with {pattern!r}"
    assert re.search(pattern, text), f"{pattern!r} is not in: {text}"
