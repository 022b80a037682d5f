"""What only the shm engine promises: nothing left behind, no processor burnt, errors that tell all ranks the cause."""

from __future__ import annotations

import ctypes
import os
import resource
import select
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from farandole.collective import Array, DType, ReduceOp, Reduction
from farandole.engines.engine import Group
from farandole.engines.shm import ShmEngine
from farandole.errors import AbortError, CollectiveError, EngineError, MismatchError, StallError, UnsupportedError
from farandole.native import core
from farandole.testing import reference
from farandole.testing.harness import Died, run_ranks
from farandole.testing.rank import RankContext
from tests.support.patience import PATIENCE_S


def _mapped() -> int:
    """How many segments of the engine this process maps."""
    return Path("/proc/self/maps").read_text().count("memfd:farandole")


def _open() -> int:
    return len(os.listdir("/proc/self/fd"))


def _sum(engine: ShmEngine, count: int = 10) -> float:
    values = np.ones(count, np.float32)
    engine.allreduce(Array(values.ctypes.data, count, DType.FLOAT32, values), Reduction(ReduceOp.SUM))
    return float(values[-1])


def _until_it_waits(engine: ShmEngine) -> None:
    """Return when a thread of this process is blocked in a collective."""
    deadline = time.monotonic() + 30
    while engine.statistics()["sleeps"] == 0:
        assert time.monotonic() < deadline, "nobody waits"
        os.sched_yield()


def _text(error: type[CollectiveError], engine: ShmEngine, count: int = 10) -> str:
    with pytest.raises(error) as caught:
        _sum(engine, count)
    return str(caught.value)


def _disagree(member: RankContext) -> list[str]:
    engine = ShmEngine(member.group(), member.exchange)
    said = [_text(MismatchError, engine, 10 + member.rank), _text(MismatchError, engine, 100_000 + member.rank)]
    with pytest.raises(MismatchError) as caught:
        engine.barrier() if member.rank else engine.allocate(64)
    said.append(str(caught.value))
    assert _sum(engine) == member.size
    engine.close()
    return said


def test_a_mismatch_names_what_each_rank_said_on_every_rank() -> None:
    first, *others = run_ranks(_disagree, 3)
    assert others == [first, first]
    small, large, mixed = first
    for count, text in ((10, small), (100_000, large)):
        for rank in range(3):
            assert f"rank {rank} on localhost said allreduce of {count + rank} float32, Sum" in text
    assert "rank 0 on localhost said allocate of 64 bytes; rank 1 on localhost said barrier" in mixed


def _three_ways(member: RankContext) -> list[bytes]:
    engine = ShmEngine(member.group(), member.exchange)
    found = []
    for dtype in (DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16):
        large = reference.sample(dtype, 300_000, seed=member.rank)
        small = large[-1000:].copy()
        memory = engine.allocate(large.nbytes)
        inside = memory.array(dtype)
        core.copy(inside.address, large.ctypes.data, large.nbytes)
        for array in (Array(large.ctypes.data, large.size, dtype), Array(small.ctypes.data, 1000, dtype), inside):
            engine.allreduce(array, Reduction(ReduceOp.AVERAGE, 0.3, 0.7))
        found.append(small.tobytes())
        assert large[-1000:].tobytes() == small.tobytes()
        assert ctypes.string_at(memory.address, memory.nbytes) == large.tobytes()
    assert engine.statistics()["in_place"] == 3
    engine.close()
    return found


def test_factors_are_compared_by_their_bits() -> None:
    """One that is not a number is what all ranks said; zeros of two signs would give each rank a part of its own."""

    def program(member: RankContext) -> tuple[list[float], list[str]]:
        engine = ShmEngine(member.group(), member.exchange)
        array = engine.allocate(4096).array(DType.FLOAT32)
        sums, errors = [], []
        for prescale, postscale in ((float("nan"), 1.0), (1.0, float("nan")), (float("inf"), 1.0)):
            reference.view(array)[:] = 1.0
            engine.allreduce(array, Reduction(ReduceOp.SUM, prescale, postscale))
            sums.append(float(reference.view(array)[0]))
        zero = -0.0 if member.rank else 0.0
        for factors in ((zero, 1.0), (1.0, zero)):
            with pytest.raises(MismatchError) as caught:
                engine.allreduce(array, Reduction(ReduceOp.SUM, *factors))
            errors.append(str(caught.value))
        sums.append(_sum(engine))
        engine.close()
        return sums, errors

    for sums, errors in run_ranks(program, 2):
        assert np.array_equal(sums, [np.nan, np.nan, np.inf, 2.0], equal_nan=True)
        for text in errors:
            assert "scale 0; rank 1" in text
            assert "scale -0" in text


