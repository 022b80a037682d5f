"""Reference reductions, computed by NumPy, with which engines are compared.

    >>> values = [encode(DType.BFLOAT16, [1.5]), encode(DType.BFLOAT16, [2.0])]
    >>> decode(DType.BFLOAT16, reduce(DType.BFLOAT16, ReduceOp.SUM, values))
    array([3.5], dtype=float32)

Arrays have their memory representation; bfloat16, which NumPy lacks, is stored as uint16.
"""

from __future__ import annotations

import ctypes
import functools
import operator
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from farandole.collective import Array, DType, ReduceOp
from farandole.errors import UnsupportedError

Values: TypeAlias = npt.NDArray[Any]

_ACCUMULATE = {DType.FLOAT16: np.float32, DType.BFLOAT16: np.float32}
_TOLERANCE = {
    DType.FLOAT16: 2e-3, DType.BFLOAT16: 8e-3, DType.FLOAT32: 1e-6, DType.FLOAT64: 1e-13,
    DType.COMPLEX64: 2e-6, DType.COMPLEX128: 1e-13,
}  # fmt: skip


_OF_NUMBERS: dict[ReduceOp, np.ufunc] = {
    ReduceOp.SUM: np.add,
    ReduceOp.AVERAGE: np.add,
    ReduceOp.MIN: np.minimum,
    ReduceOp.MAX: np.maximum,
    ReduceOp.PRODUCT: np.multiply,
}
_OF_BOOLEANS: dict[ReduceOp, np.ufunc] = {
    ReduceOp.SUM: np.logical_or,
    ReduceOp.AVERAGE: np.logical_and,
    ReduceOp.MIN: np.logical_and,
    ReduceOp.MAX: np.logical_or,
    ReduceOp.PRODUCT: np.logical_and,
}
_OF_INTEGERS: dict[ReduceOp, Callable[[int, int], int]] = {
    ReduceOp.SUM: operator.add,
    ReduceOp.AVERAGE: operator.add,
    ReduceOp.MIN: min,
    ReduceOp.MAX: max,
    ReduceOp.PRODUCT: lambda a, b: _limit(a * b, 64),
}
"""Operations on integers of Python, which have no limit."""


def storage(dtype: DType) -> np.dtype[Any]:
    """The NumPy type, of the same size, in which an array of ``dtype`` is stored."""
    return np.dtype(np.uint16 if dtype is DType.BFLOAT16 else dtype.label)


def view(array: Array) -> Values:
    """The memory of ``array``, shared; valid as long as its owner lives."""
    raw = (ctypes.c_uint8 * array.nbytes).from_address(array.address) if array.nbytes else bytearray()
    return np.frombuffer(memoryview(raw).cast("B"), storage(array.dtype))


def encode(dtype: DType, values: npt.ArrayLike) -> Values:
    """Convert numbers to memory, rounding to nearest even."""
    if dtype is not DType.BFLOAT16:
        return np.asarray(values).astype(storage(dtype))
    bits = np.asarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def decode(dtype: DType, array: Values) -> Values:
    """Convert memory to numbers for computations."""
    if dtype is DType.BFLOAT16:
        return (array.astype(np.uint32) << 16).view(np.float32)
    return array.astype(_ACCUMULATE.get(dtype, array.dtype))


def legal(dtype: DType, op: ReduceOp) -> bool:
    """True if engines support ``op`` on ``dtype``."""
    return op is not ReduceOp.ADASUM and not (dtype.is_complex and op in (ReduceOp.MIN, ReduceOp.MAX))


def reduce(
    dtype: DType, op: ReduceOp, contributions: Sequence[Values], prescale: float = 1.0, postscale: float = 1.0
) -> Values:
    """Combine the contributions of all ranks, in rank order."""
    if op not in _OF_NUMBERS:
        known = ", ".join(known.label for known in _OF_NUMBERS)
        raise UnsupportedError(f"{op.label} is no operation of the reference reductions: these are {known}")
    if dtype is DType.BOOL:
        return np.asarray(_OF_BOOLEANS[op].reduce(contributions))
    if _is_exact(dtype, op, prescale, postscale):
        return _reduce_exactly(dtype, op, contributions, prescale, postscale)
    with np.errstate(over="ignore", invalid="ignore"):
        scaled = [_scale(decode(dtype, c), prescale) for c in contributions]
        total = functools.reduce(_OF_NUMBERS[op], scaled)
        if op is ReduceOp.AVERAGE:
            total = _divide(total, len(contributions))
        return encode(dtype, _scale(total, postscale))


