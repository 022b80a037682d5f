"""Cases of ``allreduce`` and ``reducescatter``."""

from __future__ import annotations

import numpy as np

from workbench.binding.under_test import BindingUnderTest, raises


def allreduce_of_every_dtype(b: BindingUnderTest) -> None:
    """Sums; of booleans also the minimum."""
    for dtype in b.dtypes:
        if dtype != "bool":
            result = b.hvd.allreduce(b.mine(4, 5, dtype=dtype), op=b.hvd.Sum)
            assert b.dtype(result) == dtype
            assert b.same(result, b.every(4, 5, dtype=dtype).sum(0)), dtype
    first = b.make([b.rank == 0], "bool")
    assert b.values(b.hvd.allreduce(first, op=b.hvd.Sum)).tolist() == [True]
    assert b.values(b.hvd.allreduce(first, op=b.hvd.Min)).tolist() == [b.size == 1]


def every_reduction(b: BindingUnderTest) -> None:
    """All operations but Adasum, both forms of the average, and factors."""
    mine, every = b.make(b.values(b.mine(7)) + 1), b.every(7) + 1
    expected = {"Average": every.mean(0), "Min": every.min(0), "Max": every.max(0), "Product": every.prod(0)}
    for op, values in expected.items():
        assert b.same(b.hvd.allreduce(mine, op=getattr(b.hvd, op)), values, 1e-12), op
    assert b.same(b.hvd.allreduce(mine, average=False), every.sum(0))
    assert b.same(b.hvd.allreduce(mine, average=True), every.mean(0), 1e-12)
    assert b.same(b.hvd.allreduce(mine), every.mean(0), 1e-12)
    scaled = b.hvd.allreduce(mine, op=b.hvd.Sum, prescale_factor=0.5, postscale_factor=4.0)
    assert b.same(scaled, 2 * every.sum(0))


