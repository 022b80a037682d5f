"""One rank of a fleet (``python -m benchmarks.rank CONTENDER``): does what it is told, and says how long it took."""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from benchmarks.contenders import CONTENDERS, Contender, rank_of
from benchmarks.fleet import SIZE, connect


def reduce(contender: Contender, nbytes: int, times: int) -> tuple[float, float]:
    """Seconds of wall clock and of processor per all-reduce of ``nbytes``."""
    once = contender.reducer(nbytes)
    once()
    begin, begin_cpu = time.perf_counter(), time.process_time()
    for _ in range(times):
        once()
    return (time.perf_counter() - begin) / times, (time.process_time() - begin_cpu) / times


def wait(contender: Contender, seconds: float) -> float:
    """Share of a core that this rank uses while it waits for rank 0, which is late by ``seconds``."""
    once = contender.reducer(4096)
    once()
    begin, begin_cpu = time.perf_counter(), time.process_time()
    if contender.rank == 0:
        time.sleep(seconds)
    once()
    return (time.process_time() - begin_cpu) / (time.perf_counter() - begin)


def check(contender: Contender) -> None:
    """Prove once that the sum is right, and leave zeros, which stay zeros however often they are added."""
    contender.data[0] = 1.0
    contender.reducer(4)()
    if contender.data[0] != contender.size:
        raise AssertionError(f"{contender.size} ones added up to {contender.data[0]}")
    contender.data[0] = 0.0


VERBS: dict[str, Callable[..., Any]] = {"reduce": reduce, "wait": wait, "check": check}


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
