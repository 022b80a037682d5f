"""Checks of the collectives and their gradients, run by every rank of a job at once."""

from __future__ import annotations

import ctypes
import importlib.util
import json
import socket
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest
import torch

import farandole.torch as hvd
from farandole.collective import ReduceOp, Reduction
from farandole.runtime.collectives.objects import BufferAdapter
from farandole.runtime.collectives.verbs import Verbs

Act: TypeAlias = Callable[[], object]

DTYPES = [
    torch.uint8, torch.int8, torch.uint16, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16,
    torch.float32, torch.float64, torch.bool, torch.complex64, torch.complex128,
]  # fmt: skip
SUMMED = [d for d in DTYPES if d is not torch.bool]


def per_rank(rank: int, *shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """Values that differ by rank, and are small enough for every dtype to hold their sum."""
    generator = torch.Generator().manual_seed(100 + rank)
    return torch.randint(0, 6, shape, generator=generator).to(dtype)


def of_all(*shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """What every rank has, stacked."""
    return torch.stack([per_rank(r, *shape, dtype=dtype) for r in range(hvd.size())])


def check_allreduce_of_every_dtype() -> None:
    for dtype in SUMMED:
        result = hvd.allreduce(per_rank(hvd.rank(), 4, 5, dtype=dtype), op=hvd.Sum)
        assert result.dtype == dtype
        wide = torch.complex128 if dtype.is_complex else torch.float64
        assert torch.equal(result.to(wide), of_all(4, 5).to(wide).sum(0)), dtype
    assert hvd.allreduce(torch.tensor([hvd.rank() == 0]), op=hvd.Sum).item() is True
    assert hvd.allreduce(torch.tensor([hvd.rank() == 0]), op=hvd.Min).item() is (hvd.size() == 1)


def check_every_reduction() -> None:
    mine, every = per_rank(hvd.rank(), 7) + 1, of_all(7) + 1
    for op, expected in (
        (hvd.Average, every.mean(0)),
        (hvd.Min, every.amin(0)),
        (hvd.Max, every.amax(0)),
        (hvd.Product, every.prod(0)),
    ):
        torch.testing.assert_close(hvd.allreduce(mine, op=op), expected)
    assert torch.equal(hvd.allreduce(mine, average=False), every.sum(0))
    torch.testing.assert_close(hvd.allreduce(mine, average=True), every.mean(0))
    torch.testing.assert_close(hvd.allreduce(mine), every.mean(0))
    scaled = hvd.allreduce(mine, op=hvd.Sum, prescale_factor=0.5, postscale_factor=4.0)
    torch.testing.assert_close(scaled, 2 * every.sum(0))


def check_integers_are_averaged_by_truncation() -> None:
    total = sum(range(hvd.size())) + 1
    mine = torch.tensor([hvd.rank(), -hvd.rank()]) + torch.tensor([1, -1]) * (hvd.rank() == 0)
    assert hvd.allreduce(mine).tolist() == [total // hvd.size(), -(total // hvd.size())]


def check_adasum_of_equal_and_of_orthogonal_tensors() -> None:
    same = torch.tensor([3.0, 4.0])
    torch.testing.assert_close(hvd.allreduce(same, op=hvd.Adasum), same)
    axis = torch.eye(hvd.size(), dtype=torch.float64)[hvd.rank()]
    torch.testing.assert_close(hvd.allreduce(axis, op=hvd.Adasum), torch.ones(hvd.size(), dtype=torch.float64))


def check_shapes_and_strides() -> None:
    for shape in ((), (0,), (3, 0), (1,), (2, 3, 4)):
        mine, every = per_rank(hvd.rank(), *shape), of_all(*shape)
        assert torch.equal(hvd.allreduce(mine, op=hvd.Sum), every.sum(0)), shape
        assert torch.equal(hvd.broadcast(mine, hvd.size() - 1), every[-1]), shape
    transposed = per_rank(hvd.rank(), 4, 3).t()
    assert torch.equal(hvd.allreduce(transposed, op=hvd.Sum), of_all(4, 3).sum(0).t())
    strided = per_rank(hvd.rank(), 12)[::3]
    assert torch.equal(hvd.allreduce_(strided, op=hvd.Sum), of_all(12)[:, ::3].sum(0))
    assert torch.equal(strided, of_all(12)[:, ::3].sum(0))
    expanded = torch.tensor([1.0]).expand(3)
    assert hvd.allreduce(expanded, op=hvd.Sum).tolist() == [float(hvd.size())] * 3
    conjugated = torch.tensor([1 + 2j]).conj()
    assert hvd.allreduce(conjugated).tolist() == [1 - 2j]


def check_in_place_and_async_variants() -> None:
    every = of_all(5)
    mine = per_rank(hvd.rank(), 5)
    assert hvd.allreduce_(mine, op=hvd.Sum) is mine
    assert torch.equal(mine, every.sum(0))
    original = per_rank(hvd.rank(), 5)
    handle = hvd.allreduce_async(original, name="async", op=hvd.Sum)
    assert torch.equal(hvd.synchronize(handle), every.sum(0))
    assert hvd.synchronize(handle) is None
    assert torch.equal(original, per_rank(hvd.rank(), 5))
    handles = [hvd.allreduce_async_(per_rank(hvd.rank(), 5), name=f"many{i}", op=hvd.Sum) for i in range(20)]
    for handle in reversed(handles):
        assert torch.equal(hvd.synchronize(handle), every.sum(0))
    handle = hvd.broadcast_async(mine, 0)
    assert torch.equal(hvd.synchronize(handle), every.sum(0))
    mine = per_rank(hvd.rank(), 5)
    hvd.synchronize(hvd.broadcast_async_(mine, 0))
    assert torch.equal(mine, every[0])
    with pytest.raises(ValueError, match="no handle in flight"):
        hvd.poll(handle)


def check_that_writing_in_place_is_noticed_by_autograd() -> None:
    weight = torch.ones(3, requires_grad=True)
    saved = torch.ones(3)
    product = (weight * saved).sum()
    hvd.allreduce_(saved)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.backward()


def check_grouped_allreduce() -> None:
    mine = [per_rank(hvd.rank(), 3), per_rank(hvd.rank(), 2, 2, dtype=torch.int32), per_rank(hvd.rank(), 1)]
    every = [of_all(3).sum(0), of_all(2, 2, dtype=torch.int32).sum(0), of_all(1).sum(0)]
    for result in (
        hvd.grouped_allreduce(mine, op=hvd.Sum),
        hvd.synchronize(hvd.grouped_allreduce_async(mine, op=hvd.Sum)),
    ):
        assert [torch.equal(a, b.to(a.dtype)) for a, b in zip(result, every, strict=True)] == [True] * 3
    copies = [t.clone() for t in mine]
    assert all(a is b for a, b in zip(hvd.grouped_allreduce_(copies, op=hvd.Sum), copies, strict=True))
    hvd.synchronize(hvd.grouped_allreduce_async_(copies, op=hvd.Max))
    assert [torch.equal(a, b.to(a.dtype)) for a, b in zip(copies, every, strict=True)] == [True] * 3
    assert hvd.grouped_allreduce([]) == []


def check_allgather() -> None:
    rank, size = hvd.rank(), hvd.size()
    for dtype in DTYPES:
        gathered = hvd.allgather(per_rank(rank, rank + 1, 2, dtype=dtype))
        assert torch.equal(gathered, torch.cat([per_rank(r, r + 1, 2, dtype=dtype) for r in range(size)])), dtype
    assert hvd.allgather(torch.tensor(rank)).tolist() == list(range(size))
    assert hvd.allgather(torch.zeros(0, 3)).shape == (0, 3)
    only_last = hvd.allgather(torch.full((3 if rank == size - 1 else 0,), float(rank)))
    assert only_last.tolist() == [size - 1.0] * 3
    handle = hvd.allgather_async(torch.tensor([rank]), name="gather")
    assert hvd.synchronize(handle).tolist() == list(range(size))
    first, second = hvd.grouped_allgather([torch.tensor([rank]), torch.full((rank, 2), 0.5)])
    assert (first.tolist(), second.shape) == (list(range(size)), (sum(range(size)), 2))
    grouped = hvd.synchronize(hvd.grouped_allgather_async([torch.tensor([rank])] * 2))
    assert [g.tolist() for g in grouped] == [list(range(size))] * 2


def check_alltoall() -> None:
    rank, size = hvd.rank(), hvd.size()
    even = hvd.alltoall(torch.arange(2 * size) + 100 * rank)
    assert isinstance(even, torch.Tensor)
    assert even.tolist() == [100 * r + 2 * rank + i for r in range(size) for i in range(2)]
    splits = [r + 1 for r in range(size)]
    tensor = torch.full((sum(splits), 2), float(rank))
    for given in (splits, torch.tensor(splits, dtype=torch.int32)):
        rows, counts = hvd.alltoall(tensor, splits=given)
        assert counts.tolist() == [rank + 1] * size
        assert rows[:, 0].tolist() == [float(r) for r in range(size) for _ in range(rank + 1)]
    rows, counts = hvd.synchronize(hvd.alltoall_async(torch.ones(0), splits=[0] * size))
    assert (rows.numel(), counts.tolist()) == (0, [0] * size)


def check_reducescatter() -> None:
    rank, size = hvd.rank(), hvd.size()
    every = of_all(2 * size + 1, 3)
    mine = every[rank]
    rows = [2 + (r < 1) for r in range(size)]
    begin = sum(rows[:rank])
    share = slice(begin, begin + rows[rank])
    assert torch.equal(hvd.reducescatter(mine, op=hvd.Sum), every.sum(0)[share])
    torch.testing.assert_close(hvd.reducescatter(mine), every.mean(0)[share])
    assert torch.equal(hvd.reducescatter(mine, op=hvd.Max), every.amax(0)[share])
    handle = hvd.reducescatter_async(mine, "rs", hvd.Sum)
    assert torch.equal(hvd.synchronize(handle), every.sum(0)[share])
    pair = hvd.grouped_reducescatter([mine, 2 * mine], op=hvd.Sum)
    pair += hvd.synchronize(hvd.grouped_reducescatter_async([mine, 2 * mine], op=hvd.Sum))
    for i, result in enumerate(pair):
        assert torch.equal(result, (1 + i % 2) * every.sum(0)[share])


def check_sparse_allreduce() -> None:
    rank, size = hvd.rank(), hvd.size()
    values = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    every = [torch.sparse_coo_tensor(torch.tensor([[0, r + 1]]), values, (size + 1, 2)) for r in range(size)]
    tensor, dense = every[rank], torch.stack([t.to_dense() for t in every]).sum(0)
    result = hvd.sparse_allreduce_async(tensor, name="sparse", op=hvd.Sum)()
    assert result.is_sparse
    assert torch.equal(result.to_dense(), dense)
    mean = hvd.sparse_allreduce_async(tensor, name="sparse", op=hvd.Average)()
    torch.testing.assert_close(mean.to_dense(), dense / size)


def check_compression() -> None:
    mine, every = per_rank(hvd.rank(), 9, dtype=torch.float32), of_all(9, dtype=torch.float32)
    for compression in (hvd.Compression.none, hvd.Compression.fp16, hvd.Compression.bf16):
        result = hvd.allreduce(mine, compression=compression, op=hvd.Sum)
        assert result.dtype == torch.float32
        torch.testing.assert_close(result, every.sum(0), rtol=1e-2, atol=1e-2)
        assert hvd.allreduce(torch.tensor([2]), compression=compression).dtype == torch.int64


def check_objects() -> None:
    rank, size = hvd.rank(), hvd.size()
    assert hvd.broadcast_object({"rank": rank, "text": "é" * 1000}, root_rank=size - 1)["rank"] == size - 1
    assert hvd.allgather_object([rank] * rank) == [[r] * r for r in range(size)]


def check_process_sets() -> None:
    rank, size = hvd.rank(), hvd.size()
    if size == 1:
        return
    tail = hvd.add_process_set(list(range(1, size)))
    if rank:
        assert (tail.size(), tail.rank()) == (size - 1, rank - 1)
        assert hvd.allreduce(torch.tensor([rank]), op=hvd.Sum, process_set=tail).item() == sum(range(1, size))
        assert hvd.broadcast(torch.tensor([rank]), root_rank=size - 1, process_set=tail).item() == size - 1
        assert hvd.allgather_object(rank, process_set=tail) == list(range(1, size))
        assert hvd.broadcast_object(rank, root_rank=1, process_set=tail) == 1
        with pytest.raises(ValueError, match="global rank"):
            hvd.broadcast(torch.ones(1), root_rank=0, process_set=tail)
    else:
        with pytest.raises(ValueError, match="included"):
            hvd.allreduce(torch.ones(1), process_set=tail)
    assert hvd.remove_process_set(tail) is True


def check_that_what_cannot_be_right_raises_at_once() -> None:
    ones = torch.ones(3)
    for wrong, text in (
        (lambda: hvd.allreduce(ones, average=True, op=hvd.Sum), "both average= and op="),
        (lambda: hvd.allreduce(ones, op=17), "no reduction"),
        (lambda: hvd.allreduce(torch.ones(1, dtype=torch.complex64), op=hvd.Max), "Average, Sum, Product"),
        (lambda: hvd.allreduce(torch.ones(1, dtype=torch.int32), op=hvd.Adasum), "op=Adasum of a int32"),
        (lambda: hvd.reducescatter(ones, op=hvd.Adasum), "op=Adasum"),
        (lambda: hvd.reducescatter(torch.tensor(1.0)), "scalar"),
        (lambda: hvd.alltoall(ones, splits=[3] * hvd.size() + [0]), "splits"),
        (lambda: hvd.alltoall(ones, splits=[4] + [0] * (hvd.size() - 1)), "add up to 4, but dimension 0 has 3"),
        (lambda: hvd.alltoall(ones, splits=[-1] * hvd.size()), "none of them negative"),
        (lambda: hvd.broadcast(ones, root_rank=hvd.size()), "root_rank"),
        (lambda: hvd.allreduce(torch.ones(2, device="meta")), "cpu tensors"),
        (lambda: hvd.grouped_allreduce([ones, torch.ones(2, device="meta")]), "cpu tensors"),
        (lambda: hvd.allreduce(ones.to_sparse()), "to_dense"),
        (lambda: hvd.allreduce(torch.ones(1).to(torch.float8_e4m3fn)), "does not travel"),
    ):
        with pytest.raises(ValueError, match=text):
            wrong()
    assert hvd.allreduce(ones).tolist() == [1.0] * 3


def check_that_disagreement_raises_everywhere_and_the_next_call_works() -> None:
    if hvd.size() == 1:
        return
    for name, tensor in (
        ("shape", torch.ones(2 + hvd.rank())),
        ("dtype", torch.ones(2).to(DTYPES[8 + hvd.rank() % 2])),
    ):
        with pytest.raises(hvd.HorovodInternalError, match=name):
            hvd.allreduce(tensor, name=f"differs in {name}")
        assert hvd.allreduce(torch.ones(1), name=f"differs in {name}").item() == 1.0
    last = hvd.rank() == hvd.size() - 1
    rows = torch.ones(2 * hvd.size() + last)
    for splits, text in (
        (None, "rows cannot be split evenly"),
        ([2] * hvd.size(), "add up to"),
        ([2] * hvd.size() + [1] * last, "give one for each"),
    ):
        with pytest.raises(hvd.HorovodInternalError, match=rf"rank {hvd.size() - 1} on .*{text}"):
            hvd.alltoall(rows, splits=splits)
        assert hvd.allreduce(torch.ones(1)).item() == 1.0


def _sparse(dense: torch.Tensor, op: int = hvd.Sum) -> torch.Tensor:
    return hvd.sparse_allreduce_async(dense.to_sparse(), "s", op=op)()


def _wrong_and_right(ones: torch.Tensor) -> tuple[tuple[Act, Act, str], ...]:
    """What one rank may not do, what the others do meanwhile, and what all are told."""
    return (
        (
            lambda: hvd.allreduce(ones.to(torch.float8_e4m3fn), name="x"),
            lambda: hvd.allreduce(ones, name="x"),
            "travel",
        ),
        (
            lambda: hvd.allreduce(ones.int(), name="x", op=hvd.Adasum),
            lambda: hvd.allreduce(ones, name="x"),
            "op=Adasum",
        ),
        (lambda: hvd.allreduce(ones, op=17), lambda: hvd.allreduce(ones), "no reduction"),
        (lambda: hvd.reducescatter(ones, op=17), lambda: hvd.reducescatter(ones), "no reduction"),
        (
            lambda: hvd.allreduce(ones, name="x", average=True, op=hvd.Sum),
            lambda: hvd.allreduce(ones, name="x", average=True),
            "both average= and op=",
        ),
        (
            lambda: hvd.allreduce_async(ones.to("meta")),
            lambda: hvd.synchronize(hvd.allreduce_async(ones)),
            "cpu tensors",
        ),
        (lambda: _sparse(ones, op=17), lambda: _sparse(ones), "no reduction"),
        (lambda: _sparse(ones, op=hvd.Max), lambda: _sparse(ones), "Sum or Average"),
        (lambda: hvd.sparse_allreduce_async(ones, "s", op=hvd.Sum), lambda: _sparse(ones), "to_sparse"),
        (lambda: hvd.broadcast(ones, hvd.size()), lambda: hvd.broadcast(ones, 0), "root_rank"),
        (lambda: hvd.reducescatter(ones[0]), lambda: hvd.reducescatter(ones), "scalar"),
        (lambda: hvd.alltoall(ones, splits=[-1]), lambda: hvd.alltoall(ones, splits=[1] * hvd.size()), "negative"),
    )


def check_that_what_one_rank_cannot_do_raises_everywhere_and_the_next_call_works() -> None:
    last, ones = hvd.rank() == hvd.size() - 1, torch.ones(3)
    if hvd.size() == 1:
        return
    for wrong, right, text in _wrong_and_right(ones):
        for attempt in range(2):
            if last:
                with pytest.raises(ValueError, match=text):
                    wrong()
            else:
                with pytest.raises(
                    hvd.HorovodInternalError, match=rf"rank {hvd.size() - 1} on \S+ said it cannot: .*{text}"
                ):
                    right()
            assert hvd.allreduce(ones, name="x").tolist() == [1.0] * 3, attempt


def check_unnamed_calls_of_two_frameworks() -> None:
    other = Verbs(BufferAdapter())
    for turn in range(3):
        mine, theirs = torch.tensor([hvd.rank()]), (ctypes.c_char * 2)(*[bytes([r + hvd.rank()]) for r in range(2)])
        handles = [hvd.allreduce_async(mine, op=hvd.Sum), hvd.allreduce_async(mine, op=hvd.Max)]
        begun = other.allreduce([theirs], None, Reduction(ReduceOp.MAX), hvd.global_process_set).begin()
        handles.append(hvd.allreduce_async(mine, op=hvd.Min))
        assert [hvd.synchronize(h).item() for h in handles] == [sum(range(hvd.size())), hvd.size() - 1, 0], turn
        assert [ord(byte) for byte in begun.wait()[0]] == [hvd.size() - 1, hvd.size()]


def check_a_name_that_is_in_flight() -> None:
    if hvd.rank() == 0 and hvd.size() > 1:
        handle = hvd.allreduce_async(torch.ones(2), name="twice", op=hvd.Sum)
        assert not hvd.poll(handle)
        with pytest.raises(ValueError, match="twice"):
            hvd.allreduce_async(torch.ones(2), name="twice", op=hvd.Sum)
    hvd.barrier()
    if hvd.rank() > 0 or hvd.size() == 1:
        handle = hvd.allreduce_async(torch.ones(2), name="twice", op=hvd.Sum)
    assert hvd.synchronize(handle).tolist() == [hvd.size()] * 2


def check_the_topology_and_the_probes() -> None:
    assert hvd.is_initialized()
    hosts = hvd.allgather_object(socket.gethostname())
    here = [rank for rank, host in enumerate(hosts) if host == socket.gethostname()]
    assert (hvd.local_rank(), hvd.local_size()) == (here.index(hvd.rank()), len(here))
    like_me = [host for host in dict.fromkeys(hosts) if hosts.count(host) > hvd.local_rank()]
    assert (hvd.cross_rank(), hvd.cross_size()) == (like_me.index(socket.gethostname()), len(like_me))
    assert hvd.is_homogeneous() is (len({hosts.count(host) for host in hosts}) == 1)
    assert hvd.gloo_enabled() is not hvd.mpi_enabled()
    probes = (
        hvd.mpi_built,
        hvd.gloo_built,
        hvd.nccl_built,
        hvd.ddl_built,
        hvd.ccl_built,
        hvd.cuda_built,
        hvd.rocm_built,
    )
    mpi4py = importlib.util.find_spec("mpi4py") is not None
    assert [bool(probe()) for probe in probes] == [mpi4py, True, False, False, False, False, False]
    assert [int(op) for op in (hvd.Average, hvd.Sum, hvd.Adasum, hvd.Min, hvd.Max, hvd.Product)] == list(range(6))


def check_a_timeline_of_some_calls() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        for _ in range(20):
            hvd.start_timeline(str(path))
            hvd.allreduce(torch.ones(1), name="inside")
            hvd.barrier()  # it is over on every rank
            hvd.stop_timeline()
            complete = path.read_text() if hvd.rank() == 0 else ""
            hvd.allreduce(torch.ones(1), name="outside")
            hvd.barrier()
            if hvd.rank() == 0:
                lines = json.loads(complete.rstrip(",\n") + "]")
                reduced = {line["pid"] for line in lines if line["name"] == "reduce" and "inside" in str(line["args"])}
                assert reduced == set(range(hvd.size()))
                assert path.read_text() == complete


def check_join_and_barrier() -> None:
    hvd.barrier()
    last = 0
    for i in range(hvd.rank()):
        total = hvd.allreduce(torch.ones(2), name=f"uneven{i}", op=hvd.Sum)
        assert total.tolist() == [float(hvd.size() - 1 - i)] * 2
        assert hvd.allreduce(torch.ones(1), name=f"mean{i}").item() == pytest.approx(1 - (i + 1) / hvd.size())
    last = hvd.join()
    assert hvd.broadcast_object(last) == last
    assert 0 <= last < hvd.size()
