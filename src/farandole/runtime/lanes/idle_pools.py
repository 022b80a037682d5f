"""Threads of ``concurrent.futures`` that have nothing to do, and get nothing while all others wait.

>>> idle_threads({})        # of these call stacks, by thread
set()
"""

# Keras has such a pool for as long as ``fit`` lasts. A thread that has taken a task out of the queue, and has not yet
# begun it, is in the same function as one that waits for a task. The pool counts: ``submit`` takes one from the number
# of idle threads, and a thread adds one when it has done its task. So none has a task where that number is as large as
# that of the threads that are seen there.

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

_WAITS = ("concurrent.futures.thread", "_worker")


def idle_threads(stacks: Mapping[int, Sequence[tuple[str | None, str]]]) -> set[int]:
    """Threads, by their identifiers, of pools without any task; ``stacks`` are calls by thread, the innermost first."""
    there: defaultdict[ThreadPoolExecutor, set[int]] = defaultdict(set)
    for thread in threading.enumerate():
        calls = stacks.get(thread.ident or 0)
        if calls and calls[0] == _WAITS and (pool := _pool_of(thread)) is not None:
            there[pool].add(thread.ident or 0)
    found: set[int] = set()
    for pool, threads in there.items():
        idle: Any = getattr(pool, "_idle_semaphore", None)
        # More than there are threads: before Python 3.12 it is counted too high where tasks had to wait.
        if idle is not None and len(pool._threads) >= idle._value >= len(threads) and pool._work_queue.empty():
            found |= threads
    return found


def _pool_of(thread: threading.Thread) -> ThreadPoolExecutor | None:
    """The pool that the thread was started for, unless that is gone."""
    arguments = getattr(thread, "_args", ())
    pool = arguments[0]() if arguments and callable(arguments[0]) else None
    return pool if isinstance(pool, ThreadPoolExecutor) else None