def test_small_staged_and_in_place_give_the_same_bits_on_every_rank() -> None:
    results = run_ranks(_three_ways, 3)
    assert results[0] == results[1] == results[2]


def _lose_rank_1(member: RankContext) -> tuple[float, str]:
    engine = ShmEngine(member.group(), member.exchange)
    memory = engine.allocate(100_000)
    pids = [int(pid) for pid in member.exchange(str(os.getpid()).encode())]
    watched = os.pidfd_open(pids[1])
    member.exchange(b"watched")  # after its end its parent reaps it, and the kernel knows the number no more
    if member.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)

    def watch() -> None:
        select.select([watched], [], [], 20)
        engine.abort("rank 1 was killed")

    watcher = threading.Thread(target=watch)
    watcher.start()
    text = _text(AbortError, engine)
    watcher.join()
    os.close(watched)
    engine.close()
    del memory
    assert _mapped() == 0
    survivors = ShmEngine(member.group("survivors", (0, 2)), member.exchange_among("survivors", (0, 2)))
    total = _sum(survivors)
    survivors.close()
    return total, text


def test_the_survivors_of_a_killed_rank_keep_nothing_and_go_on() -> None:
    results = run_ranks(_lose_rank_1, 3, may_die={1})
    assert isinstance(results[1], Died)
    assert results[0] == results[2] == (2.0, "rank 1 was killed")


def _cycle(member: RankContext) -> list[tuple[int, int, int, int]]:
    seen = []
    for cycle in range(200):
        engine = ShmEngine(member.group(f"cycle {cycle}"), member.exchange)
        memory = engine.allocate(1 << 16)
        engine.allreduce(memory.array(DType.FLOAT32), Reduction(ReduceOp.SUM))
        engine.close()
        del memory
        kilobytes = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() // 1024
        seen.append((_open(), _mapped(), threading.active_count(), kilobytes))
    return seen


def test_two_hundred_engines_leave_nothing() -> None:
    for seen in run_ranks(_cycle, 2):
        descriptors, mappings, threads, kilobytes = zip(*seen, strict=True)
        assert len(set(descriptors)) == 1
        assert set(mappings) == {0}
        assert set(threads) == {1}
        assert kilobytes[-1] - kilobytes[20] < 1024


def _run_out(member: RankContext) -> list[str]:
    engine = ShmEngine(member.group(), member.exchange)
    texts = []
    for limit in (resource.RLIMIT_FSIZE, resource.RLIMIT_AS):
        before = resource.getrlimit(limit)
        if member.rank == 1:
            resource.setrlimit(limit, (1 << 22, before[1]))
        with pytest.raises(EngineError) as caught:
            engine.allocate(1 << 27)
        resource.setrlimit(limit, before)
        texts.append(str(caught.value))
    with pytest.raises(EngineError) as caught:
        engine.allocate(1 << 45)
    texts.append(str(caught.value))
    assert _sum(engine) == member.size
    engine.close()
    return texts


def test_a_lack_of_memory_is_an_error_on_every_rank_and_the_engine_goes_on() -> None:
    results = run_ranks(_run_out, 2)
    assert results[0] == results[1]
    *limited, too_much = results[0]
    assert too_much.startswith("rank 0 on localhost could not share memory: asked for 35184372088832 bytes")
    assert "as much for each of 2 ranks does not fit while" in too_much
    for text in limited:
        assert text.startswith("rank 1 on localhost could not share memory: asked for 134217728 bytes")
        assert "is 4194304" in text
        assert "--engine tcp" in text


def _forge(member: RankContext) -> str:
    def exchange(payload: bytes) -> list[bytes]:
        forged = bytes([payload[0], payload[1] ^ 1]) + payload[2:] if member.rank == 1 and len(payload) > 1 else payload
        return member.exchange(forged)

    with pytest.raises(EngineError) as caught:
        ShmEngine(member.group(), exchange)
    assert _mapped() == 0
    return str(caught.value)


