"""Which threads of pools have nothing to do, and which only look like it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from farandole.native.core import call_stacks
from farandole.runtime.lanes.thread_waits import idle_threads
from tests.support.patience import PATIENCE_S


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    """Two threads, both of which have worked and wait for more."""
    both = threading.Barrier(2)
    with ThreadPoolExecutor(2) as pool:
        for each in [pool.submit(both.wait, PATIENCE_S) for _ in range(2)]:
            each.result(PATIENCE_S)
        yield pool


def seen(pool: ThreadPoolExecutor, number: int) -> set[int]:
    """Idle threads once there are so many: a thread that has ended its task takes a moment to wait for the next."""
    threads = {each.ident for each in pool._threads}
    while len(found := idle_threads(call_stacks()) & threads) != number:
        threading.Event().wait(0)
    return found


def test_threads_that_wait_for_a_task_are_idle(pool: ThreadPoolExecutor) -> None:
    assert seen(pool, 2) == {each.ident for each in pool._threads}


def test_a_thread_with_a_task_is_not(pool: ThreadPoolExecutor) -> None:
    begun, end = threading.Event(), threading.Event()
    busy: list[int] = []

    def work() -> None:
        busy.append(threading.get_ident())
        begun.set()
        assert end.wait(PATIENCE_S)

    seen(pool, 2)
    done = pool.submit(work)
    assert begun.wait(PATIENCE_S)
    assert busy[0] not in seen(pool, 1)
    end.set()
    done.result(PATIENCE_S)


def test_where_one_has_a_task_that_it_has_not_begun_none_counts_as_idle(pool: ThreadPoolExecutor) -> None:
    """Which of them has it cannot be seen: they are in the same function. That one has it the pool has counted."""
    seen(pool, 2)
    assert pool._idle_semaphore.acquire(timeout=0)  # as ``submit`` does, before it puts the task into the queue
    assert not idle_threads(call_stacks()) & {each.ident for each in pool._threads}
    pool._idle_semaphore.release()


def test_threads_of_other_kinds_are_not() -> None:
    end = threading.Event()
    thread = threading.Thread(target=end.wait)
    thread.start()
    assert thread.ident not in idle_threads(call_stacks())
    end.set()
    thread.join()
