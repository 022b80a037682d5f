"""Functions in threads: one, one that waits for an event, one call for each list of arguments."""

# Threads are daemons where nobody is to join them: an interpreter that ends waits for all others, for ever if they wait
# for an event that never comes. ``silent`` hides what ``threading`` would print, as no caller could catch it.

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from typing import Any


def in_thread(
    target: Callable[..., Any],
    args: tuple[Any, ...] = (),
    name: str | None = None,
    daemon: bool = True,
    silent: bool = False,
) -> threading.Thread:
    """Call ``target(*args)`` in a new thread, which is returned; ``silent`` hides what it raises.

    >>> in_thread(print, ("from elsewhere",)).join()
    from elsewhere
    """
    _require_tuple(args)

    def run() -> None:
        with contextlib.suppress(Exception) if silent else contextlib.nullcontext():
            target(*args)

    thread = threading.Thread(target=run, name=name, daemon=daemon)
    thread.start()
    return thread


def on_event(
    event: threading.Event,
    func: Callable[..., Any],
    args: tuple[Any, ...] = (),
    stop: threading.Event | None = None,
    check_stop_interval_s: float = 1.0,
    daemon: bool = True,
    silent: bool = False,
) -> threading.Thread:
    """Call ``func(*args)`` in a new thread, which is returned, once ``event`` is set; not if ``stop`` is set then.

    ``stop`` is looked at every ``check_stop_interval_s`` seconds. A thread that is no daemon needs it.
    """
    _require_tuple(args)
    if event is None:
        raise ValueError("event=None: give the threading.Event that is waited for")
    if stop is None and not daemon:
        raise ValueError("daemon=False without stop: give a threading.Event that ends the wait")
    if not check_stop_interval_s > 0:
        raise ValueError(f"check_stop_interval_s={check_stop_interval_s}: give a number of seconds above 0")

    def wait() -> None:
        # In slices, as a thread cannot wait for two events at once.
        while not event.wait(check_stop_interval_s if stop else None):
            if stop and stop.is_set():
                return
        if not (stop and stop.is_set()):  # looked at again: both may have been set within one slice
            func(*args)

    return in_thread(wait, daemon=daemon, silent=silent)


def execute_function_multithreaded(
    fn: Callable[..., Any],
    args_list: Sequence[Sequence[Any]],
    block_until_all_done: bool = True,
    max_concurrent_executions: int = 1000,
) -> dict[int, Any] | None:
    """Call ``fn(*args)`` for each of ``args_list`` in up to ``max_concurrent_executions`` threads.

    The results by index, or ``None`` at once with ``block_until_all_done=False``. ``RuntimeError`` if a call raised.

    >>> execute_function_multithreaded(pow, [[2, 3], [3, 2]])
    {0: 8, 1: 9}
    """
    if max_concurrent_executions < 1:
        raise ValueError(f"max_concurrent_executions={max_concurrent_executions}: give a number of threads, 1 or more")
    # The lock is for ``jobs`` alone: iterators promise nothing to several threads, and two could get one job. The other
    # two need none: each key has one thread that writes it, and both are read when all threads have been joined.
    jobs = iter(list(enumerate(args_list)))
    results: dict[int, Any] = {}
    errors: list[BaseException] = []
    lock = threading.Lock()

    def work() -> None:
        while True:
            with lock:
                job = next(jobs, None)
            if job is None:
                return
            try:
                results[job[0]] = fn(*job[1])
            except BaseException as error:  # kept for the caller; this thread goes on with the next job
                errors.append(error)

    number = min(max_concurrent_executions, len(args_list))
    threads = [in_thread(work, daemon=not block_until_all_done) for _ in range(number)]
    if not block_until_all_done:
        return None
    for thread in threads:
        thread.join()
    if errors:
        raise RuntimeError(
            f"{len(errors)} of {len(args_list)} calls of {fn} raised; the first: {errors[0]!r}"
        ) from errors[0]
    return dict(sorted(results.items()))


def _require_tuple(args: object) -> None:
    if not isinstance(args, tuple):
        raise ValueError(f"args={args!r}: give a tuple, (arg,) for one argument")  # noqa: TRY004 (Horovod's kind)
