"""Functions on threads: a single call, a call after an event, a call for each list of arguments."""

# Threads that no caller joins are daemons: at exit the interpreter joins all other threads, for ever if one waits for
# an event that is never set. ``silent`` hides errors that ``threading`` would print, because no caller can catch them.

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
    """Call ``target(*args)`` on a new thread, and return the thread; ``silent`` hides its errors.

    >>> in_thread(print, ("from elsewhere",)).join()
    from elsewhere
    """
    _require_tuple(args)

    def call_target() -> None:
        with contextlib.suppress(Exception) if silent else contextlib.nullcontext():
            target(*args)

    thread = threading.Thread(target=call_target, name=name, daemon=daemon)
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
    """Return a new thread that calls ``func(*args)`` once ``event`` is set, unless ``stop`` is set by then.

    ``stop`` is checked every ``check_stop_interval_s`` seconds. A thread that is not a daemon needs ``stop``.
    """
    _require_tuple(args)
    if event is None:
        raise ValueError("event=None: give the threading.Event that is waited for")
    if stop is None and not daemon:
        raise ValueError("daemon=False without stop: give a threading.Event that ends the wait")
    if not check_stop_interval_s > 0:
        raise ValueError(f"check_stop_interval_s={check_stop_interval_s}: give a number of seconds above 0")

    def wait() -> None:
        # In slices, because a thread cannot wait for two events at once.
        while not event.wait(check_stop_interval_s if stop else None):
            if stop and stop.is_set():
                return
        if not (stop and stop.is_set()):  # checked again, because both may have been set within one slice
            func(*args)

    return in_thread(wait, daemon=daemon, silent=silent)


def execute_function_multithreaded(
    fn: Callable[..., Any],
    args_list: Sequence[Sequence[Any]],
    block_until_all_done: bool = True,
    max_concurrent_executions: int = 1000,
) -> dict[int, Any] | None:
    """Call ``fn(*args)`` for each of ``args_list`` on up to ``max_concurrent_executions`` threads.

    Returns results by index, or ``None`` at once with ``block_until_all_done=False``; ``RuntimeError`` if one raised.

    >>> execute_function_multithreaded(pow, [[2, 3], [3, 2]])
    {0: 8, 1: 9}
    """
    if max_concurrent_executions < 1:
        raise ValueError(f"max_concurrent_executions={max_concurrent_executions}: give a number of threads, 1 or more")
    # The lock guards only ``jobs``: iterators are not thread-safe, and two threads could get the same job. ``results``
    # and ``errors`` need no lock: one thread writes each key, and both are read after all threads were joined.
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
            except BaseException as error:  # kept for the caller; this thread continues with the next job
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
