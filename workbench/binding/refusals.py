"""Cases of invalid calls: on one rank, between ranks, and on all ranks if one rank cannot call."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from workbench.binding.under_test import BindingUnderTest, raises

Act: TypeAlias = Callable[[], object]

UNPICKLABLE = (letter for letter in "a generator")


def what_cannot_be_right_raises_at_once(b: BindingUnderTest) -> None:
    """``ValueError`` with the reason; the next call works."""
    hvd, ones = b.hvd, b.make(np.ones(3))
    refused: tuple[tuple[Act, str], ...] = (
        (lambda: hvd.allreduce(ones, average=True, op=hvd.Sum), "both average= and op="),
        (lambda: hvd.allreduce(ones, op=17), "no reduction"),
        (lambda: hvd.allreduce(b.make([1], "int32"), op=hvd.Adasum), "op=Adasum of a int32"),
        (lambda: hvd.reducescatter(ones, op=hvd.Adasum), "op=Adasum"),
        (lambda: hvd.reducescatter(b.make(1.0)), "scalar"),
        (lambda: hvd.alltoall(b.make(1.0)), "scalar"),
        (lambda: hvd.alltoall(ones, splits=[3] * b.size + [0]), "splits"),
        (lambda: hvd.alltoall(ones, splits=[4] + [0] * (b.size - 1)), "add up to 4, but dimension 0 has 3"),
        (lambda: hvd.alltoall(ones, splits=[-1] * b.size), "none of them negative"),
        (lambda: hvd.broadcast(ones, root_rank=b.size), "root_rank"),
        (lambda: hvd.allreduce(b.outlandish()), "does not travel"),
        (lambda: hvd.grouped_allreduce([ones, b.outlandish()]), "does not travel"),
    )
    if "complex64" in b.dtypes:
        refused += ((lambda: hvd.allreduce(b.make([1], "complex64"), op=hvd.Max), "Average, Sum, Product"),)
    for wrong, text in refused:
        with raises(ValueError, text):
            wrong()
    assert b.same(hvd.allreduce(ones), [1.0] * 3)


def disagreement_raises_everywhere_and_the_next_call_works(b: BindingUnderTest) -> None:
    """Shapes, dtypes and splits."""
    if b.size == 1:
        return
    for name, tensor in (
        ("shape", b.make(np.ones(2 + b.rank))),
        ("dtype", b.make(np.ones(2), ("float32", "float64")[b.rank % 2])),
    ):
        with raises(b.hvd.HorovodInternalError, name):
            b.hvd.allreduce(tensor, name=f"differs in {name}")
        assert b.same(b.hvd.allreduce(b.make([1.0]), name=f"differs in {name}"), [1.0])
    last = b.rank == b.size - 1
    rows = b.make(np.ones(2 * b.size + last))
    for splits, text in (
        (None, "rows cannot be split evenly"),
        ([2] * b.size, "add up to"),
        ([2] * b.size + [1] * last, "give one for each"),
    ):
        with raises(b.hvd.HorovodInternalError, rf"rank {b.size - 1} on .*{text}"):
            b.hvd.alltoall(rows, splits=splits)
        assert b.same(b.hvd.allreduce(b.make([1.0])), [1.0])


def _wrong_and_right(b: BindingUnderTest) -> tuple[tuple[Act, Act, str], ...]:
    """Invalid calls of one rank, the calls of the others meanwhile, and the text that all of them get."""
    hvd, ones, whole = b.hvd, b.make(np.ones(3)), b.make(np.ones(3), "int32")
    return (
        (lambda: hvd.allreduce(b.outlandish(), name="x"), lambda: hvd.allreduce(ones, name="x"), "travel"),
        (
            lambda: hvd.allreduce_async(b.outlandish()),
            lambda: hvd.synchronize(hvd.allreduce_async(ones)),
            "travel",
        ),
        (lambda: hvd.allreduce(whole, name="x", op=hvd.Adasum), lambda: hvd.allreduce(ones, name="x"), "op=Adasum"),
        (lambda: hvd.allreduce(ones, op=17), lambda: hvd.allreduce(ones), "no reduction"),
        (lambda: hvd.reducescatter(ones, op=17), lambda: hvd.reducescatter(ones), "no reduction"),
        (
            lambda: hvd.allreduce(ones, name="x", average=True, op=hvd.Sum),
            lambda: hvd.allreduce(ones, name="x", average=True),
            "both average= and op=",
        ),
        (lambda: hvd.broadcast(ones, b.size), lambda: hvd.broadcast(ones, 0), "root_rank"),
        (lambda: hvd.reducescatter(b.make(1.0)), lambda: hvd.reducescatter(ones), "scalar"),
        (lambda: hvd.alltoall(ones, splits=[-1]), lambda: hvd.alltoall(ones, splits=[1] * b.size), "negative"),
        (lambda: hvd.alltoall(ones, splits=["x"]), lambda: hvd.alltoall(ones), "'x'"),
        (
            lambda: hvd.broadcast_object(UNPICKLABLE, b.size - 1),
            lambda: hvd.broadcast_object(1, b.size - 1),
            "cannot be pickled",
        ),
        (lambda: hvd.allgather_object(UNPICKLABLE), lambda: hvd.allgather_object(1), "cannot be pickled"),
    )


def what_one_rank_cannot_do_raises_everywhere_and_the_next_call_works(b: BindingUnderTest) -> None:
    """The other ranks get the rank that could not, and the reason."""
    for wrong, right, text in _wrong_and_right(b):
        one_rank_cannot(b, wrong, right, text)


def one_rank_cannot(b: BindingUnderTest, wrong: Act, right: Act, text: str) -> None:
    """Let the last rank make the invalid call, twice; not in a job of one."""
    if b.size == 1:
        return
    for attempt in range(2):
        if b.rank == b.size - 1:
            with raises(ValueError, text):
                wrong()
        else:
            with raises(b.hvd.HorovodInternalError, rf"rank {b.size - 1} on \S+ said it cannot: .*{text}"):
                right()
        assert b.same(b.hvd.allreduce(b.make(np.ones(3)), name="x"), [1.0] * 3), attempt


def a_name_that_is_in_flight(b: BindingUnderTest) -> None:
    """Refused on the rank that uses it twice; the first use goes on."""
    hvd, ones = b.hvd, b.make(np.ones(2))
    if b.rank == 0 and b.size > 1:
        handle = hvd.allreduce_async(ones, name="twice", op=hvd.Sum)
        assert not hvd.poll(handle)
        with raises(ValueError, "twice"):
            hvd.allreduce_async(ones, name="twice", op=hvd.Sum)
    hvd.barrier()
    if b.rank > 0 or b.size == 1:
        handle = hvd.allreduce_async(ones, name="twice", op=hvd.Sum)
    assert b.same(hvd.synchronize(handle), [b.size] * 2)
