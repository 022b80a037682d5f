"""Cases of ``allgather``, ``alltoall`` and ``broadcast_parameters``."""

from __future__ import annotations

from typing import Any

import numpy as np

from farandole.errors import MismatchError
from workbench.binding.under_test import BindingUnderTest, raises, sample


def allgather(b: BindingUnderTest) -> None:
    """Every dtype, uneven and empty parts, scalars, in all variants."""
    ranks = list(range(b.size))
    for dtype in b.dtypes:
        gathered = b.hvd.allgather(b.mine(b.rank + 1, 2, dtype=dtype))
        assert b.dtype(gathered) == dtype
        assert b.same(gathered, np.concatenate([sample(r, r + 1, 2, dtype=dtype) for r in ranks])), dtype
    mine = b.make([b.rank], "int64")
    assert b.values(b.hvd.allgather(b.make(b.rank, "int64"))).tolist() == ranks
    assert b.values(b.hvd.allgather(b.make(np.zeros((0, 3))))).shape == (0, 3)
    only_last = b.hvd.allgather(b.make(np.full(3 if b.rank == b.size - 1 else 0, float(b.rank))))
    assert b.values(only_last).tolist() == [b.size - 1.0] * 3
    assert b.values(b.hvd.synchronize(b.hvd.allgather_async(mine, name="gather"))).tolist() == ranks
    first, second = b.hvd.grouped_allgather([mine, b.make(np.full((b.rank, 2), 0.5))])
    assert (b.values(first).tolist(), b.values(second).shape) == (ranks, (sum(ranks), 2))
    grouped = b.hvd.synchronize(b.hvd.grouped_allgather_async([mine] * 2))
    assert [b.values(g).tolist() for g in grouped] == [ranks] * 2


def alltoall(b: BindingUnderTest) -> None:
    """Even parts; splits as a list and as a tensor; empty parts."""
    even = b.hvd.alltoall(b.make(np.arange(2 * b.size) + 100 * b.rank, "int64"))
    assert b.values(even).tolist() == [100 * r + 2 * b.rank + i for r in range(b.size) for i in range(2)]
    splits = [r + 1 for r in range(b.size)]
    tensor = b.make(np.full((sum(splits), 2), float(b.rank)))
    for given in (splits, b.make(splits, "int32")):
        rows, counts = b.hvd.alltoall(tensor, splits=given)
        assert (b.values(counts).tolist(), b.dtype(counts)) == ([b.rank + 1] * b.size, "int32")
        assert b.values(rows)[:, 0].tolist() == [float(r) for r in range(b.size) for _ in range(b.rank + 1)]
    rows, counts = b.hvd.synchronize(b.hvd.alltoall_async(b.make(np.ones(0)), splits=[0] * b.size))
    assert (b.values(rows).size, b.values(counts).tolist()) == (0, [0] * b.size)


def a_failed_broadcast_of_parameters_leaves_its_names_free(b: BindingUnderTest) -> None:
    """Repeatedly, for each of them that fails."""
    if b.size == 1:
        return
    for odd in "abd":
        tensors = {name: b.make(np.full(3, float(b.rank))) for name in "abcd"}
        tensors[odd] = b.make(np.zeros(3 + b.rank % 2))
        for _ in range(20):
            with raises(MismatchError, f"parameter.{odd}"):
                b.broadcast_parameters(tensors, root_rank=0)
        tensors = {name: b.make(np.full(3, float(b.rank))) for name in "abcd"}
        assert all(b.same(tensor, [1.0] * 3) for tensor in b.broadcast_parameters(tensors, root_rank=1).values())


def parameters_of_one_rank_alone_are_not_waited_for(b: BindingUnderTest) -> None:
    """Their broadcast is still open, and can be completed."""
    if b.size == 1:
        return
    tensors = {"x": b.make(np.zeros(3 + b.rank % 2)), "y": b.make(np.zeros(2))}
    if b.rank == 0:
        tensors["z"] = b.make(np.zeros(2))
    with raises(MismatchError, r"parameter\.x"):
        b.broadcast_parameters(tensors, root_rank=0)
    if b.rank > 0:  # now the other ranks broadcast it, too
        b.hvd.broadcast(b.make(np.zeros(2)), 0, "parameter.z")


def parameters_that_one_rank_cannot_send_fail_everywhere(b: BindingUnderTest) -> None:
    """Every time, without a hang."""
    if b.size == 1:
        return
    for _ in range(3):
        tensors = [b.make(np.zeros(2)), b.make(np.ones(3)), b.make(np.zeros(4))]
        if b.rank == 0:
            tensors[1] = b.outlandish()
        with raises(ValueError, r"number1|travel"):
            b.broadcast_parameters(tensors, root_rank=0)


def parameters_that_are_none_on_one_rank_fail_everywhere(b: BindingUnderTest) -> None:
    """Before any value is sent in their place."""
    if b.size == 1:
        return
    for _ in range(2):
        tensors = {name: b.make(np.zeros(2)) for name in "abc"}
        if b.rank == 0:
            tensors["b"] = "0.1"
        with raises(ValueError, r"a str\b"):
            b.broadcast_parameters(tensors, root_rank=0)


def parameters_in_all_forms(b: BindingUnderTest) -> None:
    """Mappings, pairs and lists of tensors; nothing else, but where parameters are any pytree."""
    forms: list[Any] = [dict, lambda pairs: [tensor for _, tensor in pairs]]
    for form in forms if b.takes_pytrees else [*forms, lambda pairs: pairs]:
        given = form(list(zip("ab", [b.mine(3), b.mine(2, 2)], strict=True)))
        found = b.broadcast_parameters(given, root_rank=b.size - 1)
        one, other = found.values() if isinstance(found, dict) else (f[1] if isinstance(f, tuple) else f for f in found)
        assert b.same(one, b.every(3)[-1])
        assert b.same(other, b.every(2, 2)[-1])
    if b.takes_pytrees:
        return
    with raises(ValueError, "'lr' is a float"):
        b.broadcast_parameters({"lr": 0.1}, root_rank=0)
