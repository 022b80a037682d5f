"""The oracle of the numeric attack: every reduction in float64, with NaN, infinities and signed zeros in the data.

    case = AllreduceCase(DType.BFLOAT16, ReduceOp.AVERAGE, 1000)
    said = [case.contribution(rank, size=2) for rank in range(2)]
    case.wrong(found, said, hosts=1)          # "" if found is what float64 says, rounded once

It shares nothing with the engines but the types of ``collective.py``.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from farandole.collective import DType, ReduceOp
from farandole.testing.reference import Values, encode, legal, storage

COUNTS = (0, 1, 7, 1000, 65_537, 300_001)
SPECIAL = (np.nan, np.inf, -np.inf, -0.0, 0.0, 1.0, -2.0)
"""Values that all ranks combine in every way, as far as the array is long enough."""

_SIGNIFICAND_BITS = {
    DType.FLOAT16: 11, DType.BFLOAT16: 8, DType.FLOAT32: 24, DType.FLOAT64: 53, DType.COMPLEX64: 24,
    DType.COMPLEX128: 53,
}  # fmt: skip
_SMALLEST = {DType.FLOAT16: 2.0**-24, DType.BFLOAT16: 2.0**-133, DType.FLOAT32: 2.0**-149, DType.COMPLEX64: 2.0**-149}


_OF_NUMBERS = {
    ReduceOp.SUM: np.add,
    ReduceOp.AVERAGE: np.add,
    ReduceOp.MIN: np.minimum,
    ReduceOp.MAX: np.maximum,
    ReduceOp.PRODUCT: np.multiply,
}
_OF_BOOLEANS = {
    ReduceOp.SUM: np.logical_or,
    ReduceOp.AVERAGE: np.logical_and,
    ReduceOp.MIN: np.logical_and,
    ReduceOp.MAX: np.logical_or,
    ReduceOp.PRODUCT: np.logical_and,
}


@final
@dataclass(frozen=True)
class AllreduceCase:
    """An all-reduce of ``count`` elements."""

    dtype: DType
    op: ReduceOp
    count: int

    @property
    def name(self) -> str:
        """Name of the case in reports."""
        return f"{self.op.label} of {self.count} {self.dtype.label}"

    def contribution(self, rank: int, size: int) -> Values:
        """Contribution of a rank, in its memory format."""
        dtype, random = self.dtype, np.random.default_rng([rank, self.dtype, self.op, self.count])
        if dtype is DType.BOOL:
            return random.integers(0, 2, self.count).astype(np.bool_)
        if dtype.is_complex:
            parts = self._floats(random, rank, size), self._floats(random, (rank + 1) % size, size)
            return encode(dtype, _joined(*parts))
        if dtype.is_floating:
            return encode(dtype, self._floats(random, rank, size))
        info = np.iinfo(storage(dtype))
        return random.integers(info.min, info.max, self.count, dtype=storage(dtype), endpoint=True)

    def wrong(self, found: Values, said: Sequence[Values], hosts: int) -> str:
        """Describe the first difference from float64; "" if there is none. Partial sums may be rounded on each host."""
        if self.count == 0:
            return "" if found.size == 0 else f"{found.size} elements"
        if self.dtype is DType.BOOL:
            return _first(found != _OF_BOOLEANS[self.op].reduce(said), found)
        if not (self.dtype.is_floating or self.dtype.is_complex):
            return _first(found != self._integers(said), found)
        if not self.dtype.is_complex:
            return self._wrong_floats(_wide(self.dtype, found), [_wide(self.dtype, each) for each in said], hosts)
        if self.op is ReduceOp.PRODUCT:
            return self._wrong_products(found, said)
        parts = [(found.real, [each.real for each in said]), (found.imag, [each.imag for each in said])]
        return next((text for f, s in parts if (text := self._wrong_floats(_double(f), [*map(_double, s)], hosts))), "")

    def _floats(self, random: np.random.Generator, rank: int, size: int) -> Values:
        values = random.uniform(-2, 2, self.count)
        number = min(self.count // 2, len(SPECIAL) ** size)
        values[:number] = np.array(SPECIAL)[np.arange(number) // len(SPECIAL) ** rank % len(SPECIAL)]
        return values

    def _integers(self, said: Sequence[Values]) -> Values:
        """Exact result in the type itself, in which sums and products wrap; averages divide an unlimited sum."""
        if self.op is ReduceOp.AVERAGE:
            exact = np.stack(said).astype(object).sum(axis=0)
            return np.asarray(np.abs(exact) // len(said) * np.sign(exact)).astype(said[0].dtype)
        with np.errstate(over="ignore"):
            return np.asarray(_OF_NUMBERS[self.op].reduce(np.stack(said), axis=0, dtype=said[0].dtype))

    def _wrong_floats(self, found: Values, said: Sequence[Values], hosts: int) -> str:
        with np.errstate(all="ignore"):
            stacked = np.stack(said)
            exact = self._exact(stacked)
            rounded = _wide(self.dtype, encode(self._real(), exact)) if self._real() is not DType.FLOAT64 else exact
            off = ~(np.abs(found - rounded) <= self._slack(stacked, exact, hosts))
            off &= ~((found == rounded) | (np.isnan(found) & np.isnan(rounded)))
            off |= (
                (rounded == 0) & (found == 0) & (np.signbit(found) != np.signbit(rounded)) & self._has_a_sign(stacked)
            )
        return _first(off, found, rounded)

    def _exact(self, stacked: Values) -> Values:
        # The reduce of NumPy begins with +0.0, which hides the sign of -0.0.
        exact = np.asarray(functools.reduce(_OF_NUMBERS[self.op], stacked))
        return exact / len(stacked) if self.op is ReduceOp.AVERAGE else exact

    def _slack(self, stacked: Values, exact: Values, hosts: int) -> Values:
        """Largest distance of a right result from the exact one, rounded to the type.

        Each operation rounds once to float32 (or to the type, if that is finer), which may change the last bit; between
        hosts, each host adds one rounding to the type.
        """
        if self.op in (ReduceOp.MIN, ReduceOp.MAX):
            return np.zeros_like(exact)
        bits = _SIGNIFICAND_BITS[self.dtype]
        size = np.abs(exact) if self.op is ReduceOp.PRODUCT else np.abs(stacked).sum(axis=0)
        size = size / (len(stacked) if self.op is ReduceOp.AVERAGE else 1)
        inner = len(stacked) * 2.0 ** -max(bits, 24) * size
        if hosts > 1:
            inner = inner + hosts * (2.0**-bits * size + _SMALLEST.get(self.dtype, 0.0))
        if bits >= 24:
            return inner
        # Near the middle between two neighbours the inner roundings decide, so either neighbour is right.
        doubt = encode(self.dtype, exact - inner) != encode(self.dtype, exact + inner)
        turn = np.maximum(2.0 ** (1 - bits) * np.abs(exact), _SMALLEST[self.dtype])
        return inner + np.where(doubt, turn, 0.0)

    def _has_a_sign(self, stacked: Values) -> Values:
        """True where IEEE 754 determines the sign of a zero; a minimum of zeros of both signs may have either."""
        if self.op in (ReduceOp.MIN, ReduceOp.MAX):
            return np.asarray((np.signbit(stacked) == np.signbit(stacked[0])).all(axis=0))
        return np.asarray((stacked == 0).all(axis=0))

    def _wrong_products(self, found: Values, said: Sequence[Values]) -> str:
        """Check products of complex numbers; with infinities and NaN, check only that the result is not finite."""
        with np.errstate(all="ignore"):
            wide = np.stack(said).astype(np.complex128)
            exact = np.multiply.reduce(wide, axis=0)
            finite = np.isfinite(wide).all(axis=0)
            size = np.multiply.reduce(np.abs(wide), axis=0)
            slack = 4 * len(said) * 2.0 ** -_SIGNIFICAND_BITS[self.dtype] * size
            off = np.where(finite, ~(np.abs(found - exact) <= slack), np.isfinite(found))
        return _first(off, found, exact)

    def _real(self) -> DType:
        return {DType.COMPLEX64: DType.FLOAT32, DType.COMPLEX128: DType.FLOAT64}.get(self.dtype, self.dtype)


CASES = [AllreduceCase(dtype, op, count) for dtype in DType for op in ReduceOp if legal(dtype, op) for count in COUNTS]
"""366 cases: every dtype with every operation that it has, in every length."""


def _joined(real: Values, imaginary: Values) -> Values:
    made = np.empty(real.size, np.complex128)
    made.real, made.imag = real, imaginary
    return made


def _double(values: Values) -> Values:
    return values.astype(np.float64)


def _wide(dtype: DType, values: Values) -> Values:
    wide = (values.astype(np.uint32) << 16).view(np.float32) if dtype is DType.BFLOAT16 else values
    with np.errstate(invalid="ignore"):  # signalling NaN
        return wide.astype(np.float64)


def _first(off: Values, found: Values, wanted: Values | None = None) -> str:
    where = np.flatnonzero(off)
    if not where.size:
        return ""
    at = int(where[0])
    expected = "" if wanted is None else f", not {wanted[at]!r}"
    return f"{where.size} of {found.size} wrong, first at {at}: {found[at]!r}{expected}"
