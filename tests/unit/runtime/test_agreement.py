"""The rules of comparison, kind by kind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from farandole.collective import DType, Kind, ReduceOp
from farandole.control.messages import Signature
from farandole.runtime.coordination.agreement import Plan, SignaturesByRank, malformed, settle

F32 = int(DType.FLOAT32)


def allreduce(shape: Sequence[int] = (3,), dtype: int = F32, **more: Any) -> Signature:
    return Signature(Kind.ALLREDUCE, [dtype], [list(shape)], **more)


def said(*signatures: Signature) -> Plan:
    ranks = range(len(signatures))
    return settle(
        "x", 0, list(ranks), SignaturesByRank.of(dict(enumerate(signatures))), [chr(ord("a") + rank) for rank in ranks]
    )


BASE = allreduce()
GATHER = Signature(Kind.ALLGATHER, [F32], [[3, 2]])
BCAST = Signature(Kind.BROADCAST, [F32], [[3]], root=0)
A2A = Signature(Kind.ALLTOALL, [F32], [[3, 2]], splits=[1, 2])


@pytest.mark.parametrize(
    ("mine", "yours", "text"),
    [
        (BASE, allreduce(dtype=DType.INT64), "the dtype: rank 0 on a said float32; rank 1 on b said int64"),
        (BASE, allreduce((4,)), "the shape: rank 0 on a said [3]; rank 1 on b said [4]"),
        (BASE, allreduce(op=ReduceOp.MAX), "the reduce operation: rank 0 on a said Sum; rank 1 on b said Max"),
        (BASE, allreduce(prescale=0.5), "the prescale factor: rank 0 on a said 1.0; rank 1 on b said 0.5"),
        (BASE, allreduce(postscale=0.5), "the postscale factor: rank 0 on a said 1.0; rank 1 on b said 0.5"),
        (BASE, allreduce(device="cuda:0"), "the device: rank 0 on a said cpu; rank 1 on b said cuda"),
        (BASE, GATHER, "the operation: rank 0 on a said allreduce; rank 1 on b said allgather"),
        (
            BASE,
            Signature(Kind.ALLREDUCE, [F32, F32], [[3], [3]]),
            "the members of the group: rank 0 on a said 1 tensor; rank 1 on b said 2 tensors",
        ),
        (
            GATHER,
            Signature(Kind.ALLGATHER, [F32], [[3, 4]]),
            "the shape after dimension 0: rank 0 on a said [*, 2]; rank 1 on b said [*, 4]",
        ),
        (
            GATHER,
            Signature(Kind.ALLGATHER, [F32], [[]]),
            "the shape after dimension 0: rank 0 on a said [*, 2]; rank 1 on b said []",
        ),
        (
            BCAST,
            Signature(Kind.BROADCAST, [F32], [[3]], root=1),
            "the root rank: rank 0 on a said 0; rank 1 on b said 1",
        ),
        (
            A2A,
            Signature(Kind.ALLTOALL, [F32], [[3, 2]], splits=[1, 1]),
            "rank 1 on b: the splits [1, 1] add up to 2, but dimension 0 has 3 rows",
        ),
        (A2A, Signature(Kind.ALLTOALL, [F32], [[3, 2]], splits=[3]), "rank 1 on b: 1 splits for 2 ranks"),
        (A2A, Signature(Kind.ALLTOALL, [F32], [[3, 2]]), "rank 1 on b: 3 rows cannot be split evenly among 2 ranks"),
        (
            Signature(Kind.ADD_SET, [], [], splits=[0]),
            Signature(Kind.ADD_SET, [], [], splits=[1]),
            "the ranks of the process set: rank 0 on a said [0]; rank 1 on b said [1]",
        ),
    ],
)
def test_a_disagreement_names_what_each_rank_said(mine: Signature, yours: Signature, text: str) -> None:
    plan = said(mine, yours)
    assert plan.error_kind == "MismatchError"
    assert text in plan.error
    assert plan.error.startswith(f"{Kind(mine.kind).label} 'x': ")


def test_in_a_group_the_tensor_that_differs_is_named() -> None:
    mine = Signature(Kind.ALLREDUCE, [F32] * 200, [[n] for n in range(200)])
    yours = Signature(Kind.ALLREDUCE, [F32] * 200, [[n if n != 150 else 7] for n in range(200)])
    expected = "the shape of tensor 150: rank 0 on a said [150]; rank 1 on b said [7]"
    assert said(mine, yours).error == f"allreduce 'x': the ranks differ in {expected}"


def test_gpu_numbers_may_differ() -> None:
    assert said(allreduce(device="cuda:0"), allreduce(device="cuda:1")).error == ""


def test_scales_that_are_no_numbers_agree_with_themselves() -> None:
    assert said(allreduce(prescale=float("nan")), allreduce(prescale=float("nan"))).error == ""


@pytest.mark.parametrize(
    ("signature", "text"),
    [
        (
            Signature(Kind.BROADCAST, [F32], [[3]], root=2),
            "rank 2, which is no member; the members are [0, 1]",
        ),
        (Signature(Kind.BROADCAST, [F32], [[3]]), "the root is rank -1, which is no member"),
        (Signature(Kind.REDUCESCATTER, [F32], [[]]), "cannot be scattered"),
        (Signature(Kind.ALLTOALL, [F32], [[]]), "takes one tensor of at least one dimension"),
    ],
)
def test_what_all_agree_on_may_still_be_impossible(signature: Signature, text: str) -> None:
    assert text in said(signature, signature).error


def test_allgather_and_alltoall_say_what_each_rank_brings() -> None:
    assert said(GATHER, Signature(Kind.ALLGATHER, [F32], [[0, 2]])).dims == [3, 0]
    group = Signature(Kind.ALLGATHER, [F32, F32], [[3], []])
    assert settle("x", 0, [1, 4], SignaturesByRank.of({4: group}), ["a"] * 5).dims == [0, 0, 3, 1]
    even = Signature(Kind.ALLTOALL, [F32], [[4, 2]])
    assert said(A2A, even).splits == [1, 2, 2, 2]
    assert settle("x", 0, [0, 1], SignaturesByRank.of({1: even}), ["a"] * 2).splits == [0, 0, 2, 2]


def test_many_ranks_are_named_in_short() -> None:
    signatures = {rank: BASE if rank != 5 else allreduce((4,)) for rank in range(8)}
    error = settle("x", 3, range(8), SignaturesByRank.of(signatures), ["a"] * 4 + ["b"] * 4).error
    assert error.startswith("allreduce 'x' in process set 3: ")
    assert "ranks 0-3 on a, ranks 4, 6-7 on b said [3]; rank 5 on b said [4]" in error


@pytest.mark.parametrize(
    ("signature", "text"),
    [
        (None, "neither a signature nor a number"),
        (Signature(9, [F32], [[1]]), "9 is no kind"),
        (allreduce(op=6), "6 is no reduce operation"),
        (allreduce(dtype=13), "13 is no dtype"),
        (allreduce(dtype=-1), "-1 is no dtype"),
        (allreduce((-1,)), "a negative size"),
        (Signature(Kind.ALLTOALL, [F32], [[1]], splits=[2, -1]), "a negative size"),
        (Signature(Kind.ALLREDUCE, [F32], []), "1 dtypes for 0 shapes"),
        (Signature(Kind.ALLREDUCE, [], []), "no tensors"),
        (Signature(Kind.BARRIER, [], []), ""),
    ],
)
def test_numbers_that_mean_nothing_are_found(signature: Signature | None, text: str) -> None:
    assert text in malformed(signature)
    assert bool(text) == bool(malformed(signature))


def test_a_reduction_that_no_joined_rank_can_leave_as_it_is_is_refused_and_says_how_to_do_it() -> None:
    """The engine multiplies what is contributed for that rank, too."""

    def without_rank_1(kind: Kind, dtype: DType, **more: Any) -> str:
        signature = Signature(kind, [dtype], [[4]], **more)
        return settle("x", 0, [0, 1], SignaturesByRank.of({0: signature}), ["a", "b"]).error

    for kind in (Kind.ALLREDUCE, Kind.REDUCESCATTER):
        for dtype in (DType.FLOAT32, DType.INT64):
            text = without_rank_1(kind, dtype, op=ReduceOp.PRODUCT, prescale=2.0)
            assert text.endswith(
                "Product with the prescale factor 2 cannot do without rank 1 on b, which has called join(): "
                "multiply the tensor before the call"
            )
        assert "the prescale factor inf" in without_rank_1(kind, DType.FLOAT32, op=ReduceOp.SUM, prescale=float("inf"))
        assert not without_rank_1(kind, DType.FLOAT32, op=ReduceOp.PRODUCT, postscale=2.0)
        assert not without_rank_1(kind, DType.FLOAT32, op=ReduceOp.MIN, prescale=-2.0)
        assert not without_rank_1(kind, DType.BOOL, op=ReduceOp.PRODUCT, prescale=2.0)
    assert not said(allreduce(op=ReduceOp.PRODUCT, prescale=2.0), allreduce(op=ReduceOp.PRODUCT, prescale=2.0)).error
