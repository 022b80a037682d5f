"""The numeric attack: that its oracle sees what is wrong, and two of its engines; ``make attacks`` plays it on all."""

from __future__ import annotations

import numpy as np
import pytest

from farandole.collective import DType, ReduceOp
from farandole.testing.reference import Values, decode, encode, reduce
from workbench.attacks.arithmetic import CASES, AllreduceCase
from workbench.attacks.numbers import Ranks, attack
from workbench.mpi import LAUNCHERS

SUMS = [case for case in CASES if case.count == 1000]


def _said(case: AllreduceCase, size: int = 3) -> list[Values]:
    return [case.contribution(rank, size) for rank in range(size)]


def test_there_are_366() -> None:
    assert len(CASES) == len({case.name for case in CASES}) == 366


@pytest.mark.parametrize("case", SUMS, ids=lambda case: case.name)
def test_the_reference_of_the_contract_is_right_and_that_one_flipped_bit_is_seen(case: AllreduceCase) -> None:
    said = _said(case)
    right = reduce(case.dtype, case.op, said)
    if case.op is ReduceOp.AVERAGE and not case.dtype.is_floating:
        return  # which it divides in float64, and complex infinities as complex numbers
    assert not case.wrong(right, said, hosts=1)
    for at in (500, 999):
        spoilt = right.copy()
        raw = spoilt.view(np.uint8)[(at + 1) * spoilt.itemsize - 1 :]  # the highest byte: sign, or exponent
        raw[0] ^= 1 if case.dtype is DType.BOOL else 64
        assert case.wrong(spoilt, said, hosts=1), at


@pytest.mark.parametrize("dtype", [DType.FLOAT16, DType.BFLOAT16])
def test_a_sum_that_is_rounded_twice_is_seen(dtype: DType) -> None:
    case = AllreduceCase(dtype, ReduceOp.SUM, 65_537)
    one, two, three = said = _said(case)
    first = reduce(dtype, ReduceOp.SUM, [one, two])
    assert case.wrong(reduce(dtype, ReduceOp.SUM, [first, three]), said, hosts=1)
    assert not case.wrong(reduce(dtype, ReduceOp.SUM, [first, three]), said, hosts=2)  # as between hosts


@pytest.mark.parametrize("dtype", [DType.FLOAT16, DType.FLOAT32])
def test_a_neighbour_of_the_right_number_a_lost_sign_and_a_lost_nan_are_seen(dtype: DType) -> None:
    case = AllreduceCase(dtype, ReduceOp.SUM, 1000)
    said = _said(case)
    right = reduce(dtype, ReduceOp.SUM, said)
    numbers = decode(dtype, right)
    negative = int(np.flatnonzero((numbers == 0) & np.signbit(numbers))[0])
    lost = int(np.flatnonzero(np.isnan(numbers))[0])
    for at, value in ((negative, 0.0), (lost, 0.0), (900, float(numbers[900]) * (1 + 2.0**-9))):
        spoilt = right.copy()
        spoilt[at] = encode(dtype, [value])[0]
        assert case.wrong(spoilt, said, hosts=1), (at, value)


@pytest.mark.parametrize("ranks", [Ranks("hybrid+tcp", "aabb"), Ranks("mpi", "aa", mpi="mpich")], ids=Ranks.text)
def test_an_engine(ranks: Ranks) -> None:
    if ranks.mpi and (lack := LAUNCHERS[ranks.mpi].lack()):
        pytest.skip(lack)
    assert attack(ranks) == []
