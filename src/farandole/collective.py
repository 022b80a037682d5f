"""Basic types of collectives: kind, reduction, dtype, and a flat piece of memory.

>>> DType.from_name("bfloat16").itemsize
2
>>> ReduceOp.SUM.label
'Sum'
"""

from __future__ import annotations

import enum
import functools
from array import array
from dataclasses import dataclass
from typing import Any, final

from farandole.errors import UsageError


@final
class Kind(enum.IntEnum):
    """Kinds of collectives."""

    ALLREDUCE = 0
    ALLGATHER = 1
    BROADCAST = 2
    ALLTOALL = 3
    REDUCESCATTER = 4
    BARRIER = 5
    JOIN = 6
    ADD_SET = 7
    REMOVE_SET = 8

    @functools.cached_property
    def label(self) -> str:
        """Verb that a user typed, for error texts and traces."""
        return self.name.lower()


@final
class ReduceOp(enum.IntEnum):
    """Reductions of values. The numbers are Horovod's, part of the API, and those of ``Op`` in ``native/dtype.hpp``."""

    AVERAGE = 0
    SUM = 1
    ADASUM = 2
    MIN = 3
    MAX = 4
    PRODUCT = 5

    @functools.cached_property
    def label(self) -> str:
        """Name that a user typed, for error texts and traces."""
        return self.name.capitalize()


@final
@dataclass(frozen=True, slots=True)
class Reduction:
    """Reduction of values: contributions times ``prescale``, then ``op``, then times ``postscale``.

    >>> Reduction(ReduceOp.SUM, prescale=0.5).postscale
    1.0

    ``wrong`` says what is wrong with the user's arguments. It is raised later, where the other members get it, too.
    """

    op: ReduceOp = ReduceOp.AVERAGE
    prescale: float = 1.0
    postscale: float = 1.0
    wrong: str = ""

    @property
    def is_scaled(self) -> bool:
        """True if one of the factors is not 1."""
        return (self.prescale, self.postscale) != (1.0, 1.0)

    def checked(self) -> Reduction:
        """Return this reduction, or raise ``UsageError`` if it is ``wrong``."""
        if self.wrong:
            raise UsageError(self.wrong)
        return self


@final
class DType(enum.IntEnum):
    """Element types on the wire. The numbers are shared with the native core (``native/dtype.hpp``)."""

    UINT8 = 0
    INT8 = 1
    UINT16 = 2
    INT16 = 3
    INT32 = 4
    INT64 = 5
    FLOAT16 = 6
    BFLOAT16 = 7
    FLOAT32 = 8
    FLOAT64 = 9
    BOOL = 10
    COMPLEX64 = 11
    COMPLEX128 = 12

    @functools.cached_property
    def label(self) -> str:
        """Name of the type in NumPy and PyTorch."""
        return self.name.lower()

    @property
    def itemsize(self) -> int:
        """Bytes per element."""
        return _ITEMSIZE[self]

    @property
    def is_floating(self) -> bool:
        """True for the four real floating types."""
        return DType.FLOAT16 <= self <= DType.FLOAT64

    @functools.cached_property
    def is_complex(self) -> bool:
        """True for the two complex types."""
        return self >= DType.COMPLEX64

    @classmethod
    def from_name(cls, name: str) -> DType:
        """Look up a type by its usual name; raises ``KeyError`` for an unsupported type."""
        return cls[name.upper()]


_ITEMSIZE = {
    DType.UINT8: 1, DType.INT8: 1, DType.UINT16: 2, DType.INT16: 2, DType.INT32: 4, DType.INT64: 8,
    DType.FLOAT16: 2, DType.BFLOAT16: 2, DType.FLOAT32: 4, DType.FLOAT64: 8, DType.BOOL: 1,
    DType.COMPLEX64: 8, DType.COMPLEX128: 16,
}  # fmt: skip
_TYPE_CODES = {"i": DType.INT32, "q": DType.INT64, "d": DType.FLOAT64}


@final
@dataclass(slots=True, frozen=True)
class Array:
    """A flat, contiguous piece of memory that an engine may read or write.

    ``owner`` is the object that keeps the memory alive (a tensor, an ndarray, a ``Memory``); engines for devices other
    than the host may use it, host engines use only the address.
    """

    address: int
    count: int
    dtype: DType
    owner: Any = None
    device: str = "cpu"

    @classmethod
    def of_numbers(cls, numbers: array[int] | array[float]) -> Array:
        """Memory of ``numbers``, with type code ``i``, ``q`` or ``d``.

        >>> Array.of_numbers(array("q", [1, 2])).dtype.label
        'int64'
        """
        address, count = numbers.buffer_info()
        return cls(address, count, _TYPE_CODES[numbers.typecode], numbers)

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self.count * _ITEMSIZE[self.dtype]

    def slice(self, start: int, count: int) -> Array:
        """View of ``count`` elements from ``start``; host memory only."""
        return Array(self.address + start * _ITEMSIZE[self.dtype], count, self.dtype, self.owner, self.device)
