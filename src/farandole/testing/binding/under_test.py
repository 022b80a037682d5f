"""Binding as the contract sees it: its module, and how to make and read its tensors.

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
"""From gradients of this rank to those of all, ``None`` as long as more passes are to come; each may be ``None``."""


class BindingUnderTest(ABC):
    """One binding. ``dtypes`` are those that it can make here, ``compressors`` names of its ``Compression``."""

    name: str
    hvd: Any
    dtypes: Sequence[str] = tuple(dtype.label for dtype in DType)
    compressors: Sequence[str] = ("none", "fp16", "bf16")

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
        """A tensor of that many elements, which are one piece of memory."""

    @abstractmethod
    def outlandish(self) -> Any:
        """Three ones of a kind that does not travel."""

    @abstractmethod
    def distributed(self, like: Mapping[str, Any], **options: Any) -> Distributed:
        """Function that reduces gradients like these tensors, by name, as the binding's optimizer does.

        ``options``: ``op``, ``gradient_predivide_factor``, ``backward_passes_per_step``, ``process_set`` and ``lag``.
        """

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
