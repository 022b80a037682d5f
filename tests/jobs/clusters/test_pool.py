"""Workers that stay and make one call after another, in slots of plain processes."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from farandole.control.task_pieces import PIECE_BYTES
from farandole.errors import ControlError, RemoteError
from farandole.launch.clusters.pool import WorkerPool
from farandole.launch.clusters.slot_function import FunctionCall
from tests.support.clusters.process_lender import ProcessLender
from tests.support.patience import PATIENCE_S

cloudpickle.register_pickle_by_value(sys.modules[__name__])


@contextlib.contextmanager
def pool_of(np: int, **knobs: Any) -> Iterator[WorkerPool]:
    pool = WorkerPool(ProcessLender(["a"] * np), np, {"COLOUR": "blue"}, knobs)
    try:
        yield pool
    finally:
        pool.close(now=True)


def _call(pool: WorkerPool, func: Any, *args: Any) -> list[Any]:
    return pool.call(FunctionCall(func, args)).result(PATIENCE_S)


def test_calls_are_made_in_their_order_by_the_same_workers(tmp_path: Path) -> None:
    def note(number: int) -> tuple[str, int, str]:
        with (tmp_path / os.environ["FARANDOLE_RANK"]).open("a") as file:
            file.write(f"{number} ")
        return os.environ["FARANDOLE_RANK"], os.getpid(), os.environ["COLOUR"]

    with pool_of(2) as pool:
        made = [pool.call(FunctionCall(note, (number,))) for number in range(5)]
        results = [each.result(PATIENCE_S) for each in made]
        pool.close()
        pool.close()
        with pytest.raises(ControlError, match="the workers have ended"):
            pool.call(FunctionCall(note, (9,)))
    assert all(each == results[0] for each in results)
    assert [(rank, colour) for rank, _, colour in results[0]] == [("0", "blue"), ("1", "blue")]
    assert [(tmp_path / rank).read_text() for rank in "01"] == ["0 1 2 3 4 "] * 2


def test_arguments_and_results_of_several_pieces_come_whole() -> None:
    large = os.urandom(2 * PIECE_BYTES + 7)
    with pool_of(1) as pool:
        assert _call(pool, lambda value: value[::-1], large) == [large[::-1]]
        assert _call(pool, len, large[1:]) == [len(large) - 1]


def test_an_error_on_all_ranks_ends_nothing_and_one_on_some_ends_all(capfd: pytest.CaptureFixture[str]) -> None:
    def fails(rank: str) -> None:
        if rank in ("", os.environ["FARANDOLE_RANK"]):
            raise KeyError("no such key")
        signal.pause()

    with pool_of(2, grace_s=1) as pool:
        with pytest.raises(RemoteError, match="no such key"):
            _call(pool, fails, "")
        assert _call(pool, len, "abc") == [3, 3]
        with pytest.raises(RemoteError, match=r"rank 1 on .* raised KeyError: .no such key"):
            _call(pool, fails, "1")
        with pytest.raises(ControlError):
            _call(pool, len, "abc")
    capfd.readouterr()


def test_a_worker_that_dies_ends_the_pool(capfd: pytest.CaptureFixture[str]) -> None:
    with pool_of(2) as pool:
        with pytest.raises(ControlError, match="was killed by SIGKILL"):
            _call(pool, lambda: os.kill(os.getpid(), signal.SIGKILL))
        with pytest.raises(ControlError):
            _call(pool, len, "abc")
    capfd.readouterr()


def test_workers_that_do_not_come_are_told_of_by_the_first_call() -> None:
    pool = WorkerPool(ProcessLender(["a", ""]), 2, {}, {"start_timeout_s": 2})
    with contextlib.closing(pool), pytest.raises(ControlError, match=r"[01] of 2 slots"):
        _call(pool, len, "abc")


def test_workers_in_a_call_are_ended_by_a_close_that_does_not_wait(tmp_path: Path) -> None:
    def waits() -> None:
        (tmp_path / os.environ["FARANDOLE_RANK"]).touch()
        signal.pause()

    with pool_of(1, grace_s=1) as pool:
        call = pool.call(FunctionCall(waits))
        until_s = time.monotonic() + 60
        while not (tmp_path / "0").exists():
            assert time.monotonic() < until_s
            os.sched_yield()
        pool.close(now=True)
        with pytest.raises(ControlError):
            call.result(0)
