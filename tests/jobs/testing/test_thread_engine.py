"""The fake passes the contract, and the contract finds what is wrong with a broken engine."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import pytest

from farandole.collective import Array, DType, ReduceOp
from farandole.engines.engine import Engine, Exchange, Group
from farandole.errors import UnsupportedError
from farandole.testing import reference
from farandole.testing.engine_contract import CASES, run_contract
from farandole.testing.thread_engine import ThreadWorld, run_threads
from tests.support.engines.contract import fake_passes


@pytest.mark.parametrize("size", [1, 2])
def test_passes_the_contract(size: int) -> None:
    fake_passes(size)


@pytest.mark.parametrize(
    ("method", "case"),
    [
        ("allreduce", "same_bits_everywhere_and_again"),
        ("allreduce", "every_op_on_every_dtype"),
        ("broadcast", "broadcast"),
        ("barrier", "barrier_waits_for_all"),
        ("gather_small", "gather_small"),
        ("abort", "abort_wakes_waiters"),
    ],
)
def test_the_contract_finds_a_method_that_does_nothing(method: str, case: str) -> None:
    world = ThreadWorld()

    def create(group: Group, exchange: Exchange) -> Engine:
        short = Group(group.rank, group.ranks, group.hosts, group.generation, group.label, min(group.deadline_s, 1.0))
        engine = world.create(short, exchange)
        setattr(engine, method, lambda *_, **__: [b""] * group.size)
        return engine

    for found in run_threads(lambda member: run_contract(member, create, {case: CASES[case]}), 2):
        assert found[case]


def test_the_contract_finds_a_write_outside_the_array() -> None:
    world = ThreadWorld()

    def create(group: Group, exchange: Exchange) -> Engine:
        engine = world.create(group, exchange)
        allgather = engine.allgather

        def one_more(send: Array, recv: Array, counts: Sequence[int]) -> None:
            allgather(send, recv, counts)
            ctypes.memset(recv.address + recv.nbytes, 0, 1)

        setattr(engine, "allgather", one_more)  # noqa: B010 (mypy knows that methods are not for assignment)
        return engine

    for found in run_threads(lambda member: run_contract(member, create, {"allgather": CASES["allgather"]}), 2):
        assert "outside" in found["allgather"]


def test_bfloat16_rounds_to_nearest_even() -> None:
    values = reference.encode(DType.BFLOAT16, [1.0, 1.00390625, 1.01171875, -2.5])
    assert reference.decode(DType.BFLOAT16, values).tolist() == [1.0, 1.0, 1.015625, -2.5]
    total = reference.reduce(DType.BFLOAT16, ReduceOp.SUM, [values, values])
    assert reference.decode(DType.BFLOAT16, total).tolist() == [2.0, 2.0, 2.03125, -5.0]


def test_an_operation_that_the_reference_does_not_know_is_no_sum() -> None:
    for dtype in DType:
        values = reference.encode(dtype, [1, 0])
        with pytest.raises(UnsupportedError, match="Adasum is no operation of the reference"):
            reference.reduce(dtype, ReduceOp.ADASUM, [values, values])
