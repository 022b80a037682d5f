"""Negotiated collectives of a real job against NumPy: one launch per size, one test per case."""

from __future__ import annotations

import functools
import itertools
import statistics
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from farandole.collective import Array, DType, Kind, ReduceOp, Reduction
from farandole.errors import DuplicateNameError, MismatchError, UnsupportedError, UsageError
from farandole.runtime.lanes.call import Call
from farandole.runtime.lanes.inline_payload import EAGER_BYTES
from farandole.runtime.session.init import current, global_process_set, init, shutdown
from farandole.runtime.session.process_sets import ProcessSet
from farandole.testing import reference
from farandole.testing.rank import RankContext
from tests.support.patience import PATIENCE_S
from tests.support.runtime.cases import play, require
from workbench.jobs import NumpyCalls, run_job

Case = Callable[[int, int], None]


def _values(rank: int, dtype: DType, count: int = 11) -> Any:
    return reference.encode(dtype, (np.arange(count) + rank) % 3 + 1)


def reductions_of_every_dtype(rank: int, size: int) -> None:
    for dtype, op in itertools.product(DType, ReduceOp):
        if not reference.legal(dtype, op):
            continue
        for count in (3, 70):  # travels with the announcement, and through the engine
            everyone = [_values(r, dtype, count) for r in range(size)]
            x = everyone[rank].copy()
            NumpyCalls(dtype=dtype).allreduce(f"{dtype.label}.{op.label}.{count}", x, op)
            assert reference.same(dtype, x, reference.reduce(dtype, op, everyone)), (dtype, op, x)


