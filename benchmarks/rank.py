"""One rank of a fleet (``python -m benchmarks.rank CONTENDER``): does what it is told, and says how long it took."""

from __future__ import annotations

import os
import statistics
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from operator import methodcaller
from typing import Any

from benchmarks.contenders import CONTENDERS, Contender, rank_of
from benchmarks.fleet import SIZE, connect


def reduce(contender: Contender, nbytes: int, times: int) -> float:
    """Median seconds of an all-reduce of ``nbytes`` that every rank has just written, as backward passes do.

    Without the writing each rank would find in its cache the very part of the result that it reduces. The median, as
    some contenders stall for milliseconds now and then: their mean would tell of little else.
    """
    once, write = contender.reducer(nbytes), partial(contender.data[: nbytes // 4].fill, 0.0)
    taken: list[float] = []
    for _ in range(times):
        write()
        begin = time.perf_counter()
        once()
        taken.append(time.perf_counter() - begin)
    return statistics.median(taken)


def wait(contender: Contender, seconds: float) -> float:
    """Share of a core that this rank uses while it waits for rank 0, which is late by ``seconds``."""
    once = contender.reducer(4096)
    once()
    begin, begin_cpu = time.perf_counter(), time.process_time()
    if contender.rank == 0:
        time.sleep(seconds)
    once()
    return (time.process_time() - begin_cpu) / (time.perf_counter() - begin)


VERBS: dict[str, Callable[..., Any]] = {"reduce": reduce, "wait": wait, "check": methodcaller("check")}


def obey(connection: Connection, rank: int, name: str) -> None:
    """Answer until told to stop."""

    def exchange(payload: bytes) -> list[bytes]:
        connection.send(("exchange", payload))
        everybody: list[bytes] = connection.recv()
        return everybody

    contender: Contender | None = None
    while True:
        verb, arguments = connection.recv()
        if verb == "stop":
            return
        try:
            contender = contender or CONTENDERS[name](rank, int(os.environ[SIZE]), exchange)
            answer = VERBS[verb](contender, *arguments)
        except Exception:
            connection.send(("error", traceback.format_exc()))
            return
        connection.send(("answer", answer))


if __name__ == "__main__":
    chosen = sys.argv[1]
    place = rank_of(chosen)
    obey(connect(place), place, chosen)
