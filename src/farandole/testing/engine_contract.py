"""Contract suite of ``Engine``, to run on any implementation.

    def program(member: RankContext) -> dict[str, str]:
        return run_contract(member, lambda group, exchange: MyEngine(group, exchange))

    for failures in run_ranks(program, 3, timeout_s=120):
        assert not any(failures.values()), failures

All cases share one launch, and one engine as long as no case fails, because starting processes costs far more than
checking. A case is a function of a ``Bench``; every rank runs all cases in the same order.
"""

# Processes and threads: every rank is a process of ``run_ranks`` (or, with the fake, a thread of ``run_threads``) and
# runs each case in one thread. Two cases use a second thread on purpose: ``subgroups_and_two_threads``, one thread for
# each of two engines, and ``abort_wakes_waiters``, a timer that calls ``abort``, which any thread may call.
#
# Two means keep the ranks at the same call, without the engine under test. Findings are collected and not raised:
# otherwise peers of a rank with a finding would wait in the next collective. And where members do different things (one
# aborts, one never calls), ``member.exchange``, which uses the harness, holds each member in its ``with`` block until
# all have finished: closing an engine ends the waits of its peers, so a member that closes early would end the very
# wait that ``abort`` or the deadline must end in this test.

from __future__ import annotations

import functools
import hashlib
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TypeAlias

import msgspec
import numpy as np

from farandole.collective import Array, DType, Kind, ReduceOp, Reduction
from farandole.engines.engine import PAYLOAD_BYTES, Engine
from farandole.errors import AbortError, CollectiveError, StallError, UnsupportedError
from farandole.testing import reference
from farandole.testing.bench import MEMORY_BYTES, Bench, Create
from farandole.testing.interruption import TELLING_CALLS, Interruption, Point, Told, interrupted_at, points_of
from farandole.testing.leaks import no_leaks
from farandole.testing.rank import RankContext

Case: TypeAlias = Callable[[Bench], None]

OPS = tuple(op for op in ReduceOp if op is not ReduceOp.ADASUM)
WAKE_S = 8.0
"""Longest time until an aborted wait ends, which would else last 20 s, the group's deadline; machines are busy."""
INTERRUPTED_S = 0.3
"""Deadline of calls that wait for an interrupted member: not every engine can report an interruption to its peers."""
BORDERS = (4096, 65536, 262144)
"""Byte sizes at which engines may change their algorithm; each is tested one element below, at and above."""
_SCALED = tuple((op, factors) for op in OPS if op is not ReduceOp.AVERAGE for factors in ((3.0, 1.0), (1.0, 0.7)))


def run_contract(member: RankContext, create: Create, cases: Mapping[str, Case] | None = None) -> dict[str, str]:
    """Run ``cases`` (default: all); the result maps each case to its findings on this rank ("" for none)."""
    found: dict[str, str] = {}
    bench = _bench(member, create, "contract")
    for name, case in (CASES if cases is None else cases).items():
        found[name] = _run_case(bench, case)
        # Over the harness's sockets, not the engine: a failed engine cannot be trusted to report its failure.
        if any(member.exchange(b"failed" if found[name] else b"")):
            bench.engine.close()  # after a failure the members may be at different calls
            bench = _bench(member, create, f"contract after {name}")
    bench.engine.close()
    return found


def _bench(member: RankContext, create: Create, label: str) -> Bench:
    engine = create(member.group("contract"), member.exchange_among(label))
    return Bench(create, member, engine, engine.allocate(MEMORY_BYTES))


def _run_case(bench: Bench, case: Case) -> str:
    bench.findings.clear()
    try:
        case(bench)
    except Exception:  # not BaseException: the harness reports what ends the whole rank
        bench.findings.append(traceback.format_exc())
    return "\n".join(bench.findings)


def every_op_on_every_dtype(bench: Bench) -> None:
    """All-reduce of few elements, all legal combinations."""
    for dtype in DType:
        for op in OPS:
            if reference.legal(dtype, op):
                for count in (0, 1, 3, 17, 1023):
                    bench.allreduce(dtype, op, count, seed=count)


