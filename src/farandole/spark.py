"""``farandole.run`` on a Spark cluster, in barrier mode.

import farandole.spark

farandole.spark.run(train, args=(3,), np=4)
"""

# Two threads: the one that called ``run``, in the launcher's loop, and one that runs the job of Spark, as that blocks
# whoever starts it. They share ``_failure``: the job's thread writes it once, the loop reads it when it likes, and a
# look too early finds "" and comes again. The job's thread is an ``InheritableThread``, which has a thread of the JVM
# to itself, with what the caller has set for its own (the scheduler's pool), and gives it back: the job group that is
# set there is nobody else's, so ``close`` may cancel it. It is a daemon: a job that does not end keeps no program
# from ending.

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
"""Time for Spark to end a job that was cancelled."""


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
    """Call ``func(*args, **kwargs)`` on ``np`` workers that Spark makes room for; returns what they returned, by rank.

        spark = SparkSession.builder.getOrCreate()
        farandole.spark.run(train, kwargs={"lr": 0.1}, np=8)

    Each takes a task slot; Spark starts all of them at once, or none (barrier mode). ``context`` is by default the
    active one, and ``np`` its default parallelism. Other arguments and errors are those of ``farandole.run``; the knob
    ``start_timeout_s`` bounds the wait for slots.
    """
    found = context or SparkContext._active_spark_context
    if found is None:
        raise UsageError("there is no SparkContext here: type spark = SparkSession.builder.getOrCreate() first")
    call, provider = FunctionCall(func, args, kwargs), SparkLender(found)
    np = found.defaultParallelism if np is None else np
    return run_on(provider, call, np, output_filename=output_filename, verbose=verbose, env=env, knobs=knobs)


@final
class SparkLender(SlotProvider):
    """Slots that are the tasks of one barrier stage."""

    name = "Spark"

    def __init__(self, context: SparkContext) -> None:
        self._context, self._group = context, f"farandole-{secrets.token_hex(4)}"
        self._job: threading.Thread | None = None
        self._failure = ""

    def lend(self, np: int, ticket: Ticket) -> None:
        """See ``SlotProvider``."""
        self._np = np
        self._job = InheritableThread(target=self._serve, args=(np, ticket), name=self._group, daemon=True)
        self._job.start()

    def failures(self) -> Mapping[int, str]:
        """See ``SlotProvider``: a barrier stage fails as one."""
        return {0: self._failure} if self._failure else {}

    def shortage(self) -> str:
        """See ``SlotProvider``."""
        slots = self._context.defaultParallelism
        return (
            f"in barrier mode Spark starts all tasks at once or none, and it has about {slots} slots for tasks, of "
            "which other jobs may have some (executors times spark.executor.cores / spark.task.cpus)"
        )

    def close(self, told: Collection[int], until_s: float) -> None:
        """See ``SlotProvider``."""
        if self._job is not None:
            self._job.join(max(0.0, until_s - time.monotonic()) if told else 0.0)
            if self._job.is_alive():
                self._context.cancelJobGroup(self._group)
                self._job.join(KILLED_S)

    def _serve(self, np: int, ticket: Ticket) -> None:
        try:
            self._context.setJobGroup(self._group, f"farandole: {np} slots", interruptOnCancel=True)
            slots = self._context.parallelize(range(np), np).barrier()
            slots.mapPartitions(partial(_hold, ticket)).collect()
        except Exception as error:
            self._failure = _words(error)


def _hold(ticket: Ticket, slots: Iterable[int]) -> Iterator[None]:
    for slot in slots:
        hold(ticket, slot)
    yield from ()


def _words(error: Exception) -> str:
    """Last line of the Python traceback in the failure of a Spark job, if there is one, before Java's."""
    text = str(error).partition("\n\tat ")[0].partition("Driver stacktrace:")[0]
    return last_line("\n".join(line for line in text.splitlines() if not line[:1].isspace()))