def a_few_bytes_need_no_engine(rank: int, size: int) -> None:
    do = NumpyCalls()
    before = current().statistics()["engines"]
    for turn in range(4):  # in full, and by number
        single, scaled = np.full(EAGER_BYTES // 8, float(rank)), np.array([rank + 1.0, 1.0], np.float32)
        do.allreduce("single", single, ReduceOp.MAX)
        do.submit(*(do.reduction(f"pair.{i}", part) for i, part in enumerate(np.split(scaled, 2)))).wait()
        np.testing.assert_array_equal(single, np.full_like(single, size - 1))
        np.testing.assert_array_equal(scaled, [size * (size + 1) / 2, size], err_msg=f"turn {turn}")
    assert size == 1 or current().statistics()["engines"] == before
    do.allreduce("larger", np.ones(EAGER_BYTES // 8 + 1))
    assert current().statistics()["engines"] != before


def scales_apply_before_and_after(rank: int, size: int) -> None:
    x = np.full(4, rank + 1.0)
    NumpyCalls().allreduce("scaled", x, ReduceOp.SUM, (0.5, 10.0))
    np.testing.assert_allclose(x, 5.0 * sum(range(1, size + 1)))


def a_group_may_mix_dtypes_and_sizes(rank: int, size: int) -> None:
    do = NumpyCalls()
    held = [
        np.ones(n, t) for n, t in ((3, "float32"), (0, "float32"), (70_000, "float32"), (2, "int64"), (5, "float32"))
    ]
    do.submit(*(do.reduction(f"group.{i}", x) for i, x in enumerate(held))).wait()
    for x in held:
        np.testing.assert_array_equal(x, np.full_like(x, size))


def gather_scatter_and_exchange_uneven_parts(rank: int, size: int) -> None:
    do = NumpyCalls()
    rows = np.full((rank, 2), rank, np.int32)
    together, outcome = do.allgather("rows", rows)
    np.testing.assert_array_equal(together[:, 0], np.repeat(np.arange(size), np.arange(size)))
    assert outcome.received_splits == tuple(range(size))
    splits = tuple(r + rank for r in range(size))
    received, outcome = do.alltoall("parts", np.full((sum(splits), 1), rank, np.int16), splits)
    expected = tuple(rank + r for r in range(size))
    assert outcome.received_splits == expected
    np.testing.assert_array_equal(received[:, 0], np.repeat(np.arange(size), expected))
    even, _ = do.alltoall("even", np.arange(2 * size) + 100 * rank)
    np.testing.assert_array_equal(even, np.concatenate([100 * r + 2 * rank + np.arange(2) for r in range(size)]))
    first = size + 1
    part = do.reducescatter("scattered", np.arange(first * 2.0).reshape(first, 2))
    cut = [first // size + (r < first % size) for r in range(size)]
    begin = sum(cut[:rank])
    np.testing.assert_array_equal(part, size * np.arange(first * 2.0).reshape(first, 2)[begin : begin + cut[rank]])


def any_rank_may_be_the_root(rank: int, size: int) -> None:
    for root in range(size):
        x = np.full(5, rank, np.uint8)
        NumpyCalls().broadcast("from", x, root)
        np.testing.assert_array_equal(x, np.full(5, root))


def names_match_in_any_order_and_small_ones_are_fused(rank: int, size: int) -> None:
    do = NumpyCalls()
    held = {f"any.{i}": np.full(17, float(i)) for i in range(150)}
    order = np.random.default_rng(rank).permutation(list(held))
    handles = [do.submit(do.reduction(name, held[name])) for name in order]
    for handle in handles:
        handle.wait()
    for i, x in enumerate(held.values()):
        np.testing.assert_array_equal(x, np.full(17, float(i) * size))


def threads_may_wait_at_once(rank: int, size: int) -> None:
    wrong: list[str] = []

    def work(t: int) -> None:
        do = NumpyCalls()
        for i in range(20):
            x = np.full(3, float(t))
            do.allreduce(f"thread.{t}", x)
            if (x != t * size).any():
                wrong.append(f"{t} {i}: {x}")

    threads = [threading.Thread(target=work, args=(t,)) for t in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert not wrong
    assert not any(thread.is_alive() for thread in threads)


def handles_finish_without_anybody_waiting(rank: int, size: int) -> None:
    do, x = NumpyCalls(), np.ones(1)
    handle = do.submit(do.reduction("polled", x))
    deadline = time.monotonic() + 30
    while not handle.done():
        assert time.monotonic() < deadline
    assert x[0] == size
    assert handle.wait() == handle.wait()


def a_thread_with_time_to_spare_waits_itself(rank: int, size: int) -> None:
    """Where the others come in time; else the background goes on, and ranks that wait for this one are not kept."""
    do = NumpyCalls()
    for turn in range(6):
        early = np.full(2, rank + 1.0)
        call = do.reduction("spare", early)
        if turn < 3:  # in full, by number, and from now on from rank to rank; the background has nothing to lead
            current().submit([call], background=False).wait()
        else:
            assert current().submit([call], progress_s=60.0).done(), turn
        np.testing.assert_array_equal(early, np.full(2, size * (size + 1) / 2))
    for _ in range(6):
        late = np.full(2, rank + 2.0)
        if rank:
            do.allreduce("go", np.ones(1))
        handle = current().submit([do.reduction("late", late)], progress_s=0.001)
        if rank == 0:
            assert not handle.done() or size == 1
            do.allreduce("go", np.ones(1))
        handle.wait()
        np.testing.assert_array_equal(late, np.full(2, size * (size + 1) / 2 + size))


def a_name_is_in_flight_once(rank: int, size: int) -> None:
    do, x, y = NumpyCalls(), np.ones(1), np.ones(1)
    if rank == 0:
        first = do.submit(do.reduction("twice", x))
        with pytest.raises(DuplicateNameError, match=r"allreduce\.twice"):
            do.submit(do.reduction("twice", y))
        current().barrier()
    else:
        current().barrier()
        first = do.submit(do.reduction("twice", x))
    first.wait()
    do.allreduce("twice", y)
    assert x[0] == y[0] == size


def what_differs_raises_everywhere_and_the_next_works(rank: int, size: int) -> None:
    last = rank == size - 1
    do = NumpyCalls()
    differing: dict[str, Callable[[], object]] = {
        "dtype": lambda: do.allreduce("d", np.ones(3, "float32" if last else "float64")),
        "shape": lambda: do.allreduce("s", np.ones(3 if last else 4)),
        "reduce operation": lambda: do.allreduce("o", np.ones(3), ReduceOp.MAX if last else ReduceOp.MIN),
        "prescale": lambda: do.allreduce("p", np.ones(3), scales=(2.0 if last else 1.0, 1.0)),
        "postscale": lambda: do.allreduce("q", np.ones(3), scales=(1.0, 2.0 if last else 1.0)),
        "splits": lambda: do.alltoall("a", np.ones(size + last), (1,) * size),
        "root": lambda: do.broadcast("r", np.ones(3), int(last)),
        "members of the group": lambda: do.submit(
            *(do.reduction(f"g.{i}", np.ones(2)) for i in range(2 + last))
        ).wait(),
        "after dimension 0": lambda: do.allgather("t", np.ones((2, 3 + last))),
    }
    took = []
    for aspect, announcement in differing.items():
        begin = time.monotonic()
        with pytest.raises(MismatchError, match=aspect) as caught:
            announcement()
        took.append(time.monotonic() - begin)
        assert f"rank {size - 1}" in str(caught.value)
        scales_apply_before_and_after(rank, size)
    assert statistics.median(took) < 5, took


def a_name_may_change_its_meaning(rank: int, size: int) -> None:
    do = NumpyCalls()
    for count in (3, 3, 3, 3, 5, 5, 5, 3, 3, 3):
        x = np.ones(count)
        do.allreduce("changing", x)
        np.testing.assert_array_equal(x, np.full(count, size))
    for i in range(6):
        together, _ = do.allgather("growing", np.full(rank + (i > 3), rank))
        assert together.size == sum(range(size)) + size * (i > 3)


def joined_ranks_contribute_nothing(rank: int, size: int) -> None:
    do = NumpyCalls()
    for i in range(rank):
        here = size - 1 - i  # ranks still taking part
        x, y, z = np.ones(3), np.full(2, rank), np.full(size, 1.0)
        do.allreduce("uneven", x, ReduceOp.AVERAGE)
        np.testing.assert_allclose(x, here / size)
        least = np.full(2, 5.0)
        do.allreduce("least", least, ReduceOp.MIN)
        np.testing.assert_array_equal(least, [5.0, 5.0])
        do.allreduce("opposite", least, ReduceOp.MAX, (-2.0, 1.0))
        np.testing.assert_array_equal(least, [-10.0, -10.0])
        with pytest.raises(MismatchError, match=r"Product with the prescale factor 2 cannot do without rank 0"):
            do.allreduce("product", least, ReduceOp.PRODUCT, (2.0, 1.0))
        alike = np.ones(2)
        do.allreduce("alike", alike, ReduceOp.ADASUM)
        np.testing.assert_allclose(alike, [1.0, 1.0])
        together, outcome = do.allgather("left", y)
        assert together.size == 2 * here
        assert outcome.received_splits[: i + 1] == (0,) * (i + 1)
        do.broadcast("told", z, size - 1)
        do.reducescatter("shares", z)
        do.alltoall("all", z)
    last = current().join()
    assert 0 <= last < size
    scales_apply_before_and_after(rank, size)


def process_sets_come_and_go(rank: int, size: int) -> None:
    session = current()
    ranks = list(range(1, size))
    others = session.add_process_set(reversed(ranks))
    assert others.ranks == ranks
    assert others.included() is (rank > 0)
    do = NumpyCalls(others.process_set_id or 0)
    x = np.array([float(rank)])
    if others.included():
        assert others.rank() == rank - 1
        do.allreduce("few", x)
        assert x[0] == sum(ranks)
        x[0] = rank
        do.broadcast("few", x, size - 1)
        assert x[0] == size - 1
        session.barrier(others.process_set_id or 0)
    else:
        with pytest.raises(UsageError, match="is not in process set"):
            do.allreduce("few", x)
    if size > 2:
        with pytest.raises(MismatchError, match=r"differ in the process set: .*rank 1 on \S+ said process set 2"):
            (do if rank == 1 else NumpyCalls()).allreduce("crossed", np.ones(1))
    with pytest.raises(UsageError, match="already"):
        session.add_process_set(ranks)
    assert session.remove_process_set(others)
    assert not session.remove_process_set(others)
    assert not session.remove_process_set(global_process_set)
    assert others.size() is None
    with pytest.raises(UsageError, match="does not fit a job"):
        session.add_process_set([size])


def planned_lanes_have_engines_of_their_own(rank: int, size: int) -> None:
    session = current()
    engine = session.planned.engine(0, "gradients")
    memory = engine.allocate(1 << 16)
    array = memory.array(DType.FLOAT32)
    reference.view(array)[:] = 1
    with session.planned.lane(0, "gradients").next("bucket 0"):
        assert session.progress()[1] == "bucket 0"
        engine.allreduce(array, Reduction(ReduceOp.SUM))
    assert session.progress()[1] == ""
    np.testing.assert_array_equal(reference.view(array), np.full(1 << 14, size))


def adasum_goes_through_the_lane(rank: int, size: int) -> None:
    x = np.ones(50, np.float32)
    NumpyCalls().allreduce("same", x, ReduceOp.ADASUM)
    np.testing.assert_allclose(x, np.ones(50), rtol=1e-6)


def what_no_engine_serves_is_refused(rank: int, size: int) -> None:
    with pytest.raises(UnsupportedError, match="cuda:0"):
        current().submit([Call(Kind.ALLREDUCE, "far", Array(0, 1, DType.FLOAT32, None, "cuda:0"), (1,))])


CASES: dict[str, Case] = {
    case.__name__: case
    for case in (
        reductions_of_every_dtype,
        a_few_bytes_need_no_engine,
        scales_apply_before_and_after,
        a_group_may_mix_dtypes_and_sizes,
        gather_scatter_and_exchange_uneven_parts,
        any_rank_may_be_the_root,
        names_match_in_any_order_and_small_ones_are_fused,
        threads_may_wait_at_once,
        handles_finish_without_anybody_waiting,
        a_thread_with_time_to_spare_waits_itself,
        a_name_is_in_flight_once,
        what_differs_raises_everywhere_and_the_next_works,
        a_name_may_change_its_meaning,
        joined_ranks_contribute_nothing,
        process_sets_come_and_go,
        planned_lanes_have_engines_of_their_own,
        adasum_goes_through_the_lane,
        what_no_engine_serves_is_refused,
    )
}


def _program(member: RankContext) -> dict[str, str]:
    init(process_sets=[ProcessSet([0])] if member.size > 1 else None)
    rank = current().topology.rank
    found = play({name: functools.partial(case, rank, member.size) for name, case in CASES.items()})
    shutdown()
    return found


@functools.cache
def _launch(size: int) -> list[dict[str, str]]:
    return run_job(_program, size, environment={"FARANDOLE_STALL_SHUTDOWN_S": "30"})


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("size", [2, 3])
def test_collectives(size: int, case: str) -> None:
    require(_launch(size), case)
