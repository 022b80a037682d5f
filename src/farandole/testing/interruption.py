"""Interruptions at chosen points of an engine's own Python code, like Ctrl-C or a lack of memory.

points = points_of(engine, lambda: engine.barrier())        # [("_begin", 1), ("_gather", 1), ...]
with interrupted_at(engine, points[1]):
    engine.barrier()                                        # raises Interruption as ``_gather`` is entered
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import Any, TypeAlias, final

import numpy as np
import numpy.typing as npt

from farandole.collective import Array, DType, Kind, ReduceOp, Reduction
from farandole.engines.engine import Engine

Point: TypeAlias = tuple[str, int]
"""A function that an engine calls in a collective, and the number of the call, from 1."""

MOST_OF_ONE = 2
"""Most calls of one function that count as points: waiting loops call a function any number of times."""


Told: TypeAlias = tuple[npt.NDArray[Any], npt.NDArray[Any]]
"""Result of a collective, and the expected result."""


@final
class Interruption(BaseException):
    """Raised at a point; no ``Exception``, like ``KeyboardInterrupt``."""


def points_of(engine: Engine, call: Callable[[], object]) -> list[Point]:
    """Run ``call``, and return the points that it reaches, in order; the call itself is no point."""
    points: list[Point] = []
    with _profiled(_watch(engine, points.append)):
        call()
    return points


@contextmanager
def interrupted_at(engine: Engine, point: Point) -> Iterator[None]:
    """Context in which ``Interruption`` is raised once, when the thread reaches ``point``."""

    def see(reached: Point) -> None:
        if reached == point:
            sys.setprofile(None)
            raise Interruption(f"{point[0]}, call {point[1]}")

    with _profiled(_watch(engine, see)):
        yield


@contextmanager
def _profiled(profile: Callable[[FrameType, str, Any], None]) -> Iterator[None]:
    sys.setprofile(profile)
    try:
        yield
    finally:
        sys.setprofile(None)


def _watch(engine: Engine, see: Callable[[Point], None]) -> Callable[[FrameType, str, Any], None]:
    """Profile function that passes calls of the engine's methods within a collective to ``see``."""
    counts: Counter[str] = Counter()
    is_inside = False

    def profile(frame: FrameType, event: str, _: Any) -> None:
        nonlocal is_inside
        if event != "call" or frame.f_locals.get("self") is not engine:
            return
        if not is_inside:  # an interruption here is before the collective begins
            is_inside = True
            return
        name = frame.f_code.co_name
        counts[name] += 1
        if counts[name] <= MOST_OF_ONE:
            see((name, counts[name]))

    return profile


def _told(kind: Kind, count: int, engine: Engine, factor: int) -> Told:
    """A collective of ``factor * (member + 1)``: its result, and the expected result."""
    rank, size = engine.group.rank, engine.group.size
    said = [factor * (member + 1.0) for member in range(size)]
    send, recv = np.full(count * size, said[rank], np.float32), np.zeros(count * size, np.float32)
    whole, room = (Array(values.ctypes.data, values.size, DType.FLOAT32, values) for values in (send, recv))
    counts = [count] * size
    if kind is Kind.ALLREDUCE:
        engine.allreduce(whole, Reduction(ReduceOp.SUM))
        return send, np.full(send.size, sum(said))
    if kind is Kind.BROADCAST:
        engine.broadcast(whole, 0)
        return send, np.full(send.size, said[0])
    if kind is Kind.REDUCESCATTER:
        engine.reducescatter(whole, room.slice(0, count), counts, Reduction(ReduceOp.SUM))
        return recv[:count], np.full(count, sum(said))
    if kind is Kind.ALLGATHER:
        engine.allgather(whole.slice(0, count), room, counts)
    else:
        engine.alltoall(whole, counts, room, counts)
    return recv, np.repeat(said, count)


def _told_by_payloads(engine: Engine, factor: int) -> Told:
    heard = engine.gather_small(b"%d" % (factor * (engine.group.rank + 1)))
    return np.array([int(each) for each in heard]), np.array([factor * (i + 1) for i in range(engine.group.size)])


TELLING_CALLS: dict[str, Callable[[Engine, int], Told]] = {
    "gather_small": _told_by_payloads,
    **{
        kind.label: partial(_told, kind, 100_000 if kind is Kind.ALLREDUCE else 1000)
        for kind in (Kind.ALLREDUCE, Kind.ALLGATHER, Kind.BROADCAST, Kind.ALLTOALL, Kind.REDUCESCATTER)
    },
}
"""Calls whose results show which call of each member contributed to them."""
