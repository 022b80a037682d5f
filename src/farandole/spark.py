"""``farandole.run`` on a Spark cluster, in barrier mode.

import farandole.spark

farandole.spark.run(train, args=(3,), np=4)
"""

# Threads. The thread that called ``run`` is in the launcher's loop, and another thread runs the Spark job, because the
# job blocks its caller. They share ``_failures``, which the job's thread replaces at most once and the loop reads. The
# job's thread is an ``InheritableThread``: it has a JVM thread of its own with the local properties of the caller's
# (the scheduler's pool), and releases it at its end. So no other job uses the job group that is set there, and
# ``close`` may cancel it. It is a daemon: a job that does not end keeps no program from exiting.

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, final

from pyspark import InheritableThread, SparkContext

from farandole.errors import UsageError
from farandole.launch.clusters.slot import Ticket, hold
from farandole.launch.clusters.slot_function import FunctionCall, run_on
from farandole.launch.clusters.slot_provider import SlotProvider, last_line

__all__ = ["SparkLender", "run"]

KILLED_S = 5.0
"""Time for Spark to end a cancelled job."""


def run(
    func: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    np: int | None = None,
    *,
    context: SparkContext | None = None,
    output_filename: str = "",
    verbose: bool = False,
    env: Mapping[str, str] | None = None,
    **knobs: Any,
) -> list[Any]:
    """Call ``func(*args, **kwargs)`` on ``np`` workers, in tasks of Spark; returns their results by rank.

        spark = SparkSession.builder.getOrCreate()
        farandole.spark.run(train, kwargs={"lr": 0.1}, np=8)

    Each worker occupies a task slot; Spark starts all of them at once, or none (barrier mode). ``context`` defaults to
    the active one, and ``np`` to its default parallelism. Other arguments and errors are those of ``farandole.run``;
    the knob ``start_timeout_s`` limits the wait for slots.
    """
    found = context or SparkContext._active_spark_context
    if found is None:
        raise UsageError("there is no SparkContext here: type spark = SparkSession.builder.getOrCreate() first")
    call, provider = FunctionCall(func, args, kwargs), SparkLender(found)
    return run_on(
        provider, call, np, output_filename=output_filename, verbose=verbose, env=env,
        default_np=found.defaultParallelism, knobs=knobs,
    )  # fmt: skip


@final
class SparkLender(SlotProvider):
    """Slots in the tasks of a Spark job, in a barrier stage if all must start together."""

    name = "Spark"

    def __init__(self, context: SparkContext) -> None:
        self._context, self._group = context, f"farandole-{secrets.token_hex(4)}"
        self._jobs: dict[int, threading.Thread] = {}
        """Threads with a job of Spark each, by the first of its slots."""
        self._failures: dict[int, str] = {}

    def lend(self, slots: range, ticket: Ticket, *, together: bool) -> None:
        """See ``SlotProvider``. Slots that need not start together have a job each, so that none fails with another."""
        for own in [slots] if together else [range(slot, slot + 1) for slot in slots]:
            arguments = own, ticket, together
            job = InheritableThread(target=self._serve, args=arguments, name=self._group, daemon=True)
            self._jobs[own.start] = job
            job.start()

    def failures(self) -> Mapping[int, str]:
        """See ``SlotProvider``: a Spark job fails as a whole."""
        return dict(self._failures)

    def shortage(self) -> str:
        """See ``SlotProvider``."""
        slots = self._context.defaultParallelism
        return (
            f"in barrier mode Spark starts all tasks at once or none, and it has about {slots} slots for tasks, of "
            "which other jobs may have some (executors times spark.executor.cores / spark.task.cpus)"
        )

    def close(self, told: Collection[int], until_s: float) -> None:
        """See ``SlotProvider``."""
        for first, job in self._jobs.items():
            job.join(max(0.0, until_s - time.monotonic()) if first in told else 0.0)
        if any(job.is_alive() for job in self._jobs.values()):
            self._context.cancelJobGroup(self._group)
            for job in self._jobs.values():
                job.join(KILLED_S)

    def _serve(self, slots: range, ticket: Ticket, together: bool) -> None:
        try:
            self._context.setJobGroup(self._group, f"farandole: {len(slots)} slots", interruptOnCancel=True)
            tasks = self._context.parallelize(slots, len(slots))
            if together:
                tasks.barrier().mapPartitions(partial(_hold, ticket)).collect()
            else:
                tasks.mapPartitions(partial(_hold, ticket)).collect()
        except Exception as error:
            self._failures[slots.start] = _words(error)  # of a barrier stage, which fails as one, too


def _hold(ticket: Ticket, slots: Iterable[int]) -> Iterator[None]:
    for slot in slots:
        hold(ticket, slot)
    yield from ()


def _words(error: Exception) -> str:
    """Last line of the Python traceback in the failure of a Spark job, if there is one, without Java's."""
    text = str(error).partition("\n\tat ")[0].partition("Driver stacktrace:")[0]
    return last_line("\n".join(line for line in text.splitlines() if not line[:1].isspace()))