def integers_are_averaged_by_truncation(b: BindingUnderTest) -> None:
    """Truncation is toward zero."""
    total = sum(range(b.size)) + 1
    mine = b.rank + (b.rank == 0)
    assert b.values(b.hvd.allreduce(b.make([mine, -mine], "int64"))).tolist() == [total // b.size, -(total // b.size)]


def adasum_of_equal_and_of_orthogonal_tensors(b: BindingUnderTest) -> None:
    """Equal ones are averaged, orthogonal ones added."""
    same = b.make([3.0, 4.0], "float32")
    assert b.same(b.hvd.allreduce(same, op=b.hvd.Adasum), [3.0, 4.0], 1e-6)
    axis = b.make(np.eye(b.size)[b.rank])
    assert b.same(b.hvd.allreduce(axis, op=b.hvd.Adasum), np.ones(b.size), 1e-12)


def shapes_and_strides(b: BindingUnderTest) -> None:
    """Scalars, empty tensors, and views, which are written in place."""
    for shape in ((), (0,), (3, 0), (1,), (2, 3, 4)):
        every = b.every(*shape)
        assert b.same(b.hvd.allreduce(b.mine(*shape), op=b.hvd.Sum), every.sum(0)), shape
        assert b.same(b.hvd.broadcast(b.mine(*shape), b.size - 1), every[-1]), shape
    assert b.same(b.hvd.allreduce(b.repeated(1.0, 3), op=b.hvd.Sum), [b.size] * 3)
    _views_are_reduced_where_they_lie(b, 4, 3)


def large_tensors(b: BindingUnderTest) -> None:
    """More bytes than fit into announcements: an engine has to move them."""
    every = b.every(300, 70)
    assert b.same(b.hvd.allreduce(b.mine(300, 70), op=b.hvd.Sum), every.sum(0))
    assert b.same(b.hvd.broadcast(b.mine(300, 70), b.size - 1), every[-1])
    if b.in_place:
        tensor = b.mine(300, 70)
        assert b.hvd.broadcast_(tensor, b.size - 1) is tensor
        assert b.same(tensor, every[-1])
    grouped = b.hvd.grouped_allreduce([b.mine(300, 70, dtype=dtype) for dtype in ("int32", "float32")], op=b.hvd.Max)
    assert [b.same(found, every.max(0)) for found in grouped] == [True] * 2
    _views_are_reduced_where_they_lie(b, 300, 70)


def _views_are_reduced_where_they_lie(b: BindingUnderTest, *shape: int) -> None:
    everyone = [b.views(values) for values in b.every(*shape)]
    for i, view in enumerate(everyone[b.rank]):
        total = np.sum([b.values(views[i]) for views in everyone], axis=0)
        assert b.same(b.hvd.allreduce(view, op=b.hvd.Sum), total), i
        if b.in_place:
            assert b.hvd.allreduce_(view, op=b.hvd.Sum) is view
            assert b.same(view, total), i


def asynchronous_variants(b: BindingUnderTest) -> None:
    """Results in any order, each once; inputs do not change."""
    total, original = b.every(5).sum(0), b.mine(5)
    handle = b.hvd.allreduce_async(original, name="async", op=b.hvd.Sum)
    assert b.same(b.hvd.synchronize(handle), total)
    assert b.hvd.synchronize(handle) is None
    assert b.same(original, b.every(5)[b.rank])
    handles = [b.hvd.allreduce_async(b.mine(5), name=f"many{i}", op=b.hvd.Sum) for i in range(20)]
    for handle in reversed(handles):
        assert b.same(b.hvd.synchronize(handle), total)
    handle = b.hvd.broadcast_async(b.mine(5), 0)
    assert b.same(b.hvd.synchronize(handle), b.every(5)[0])
    with raises(ValueError, "no handle in flight"):
        b.hvd.poll(handle)


def in_place_variants(b: BindingUnderTest) -> None:
    """Results in the given tensor; an error for immutable tensors, and the next call works."""
    if not b.in_place:
        _in_place_is_refused(b)
        return
    total, mine = b.every(5).sum(0), b.mine(5)
    assert b.hvd.allreduce_(mine, op=b.hvd.Sum) is mine
    assert b.same(mine, total)
    handles = [b.hvd.allreduce_async_(b.mine(5), name=f"many{i}", op=b.hvd.Sum) for i in range(20)]
    for handle in reversed(handles):
        assert b.same(b.hvd.synchronize(handle), total)
    mine = b.mine(5)
    assert b.hvd.synchronize(b.hvd.broadcast_async_(mine, 0)) is mine
    assert b.same(mine, b.every(5)[0])
    pair = [b.mine(5), b.mine(2)]
    assert all(a is t for a, t in zip(b.hvd.grouped_allreduce_(pair, op=b.hvd.Sum), pair, strict=True))
    b.hvd.synchronize(b.hvd.grouped_allreduce_async_(pair, op=b.hvd.Max))
    assert [b.same(t, b.every(n).sum(0)) for t, n in zip(pair, (5, 2), strict=True)] == [True] * 2


def _in_place_is_refused(b: BindingUnderTest) -> None:
    for suffix in ("_", "_async_"):
        for verb, given in (("allreduce", (b.mine(5),)), ("grouped_allreduce", ([b.mine(5)],))):
            with raises(ValueError, "in place"):
                getattr(b.hvd, verb + suffix)(*given)
        with raises(ValueError, "in place"):
            getattr(b.hvd, f"broadcast{suffix}")(b.mine(5), 0)
        assert b.same(b.hvd.allreduce(b.mine(5), op=b.hvd.Sum), b.every(5).sum(0))


def grouped_allreduce(b: BindingUnderTest) -> None:
    """Groups of mixed dtypes, of none, and in all variants."""
    kinds = (((3,), "float64"), ((2, 2), "int32"), ((1,), "float64"))
    mine = [b.mine(*shape, dtype=dtype) for shape, dtype in kinds]
    every = [b.every(*shape, dtype=dtype).sum(0) for shape, dtype in kinds]
    for results in (
        b.hvd.grouped_allreduce(mine, op=b.hvd.Sum),
        b.hvd.synchronize(b.hvd.grouped_allreduce_async(mine, op=b.hvd.Sum)),
    ):
        assert [b.same(found, total) for found, total in zip(results, every, strict=True)] == [True] * 3
        assert [b.dtype(found) for found in results] == [dtype for _, dtype in kinds]
    assert b.hvd.grouped_allreduce([]) == []


def reducescatter(b: BindingUnderTest) -> None:
    """Uneven shares of rows, in all variants."""
    every = b.every(2 * b.size + 1, 3)
    rows = [2 + (r < 1) for r in range(b.size)]
    begin = sum(rows[: b.rank])
    mine, twice, share = b.make(every[b.rank]), b.make(2 * every[b.rank]), slice(begin, begin + rows[b.rank])
    assert b.same(b.hvd.reducescatter(mine, op=b.hvd.Sum), every.sum(0)[share])
    assert b.same(b.hvd.reducescatter(mine), every.mean(0)[share], 1e-12)
    assert b.same(b.hvd.reducescatter(mine, op=b.hvd.Max), every.max(0)[share])
    handle = b.hvd.reducescatter_async(mine, "rs", b.hvd.Sum)
    assert b.same(b.hvd.synchronize(handle), every.sum(0)[share])
    pair = list(b.hvd.grouped_reducescatter([mine, twice], op=b.hvd.Sum))
    pair += b.hvd.synchronize(b.hvd.grouped_reducescatter_async([mine, twice], op=b.hvd.Sum))
    for i, result in enumerate(pair):
        assert b.same(result, (1 + i % 2) * every.sum(0)[share])


def compression(b: BindingUnderTest) -> None:
    """Dtypes stay; integers are sent as they are."""
    total = b.every(9).sum(0)
    for name in b.compressors:
        how = getattr(b.hvd.Compression, name)
        result = b.hvd.allreduce(b.mine(9, dtype="float32"), compression=how, op=b.hvd.Sum)
        assert b.dtype(result) == "float32"
        assert b.same(result, total, 1e-2)
        assert b.dtype(b.hvd.allreduce(b.make([2], "int64"), compression=how)) == "int64"