def test_memory_without_the_announced_token_is_refused_on_every_rank() -> None:
    results = run_ranks(_forge, 2)
    assert results[0] == results[1]
    assert "rank 0 on localhost could not share memory" in results[0]
    assert "does not hold the token that was announced" in results[0]


def _idle(member: RankContext) -> float:
    engine = ShmEngine(member.group(), member.exchange)
    engine.barrier()
    if member.rank == 0:
        threading.Event().wait(0.5)
    began = time.process_time()
    engine.barrier()
    used = time.process_time() - began
    engine.close()
    return used


def test_who_waits_does_not_use_the_processor() -> None:
    assert max(run_ranks(_idle, 3)) < 0.02


def _interrupt(member: RankContext) -> str:
    engine = ShmEngine(member.group(), member.exchange)
    text = ""
    if member.rank == 0:
        main = threading.main_thread().ident
        assert main is not None

        def interrupt() -> None:
            _until_it_waits(engine)
            signal.pthread_kill(main, signal.SIGINT)

        thread = threading.Thread(target=interrupt)
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            engine.barrier()
        thread.join()
    member.exchange(b"")
    if member.rank == 1:
        text = _text(AbortError, engine)
    engine.close()
    return text


def test_ctrl_c_ends_a_wait_and_the_others_are_told() -> None:
    assert run_ranks(_interrupt, 2)[1] == "rank 0 on localhost was interrupted by a signal in barrier"


def _interrupt_elsewhere(member: RankContext) -> float:
    """Rank 0: another thread gets the signal, which interrupts no wait of the main one; rank 1 never comes."""
    engine = ShmEngine(member.group(deadline_s=20.0), member.exchange)
    if member.rank:
        member.exchange(b"")
        engine.close()
        return 0.0
    sent_s: list[float] = []

    def interrupt() -> None:
        _until_it_waits(engine)
        sent_s.append(time.monotonic())
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        engine.barrier()
    took_s = time.monotonic() - sent_s[0]
    thread.join()
    member.exchange(b"")
    engine.close()
    return took_s


def test_ctrl_c_that_interrupts_no_wait_ends_it_soon() -> None:
    assert run_ranks(_interrupt_elsewhere, 2)[0] < 10.0  # and not 20, which is the deadline


def _be_late(member: RankContext) -> str:
    engine = ShmEngine(member.group(deadline_s=1.0), member.exchange)
    text = _text(StallError, engine, 12) if member.rank != 1 else ""
    member.exchange(b"")
    if member.rank == 1:  # who comes later is told the same
        text = _text(StallError, engine, 12)
    engine.close()
    return text


def test_the_deadline_names_who_is_missing() -> None:
    texts = run_ranks(_be_late, 3)
    assert texts[0] == texts[1] == texts[2]
    assert "waited 1 s in allreduce of 12 float32, Sum on test; missing: rank 1 on localhost" in texts[0]


def _leave(member: RankContext) -> str:
    engine = ShmEngine(member.group(), member.exchange)
    text = ""
    if member.rank == 1:
        engine.close()
        with pytest.raises(AbortError, match="closed"):
            engine.barrier()
    else:
        text = _text(AbortError, engine)
    engine.close()
    return text


def test_who_closes_early_is_named() -> None:
    assert run_ranks(_leave, 2)[0] == "rank 1 on localhost has left the group"


def test_more_members_than_it_serves_are_refused_before_anything_is_shared() -> None:
    ranks = tuple(range(65))
    group = Group(0, ranks, ("localhost",) * 65, 1, "all")
    with pytest.raises(UnsupportedError, match=r"at most 64 ranks of one host, all has 65: use --engine tcp"):
        ShmEngine(group, lambda payload: [payload] * 65)


def _fork(member: RankContext) -> float:
    engine = ShmEngine(member.group(), member.exchange)
    if member.rank == 0:
        inside = threading.Thread(target=engine.barrier)
        inside.start()
        _until_it_waits(engine)  # with a lock held, by a thread that the child does not have
        child = os.fork()
        if child == 0:
            signal.alarm(10)
            with pytest.raises(AbortError, match="not to its fork"):
                engine.barrier()
            engine.abort("a child has no say")
            engine.close()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
    member.exchange(b"")
    if member.rank == 1:
        engine.barrier()
    else:
        inside.join(PATIENCE_S)
    total = _sum(engine)
    engine.close()
    return total


def test_a_forked_child_cannot_end_the_group() -> None:
    assert run_ranks(_fork, 2) == [2.0, 2.0]
