"""Topology as graph operations, which read it at each run, because it changes in elastic jobs.

mean = total / tf.cast(hvd.size_op(), total.dtype)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from farandole.adapters.tensorflow import AnyTensor
from farandole.errors import UsageError
from farandole.graphs.calls import provide
from farandole.graphs.library import AnyCall
from farandole.runtime.collectives import basics
from farandole.runtime.session.init import current, session_number
from farandole.runtime.session.process_sets import ProcessSet
from farandole.tensorflow.graph import as_written, call, in_graph


def _telling(name: str, value: Callable[[], int]) -> Callable[[], AnyTensor]:
    def fill_output(asked: AnyCall) -> None:
        asked.output(0, ()).fill(value())

    spec = provide(f"tensorflow.{name}", fill_output)

    def operation() -> AnyTensor:
        return call(spec, spec, [], [tf.int32], [[]])[0] if in_graph() else tf.constant(value(), tf.int32)

    return operation


_rank, _size = _telling("rank", basics.rank), _telling("size", basics.size)
session_op = _telling("session", session_number)
"""Number of the session at run time of the graph; it changes with the workers."""
_local_rank, _local_size = _telling("local_rank", basics.local_rank), _telling("local_size", basics.local_size)


@as_written
def rank_op(name: str | None = None) -> AnyTensor:  # noqa: ARG001 (Horovod's)
    """Rank at run time of the graph; it may change in an elastic job."""
    return _rank()


@as_written
def local_rank_op(name: str | None = None) -> AnyTensor:  # noqa: ARG001
    """Local rank at run time of the graph."""
    return _local_rank()


@as_written
def size_op(process_set_id: int = 0, name: str | None = None) -> AnyTensor:  # noqa: ARG001
    """Number of ranks, or of members of a process set, at run time of the graph."""
    return _telling(f"size.{process_set_id}", lambda: len(_members(process_set_id)))() if process_set_id else _size()


@as_written
def local_size_op(name: str | None = None) -> AnyTensor:  # noqa: ARG001
    """Number of ranks on this host at run time of the graph."""
    return _local_size()


@as_written
def process_set_included_op(process_set_id: int = 0, name: str | None = None) -> AnyTensor:  # noqa: ARG001
    """1 if this rank is in a process set at run time of the graph, else 0."""
    return _telling(f"included.{process_set_id}", lambda: int(basics.rank() in _members(process_set_id)))()


def _members(process_set_id: int) -> list[int]:
    found = current("a process set").sets.get(process_set_id)
    if found is None:
        raise UsageError(f"there is no process set {process_set_id}: add_process_set() returns one that has a number")
    return found.ranks


def members(process_set: ProcessSet) -> Any:
    """Number of members of a process set: an int, or in a graph a tensor."""
    return size_op(process_set.process_set_id or 0) if in_graph() else len(process_set.ranks)


def is_rank(rank: int) -> Any:
    """True on the rank ``rank``: a bool, or in a graph a tensor."""
    return tf.equal(rank_op(), rank) if in_graph() else basics.rank() == rank
