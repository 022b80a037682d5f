"""``horovod.spark``: call a function on workers in Spark tasks. Estimators are not supported."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pyspark import SparkContext

from farandole.errors import UnsupportedError, UsageError
from farandole.launch.clusters.slot_function import FunctionCall, run_on
from farandole.launch.command.horovodrun import without_meaning
from farandole.spark import SparkLender

__all__ = ["run", "run_elastic"]

START_TIMEOUT = "HOROVOD_SPARK_START_TIMEOUT"
"""Environment variable with the timeout in seconds for the start of all Spark tasks; default of ``start_timeout``."""


def run(
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int | None = None,
    start_timeout: float | None = None,
    use_mpi: bool | None = None,
    use_gloo: bool | None = None,
    extra_mpi_args: str | None = None,
    env: Mapping[str, str] | None = None,
    stdout: Any = None,
    stderr: Any = None,
    verbose: int = 1,
    nics: Sequence[str] | str | None = None,
    prefix_output_with_timestamp: bool = False,
    executable: str | None = None,
) -> list[Any]:
    """Call ``fn(*args, **kwargs)`` on ``num_proc`` workers (default: Spark's parallelism); returns results by rank.

        results = horovod.spark.run(train, args=(3,), num_proc=4)

    Needs an active ``SparkContext``. See ``farandole.spark.run`` for errors.
    """
    if executable not in (None, sys.executable):
        raise UnsupportedError(f"executable={executable!r}: set PYSPARK_PYTHON instead, before Spark is started")
    given = {"--mpi": use_mpi, "--gloo": use_gloo, "--mpi-args": extra_mpi_args}
    for line in without_meaning([flag for flag, value in given.items() if value]):
        print(f"farandole: horovod.spark.run: {line}", file=sys.stderr)
    context = _context(stdout, stderr)
    return run_on(
        SparkLender(context), FunctionCall(fn, args, kwargs), num_proc or context.defaultParallelism, env=env,
        verbose=verbose > 1, timestamps=prefix_output_with_timestamp, knobs=_knobs(start_timeout, nics),
    )  # fmt: skip


def run_elastic(
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int | None = None,
    min_num_proc: int | None = None,
    max_num_proc: int | None = None,
    start_timeout: float | None = None,
    elastic_timeout: float | None = None,
    reset_limit: int | None = None,
    env: Mapping[str, str] | None = None,
    stdout: Any = None,
    stderr: Any = None,
    verbose: int = 1,
    nics: Sequence[str] | str | None = None,
    prefix_output_with_timestamp: bool = False,
) -> list[Any]:
    """Call ``fn``, which trains by ``hvd.elastic.run``, on a number of workers that may change; returns the results.

        results = horovod.spark.run_elastic(train, num_proc=4, min_num_proc=2, max_num_proc=8)

    A task that Spark loses is asked for again, and the other workers go on. See ``farandole.spark.run`` for errors.
    """
    context = _context(stdout, stderr)
    fewest = min_num_proc or num_proc or min(context.defaultParallelism, max_num_proc or context.defaultParallelism)
    knobs = {
        **_knobs(start_timeout, nics),
        "min_np": fewest,
        "max_np": max_num_proc or num_proc or max(fewest, context.defaultParallelism),
        "elastic_timeout_s": elastic_timeout,
        "reset_limit": reset_limit,
    }
    knobs = {name: value for name, value in knobs.items() if value is not None}
    return run_on(
        SparkLender(context), FunctionCall(fn, args, kwargs), num_proc, env=env, verbose=verbose > 1,
        timestamps=prefix_output_with_timestamp, knobs=knobs,
    )  # fmt: skip


def _context(stdout: Any, stderr: Any) -> SparkContext:
    if stdout is not None or stderr is not None:
        raise UnsupportedError("stdout= and stderr=: workers write to those of this process, with their ranks")
    context = SparkContext._active_spark_context
    if context is None:
        raise UsageError("there is no SparkContext here: type spark = SparkSession.builder.getOrCreate() first")
    return context


def _knobs(start_timeout: float | None, nics: Sequence[str] | str | None) -> dict[str, Any]:
    return {
        "horovod": True,
        "start_timeout_s": float(start_timeout or os.environ.get(START_TIMEOUT, "600")),
        "network_interface": nics if isinstance(nics, str) or nics is None else ",".join(nics),
    }