def sizes_around_borders(bench: Bench) -> None:
    """All-reduce of up to several MB, in ordinary and in engine memory."""
    for dtype in (DType.FLOAT32, DType.BFLOAT16, DType.UINT8, DType.COMPLEX128):
        for border in BORDERS:
            for count in (border // dtype.itemsize + d for d in (-1, 0, 1)):
                for inside in (False, True):
                    bench.allreduce(dtype, ReduceOp.SUM, count, seed=border, inside=inside)
    for inside in (False, True):
        bench.allreduce(DType.FLOAT32, ReduceOp.AVERAGE, 1_500_001, seed=1, inside=inside)
        bench.allreduce(DType.FLOAT16, ReduceOp.MAX, 1_500_001, seed=2, inside=inside)


def scales(bench: Bench) -> None:
    """Prescale and postscale."""
    for dtype in DType:
        if dtype is not DType.BOOL:
            bench.allreduce(dtype, ReduceOp.SUM, 1001, (2.0, 0.5), seed=3)
            bench.allreduce(dtype, ReduceOp.SUM, 1001, (0.5, 3.0), seed=4)
            bench.allreduce(dtype, ReduceOp.PRODUCT, 101, (1.5, 1.0), seed=5, inside=True)
            bench.reducescatter(dtype, ReduceOp.SUM, [33] * bench.size, (0.5, 3.0), seed=6)
        if dtype.is_floating:
            bench.allreduce(dtype, ReduceOp.AVERAGE, 1001, (0.25, 3.0), seed=7)


def exact_integers(bench: Bench) -> None:
    """Averages of integers, and integers with a factor, where plain sums of their type would wrap or lose digits."""
    for dtype in DType:
        if not (dtype.is_floating or dtype.is_complex or dtype is DType.BOOL):
            for op, scales in ((ReduceOp.AVERAGE, (1.0, 1.0)), (ReduceOp.AVERAGE, (0.5, 3.0)), *_SCALED):
                bench.allreduce(dtype, op, 101, scales, seed=8, whole_range=True)


def memory_may_differ_between_members(bench: Bench) -> None:
    """Arrays of one member, of the others, or of all members are in engine memory, at different offsets."""
    for count in (5, 3000, 300_000):
        said = [reference.sample(DType.FLOAT32, count, r) for r in range(bench.size)]
        for inside in (bench.rank == 0, bench.rank > 0, True):
            buffer = bench.buffer(said[bench.rank], DType.FLOAT32, inside, shift=16 * bench.rank + 1)
            bench.engine.allreduce(buffer.array, Reduction(ReduceOp.SUM))
            expected = reference.reduce(DType.FLOAT32, ReduceOp.SUM, said)
            bench.compare(f"allreduce of {count}, inside={inside}", DType.FLOAT32, buffer, expected)


def illegal_ops_raise_and_change_nothing(bench: Bench) -> None:
    """Minimum and maximum of complex numbers do not exist; the next collective works."""
    for op in (ReduceOp.MIN, ReduceOp.MAX):
        buffer = bench.buffer(reference.sample(DType.COMPLEX64, 10, 1), DType.COMPLEX64)
        try:
            bench.engine.allreduce(buffer.array, Reduction(op))
        except UnsupportedError:
            pass
        else:
            bench.findings.append(f"allreduce {op.label} of complex64 did not raise UnsupportedError")
        bench.allreduce(DType.COMPLEX64, ReduceOp.SUM, 10)


def allgather(bench: Bench) -> None:
    """Even, uneven and empty contributions."""
    for seed, dtype in enumerate(DType):
        bench.allgather(dtype, [5] * bench.size, seed)
        bench.allgather(dtype, [3 * r for r in range(bench.size)], seed)
        bench.allgather(dtype, [7 if r == bench.size - 1 else 0 for r in range(bench.size)], seed)
    bench.allgather(DType.FLOAT32, [0] * bench.size)
    for border in BORDERS:
        bench.allgather(DType.UINT8, [border - 1 + r for r in range(bench.size)], border)
    bench.allgather(DType.INT64, [200_000 + 7 * r for r in range(bench.size)])


def broadcast(bench: Bench) -> None:
    """From each root, all dtypes and sizes."""
    for root in range(bench.size):
        for dtype in DType:
            for count in (0, 1, 1001):
                bench.broadcast(dtype, count, root, seed=count)
        for border in BORDERS:
            for count in (border - 1, border + 1):
                bench.broadcast(DType.UINT8, count, root, seed=border, inside=root == 0)
        bench.broadcast(DType.FLOAT64, 500_000, root, seed=root)


def alltoall(bench: Bench) -> None:
    """Even, uneven and empty splits."""
    members = range(bench.size)
    for seed, dtype in enumerate(DType):
        bench.alltoall(dtype, [[4] * bench.size for _ in members], seed)
        bench.alltoall(dtype, [[(i + 2 * j) % 5 for j in members] for i in members], seed)
    bench.alltoall(DType.INT32, [[0] * bench.size for _ in members])
    bench.alltoall(DType.INT32, [[9 if j == 0 else 0 for j in members] for _ in members])
    bench.alltoall(DType.FLOAT32, [[100_000 + 1000 * i + j for j in members] for i in members], 3)


def reducescatter(bench: Bench) -> None:
    """Even, uneven and empty slices; all ops."""
    for op in OPS:
        for dtype in DType:
            if reference.legal(dtype, op):
                bench.reducescatter(dtype, op, [11] * bench.size)
                bench.reducescatter(dtype, op, [5 * r for r in range(bench.size)], seed=1)
    bench.reducescatter(DType.FLOAT32, ReduceOp.SUM, [0] * bench.size)
    bench.reducescatter(DType.FLOAT32, ReduceOp.AVERAGE, [150_000 + r for r in range(bench.size)], seed=2)


def parts_in_their_own_place(bench: Bench) -> None:
    """All-gather from this member's place in ``recv``, reduce-scatter to this member's place in ``send``."""
    for count in (5, 3000, 200_000):
        counts, mine = [count] * bench.size, slice(bench.rank * count, (bench.rank + 1) * count)
        said = [reference.sample(DType.FLOAT32, count * bench.size, r) for r in range(bench.size)]
        whole = bench.buffer(said[bench.rank], DType.FLOAT32)
        own = whole.array.slice(mine.start, count)
        bench.engine.reducescatter(whole.array, own, counts, Reduction(ReduceOp.SUM))
        total = reference.reduce(DType.FLOAT32, ReduceOp.SUM, said)
        bench.expect(reference.same(DType.FLOAT32, whole.values[mine], total[mine]), f"reducescatter of {count} each")
        bench.engine.allgather(own, whole.array, counts)
        bench.compare(f"allgather of {count} each", DType.FLOAT32, whole, total)


def barrier_waits_for_all(bench: Bench) -> None:
    """No member returns before the last has called; the monotonic clock is the same for all processes of a host."""
    for _ in range(20):
        came = time.monotonic()
        bench.engine.barrier()
        left = time.monotonic()
        times = [tuple(map(float, t.split())) for t in bench.member.exchange(f"{came} {left}".encode())]
        bench.expect(max(t[0] for t in times) <= min(t[1] for t in times), f"left early: {times}")


def many_in_random_order(bench: Bench) -> None:
    """A long sequence of all collectives, the same on every member."""
    random = np.random.default_rng(7)
    members = range(bench.size)
    for seed in range(150):
        dtype, op = DType(int(random.integers(13))), OPS[int(random.integers(len(OPS)))]
        op = op if reference.legal(dtype, op) else ReduceOp.SUM
        count = int(2 ** random.uniform(0, 15))
        counts = [int(random.integers(0, count + 1)) for _ in members]
        kind = int(random.integers(6))
        if kind == 0:
            bench.allreduce(dtype, op, count, seed=seed, inside=bool(random.integers(2)))
        elif kind == 1:
            bench.allgather(dtype, counts, seed)
        elif kind == 2:
            bench.broadcast(dtype, count, int(random.integers(bench.size)), seed)
        elif kind == 3:
            bench.alltoall(dtype, [[(counts[i] + j) % 999 for j in members] for i in members], seed)
        elif kind == 4:
            bench.reducescatter(dtype, op, counts, seed=seed)
        else:
            bench.engine.barrier()


def same_bits_everywhere_and_again(bench: Bench) -> None:
    """The order of reduction is fixed: equal bytes on all members, and in repeated runs."""
    for dtype in (DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32, DType.FLOAT64, DType.COMPLEX64):
        for count in (13, 5000, 400_000):
            runs = [bench.allreduce(dtype, ReduceOp.AVERAGE, count, seed=9, inside=i == 1) for i in range(3)]
            digests = [hashlib.blake2b(run.tobytes(), digest_size=16).digest() for run in runs]
            everyone = {b"".join(bench.member.exchange(d)) for d in digests}
            bench.expect(len(everyone) == 1, f"{count} {dtype.label}: runs differ, or depend on where the memory is")
            everywhere = set(bench.member.exchange(digests[0]))
            bench.expect(len(everywhere) == 1, f"{count} {dtype.label}: members hold different bits")


def gather_small(bench: Bench) -> None:
    """Every member gets all payloads, by member; a payload that is too long raises, and the next call works."""
    for nbytes in (0, PAYLOAD_BYTES):
        everything = [(b"x%d" % r).ljust(nbytes, b".") for r in range(bench.size)]
        bench.expect(bench.engine.gather_small(everything[bench.rank]) == everything, f"gather_small of {everything}")
    try:
        bench.engine.gather_small(b"x" * (PAYLOAD_BYTES + 1))
    except ValueError:
        pass
    else:
        bench.findings.append("gather_small of too many bytes did not raise ValueError")
    bench.expect(bench.engine.gather_small(b"step 4") == [b"step 4"] * bench.size, "gather_small after an error")
    bench.allreduce(DType.FLOAT32, ReduceOp.SUM, 100)


def memory_is_zeroed_and_outlives_the_engine(bench: Bench) -> None:
    """``allocate`` returns zeroed memory, also for odd sizes; it stays readable after ``close``."""
    with bench.fresh() as engine:
        made = [engine.allocate(n) for n in (1, 63, 4097, 3 * 2**20, 0)]
        arrays = [reference.view(m.array(DType.UINT8)) for m in made]
        bench.expect(not any(a.any() for a in arrays), "memory is not zeroed")
        floats = made[3].array(DType.FLOAT32, 64, 1000)
        values = reference.view(floats)
        values[:] = bench.rank + 1
        engine.allreduce(floats, Reduction(ReduceOp.SUM))
    bench.expect(bool((values == bench.size * (bench.size + 1) / 2).all()), "engine memory holds a wrong sum")


def subgroups_and_two_threads(bench: Bench) -> None:
    """Engines over different groups do not disturb each other, nor do two engines over one group in two threads."""
    half = tuple(r for r in range(bench.size) if r % 2 == bench.rank % 2)
    with bench.fresh() as whole, bench.fresh(half) as mine:
        for _ in range(5):
            bench.expect(_count(mine) == len(half), "wrong sum in a subgroup")
            bench.expect(_count(whole) == bench.size, "wrong sum in the whole group")
    with bench.fresh() as left, bench.fresh() as right:
        sums: list[float] = []  # of both threads: only the number of right sums counts, not their thread
        # A thread that raises loses its error, but leaves fewer than 60 sums, which is found below.
        other = threading.Thread(target=lambda: sums.extend(_count(left, 30_000) for _ in range(30)))
        other.start()
        sums.extend(_count(right, 40_000) for _ in range(30))
        other.join()
        bench.expect(sums == [bench.size] * 60, f"wrong sums in two threads: {set(sums)}")


def abort_wakes_waiters(bench: Bench) -> None:
    """``abort`` wakes a member that waits for one that never calls; from then on every call raises."""
    for name, call in _CALLS.items():
        with bench.fresh() as engine:
            aborted_at = [0.0]

            def abort(engine: Engine = engine, aborted_at: list[float] = aborted_at) -> None:
                aborted_at[0] = time.monotonic()  # before: the waiter can be awake before ``abort`` has returned
                engine.abort("rank 7 on nowhere was killed")

            timer = threading.Timer(0.1, abort)
            timer.start()
            if bench.rank == 0:
                timer.join()  # this member never calls in time: its calls begin after its own abort
            for attempt in ("while it waited", "afterwards"):
                _expect_error(bench, engine, call, AbortError, f"{name}, {attempt}")
            woken_at = time.monotonic()
            timer.join()  # another member's abort may have been earlier
            bench.expect(woken_at - aborted_at[0] < WAKE_S, f"{name}: woken late")
            bench.member.exchange(b"")  # no member closes before all are awake: a close would wake them, too


def an_interrupted_call_is_mixed_with_no_other(bench: Bench) -> None:
    """If an exception interrupts a member's call, calls of all members return right numbers or collective errors."""
    for name, call in TELLING_CALLS.items():
        with bench.fresh() as engine:
            points = points_of(engine, lambda call=call, engine=engine: call(engine, 1))  # type: ignore[misc]
        # The points of the first member, because members may reach different ones.
        points = msgspec.json.decode(bench.member.exchange(msgspec.json.encode(points))[0], type=list[Point])
        for point in points if name == "allreduce" else points[-1:]:  # an interruption costs half a second
            with bench.fresh(deadline_s=INTERRUPTED_S) as engine:
                if bench.rank == 0:
                    with suppress(Interruption, CollectiveError), interrupted_at(engine, point):
                        _expect_told(bench, call(engine, 1), f"{name} interrupted in {point}")
                for factor in (2, 3) if bench.rank == 0 else (1, 2, 3):
                    with suppress(CollectiveError):
                        _expect_told(bench, call(engine, factor), f"{name} of {factor}, 1 interrupted in {point}")
                bench.member.exchange(b"")  # a close would end the waits of others


def deadline_ends_a_wait(bench: Bench) -> None:
    """A wait that no member aborts ends at ``deadline_s``."""
    with bench.fresh(deadline_s=0.4) as engine:
        started = ended = time.monotonic()
        if bench.rank > 0:
            _expect_error(bench, engine, _count, StallError, "deadline")
            ended = time.monotonic()
        # Rank 0 stays silent and open: its close would end the wait. The end of the first wait may end all.
        _, *others = map(float, bench.member.exchange(str(started).encode()))
        if bench.rank > 0:
            took = ended - min(others)
            bench.expect(0.3 < took < WAKE_S, f"a deadline of 0.4 s ended the wait after {took:.2f} s")


def close_needs_no_peer_and_leaves_nothing(bench: Bench) -> None:
    """A second ``close`` does nothing; a second engine leaves no thread, descriptor, child or shared memory."""
    for attempt in range(2):
        bench.member.exchange(b"")
        try:
            with no_leaks():
                with bench.fresh() as engine:
                    bench.expect(_count(engine, 70_000) == bench.size, "wrong sum")
                    engine.allocate(1000)
                    bench.member.exchange(b"")
                engine.close()
        except AssertionError as error:
            bench.expect(attempt == 0, str(error))  # the first may load libraries that keep something


def made_is_made(bench: Bench) -> None:
    """If one member gets its engine, every member gets one, whatever the first member does next."""
    for _ in range(5):
        with bench.fresh() as engine:
            engine.abort("changed my mind")
        with bench.fresh() as engine:
            engine.close()


def counts_are_reported(bench: Bench) -> None:
    """``statistics`` names the engine."""
    bench.expect(bench.engine.statistics()["engine"] == bench.engine.name, "statistics lacks the engine's name")


CASES: dict[str, Case] = {
    case.__name__: case
    for case in (
        every_op_on_every_dtype, sizes_around_borders, scales, exact_integers, memory_may_differ_between_members,
        illegal_ops_raise_and_change_nothing, allgather, broadcast, alltoall, reducescatter, parts_in_their_own_place,
        barrier_waits_for_all, many_in_random_order, same_bits_everywhere_and_again, gather_small,
        memory_is_zeroed_and_outlives_the_engine, subgroups_and_two_threads, abort_wakes_waiters,
        an_interrupted_call_is_mixed_with_no_other, deadline_ends_a_wait,
        close_needs_no_peer_and_leaves_nothing, made_is_made, counts_are_reported,
    )
}  # fmt: skip
"""Every case by its name, in the order in which they run."""


def _count(engine: Engine, count: int = 10) -> float:
    values = np.ones(count, np.float32)
    engine.allreduce(Array(values.ctypes.data, count, DType.FLOAT32, values), Reduction(ReduceOp.SUM))
    return float(values[-1]) if (values == values[0]).all() else float("nan")


def _move(engine: Engine, kind: Kind) -> None:
    size = engine.group.size
    send, recv = np.ones(1000 * size, np.float32), np.zeros(1000 * size, np.float32)
    whole, room = (Array(values.ctypes.data, values.size, DType.FLOAT32, values) for values in (send, recv))
    if kind is Kind.BROADCAST:
        engine.broadcast(whole, 0)
    elif kind is Kind.ALLGATHER:
        engine.allgather(whole.slice(0, 1000), room, [1000] * size)
    elif kind is Kind.ALLTOALL:
        engine.alltoall(whole, [1000] * size, room, [1000] * size)
    else:
        engine.reducescatter(whole, room.slice(0, 1000), [1000] * size, Reduction(ReduceOp.SUM))


_CALLS: dict[str, Callable[[Engine], object]] = {
    "barrier": lambda engine: engine.barrier(),
    "allreduce": _count,
    "large allreduce": lambda engine: _count(engine, 2_000_000),
    **{
        kind.label: functools.partial(_move, kind=kind)
        for kind in (Kind.BROADCAST, Kind.ALLGATHER, Kind.ALLTOALL, Kind.REDUCESCATTER)
    },
}
"""All calls in which a member may wait for a member that does not call."""


def _expect_told(bench: Bench, told: Told, text: str) -> None:
    found, expected = told
    bench.expect(np.array_equal(found, expected), f"{text}: got {found[:3]}, expected {expected[:3]}")


def _expect_error(
    bench: Bench, engine: Engine, call: Callable[[Engine], object], kind: type[Exception], text: str
) -> None:
    try:
        call(engine)
    except kind:
        return
    except Exception as error:
        bench.findings.append(f"{text}: expected {kind.__name__}, got {type(error).__name__}: {error}")
        return
    bench.findings.append(f"{text}: expected {kind.__name__}, nothing was raised")
