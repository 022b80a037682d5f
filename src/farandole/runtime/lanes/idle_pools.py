"""Idle threads of ``concurrent.futures``, which get no task while all other threads wait.

>>> idle_threads({})        # of these call stacks, by thread
set()
"""

# Keras has such a pool for as long as ``fit`` lasts. A thread that has taken a task from the queue, and not yet begun
# it, is in the same function as a thread that waits for a task. The pool keeps a count: ``submit`` decrements the
# number of idle threads, and a thread increments it after its task. So no thread has a task if that number is at least
# the number of threads seen in that function.

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

_WAITS = ("concurrent.futures.thread", "_worker")


def idle_threads(stacks: Mapping[int, Sequence[tuple[str | None, str]]]) -> set[int]:
    """Identifiers of the threads of pools without any task; ``stacks`` are calls by thread, innermost first."""
    there: defaultdict[ThreadPoolExecutor, set[int]] = defaultdict(set)
    for thread in threading.enumerate():
        calls = stacks.get(thread.ident or 0)
        if calls and calls[0] == _WAITS and (pool := _pool_of(thread)) is not None:
            there[pool].add(thread.ident or 0)
    found: set[int] = set()
    for pool, threads in there.items():
        idle: Any = getattr(pool, "_idle_semaphore", None)
        # ``_value`` above the number of threads: before Python 3.12 the count is too high after tasks had to wait.
        if idle is not None and len(pool._threads) >= idle._value >= len(threads) and pool._work_queue.empty():
            found |= threads
    return found


def _pool_of(thread: threading.Thread) -> ThreadPoolExecutor | None:
    """Pool that the thread belongs to, if that still exists."""
    arguments = getattr(thread, "_args", ())
    pool = arguments[0]() if arguments and callable(arguments[0]) else None
    return pool if isinstance(pool, ThreadPoolExecutor) else None