def same(dtype: DType, found: Values, expected: Values, slack: Values | float = 0.0) -> bool:
    """True if equal (integers, booleans), or equal within one rounding of the result and ``slack`` (all others)."""
    if dtype not in _TOLERANCE:
        return bool(np.array_equal(found, expected))
    tolerance = _TOLERANCE[dtype]
    left, right = decode(dtype, found), decode(dtype, expected)
    return bool(np.isclose(left, right, rtol=tolerance, atol=min(tolerance, 1e-6) + slack).all())


def partial_rounding(
    dtype: DType, op: ReduceOp, contributions: Sequence[Values], prescale: float = 1.0, postscale: float = 1.0
) -> Values | float:
    """The slack of an engine that rounds partial results: a sum may be far smaller than its terms."""
    if dtype not in _TOLERANCE or op in (ReduceOp.MIN, ReduceOp.MAX):
        return 0.0
    sizes = [encode(dtype, np.abs(decode(dtype, values))) for values in contributions]
    largest = reduce(dtype, op, sizes, abs(prescale), abs(postscale))
    return np.asarray(_TOLERANCE[dtype] * np.abs(decode(dtype, largest)))


def sample(dtype: DType, count: int, seed: int) -> Values:
    """Reproducible values, so small that no sum or product of a few of them has an undefined overflow."""
    random = np.random.default_rng(seed)
    if dtype is DType.BOOL:
        return random.integers(0, 2, count).astype(np.bool_)
    if dtype.is_complex:
        return encode(dtype, random.uniform(-2, 2, count) + 1j * random.uniform(-2, 2, count))
    if dtype.is_floating:
        return encode(dtype, random.uniform(-2, 2, count))
    low = 0 if dtype in (DType.UINT8, DType.UINT16) else -3
    return encode(dtype, random.integers(low, 4, count))


def sample_range(dtype: DType, count: int, seed: int) -> Values:
    """Reproducible integers of the whole range, with both limits and their neighbours."""
    limits, random = np.iinfo(storage(dtype)), np.random.default_rng(seed)
    values = random.integers(limits.min, limits.max, count, storage(dtype), endpoint=True)
    ends = np.array([limits.max, limits.min, limits.max - 1, limits.min + 1], storage(dtype))
    values[: count // 2] = random.choice(ends, count // 2)
    return values


def _divide(total: Values, size: int) -> Values:
    return np.asarray(total / size).astype(total.dtype)


def _scale(values: Values, factor: float) -> Values:
    return values if factor == 1.0 else (values * factor).astype(values.dtype)


def _is_exact(dtype: DType, op: ReduceOp, prescale: float, postscale: float) -> bool:
    is_integer = not (dtype.is_floating or dtype.is_complex)
    return is_integer and (op is ReduceOp.AVERAGE or (prescale, postscale) != (1.0, 1.0))


def _reduce_exactly(
    dtype: DType, op: ReduceOp, contributions: Sequence[Values], prescale: float, postscale: float
) -> Values:
    """Reduce integers with a factor or divisor, with Python's unlimited integers."""
    results = []
    for values in zip(*(c.tolist() for c in contributions), strict=True):
        scaled = [_scale_integer(value, prescale) for value in values]
        total = functools.reduce(_OF_INTEGERS[op], scaled)
        mean = int(Fraction(total, len(scaled))) if op is ReduceOp.AVERAGE else total
        results.append(_scale_integer(mean, postscale))
    limits = np.iinfo(storage(dtype))
    return np.array([min(max(r, limits.min), limits.max) for r in results], object).astype(storage(dtype))


def _scale_integer(value: int, factor: float) -> int:
    """Scale exactly by whole factors and by 1/n; truncated toward zero, and limited to 64 bits."""
    n = round(1 / factor) if factor else 0
    if factor == int(factor):
        return _limit(value * int(factor), 64)
    if n and 1 / n == factor:
        return _limit(int(Fraction(value, n)), 64)
    return _limit(int(value * factor), 64)


def _limit(value: int, bits: int) -> int:
    limit: int = 2 ** (bits - 1)
    return min(max(value, -limit), limit - 1)
