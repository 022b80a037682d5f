"""Rank 0 waits in every way that there is, after a fault; rank 1 follows when the test opens a FIFO for each round."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import farandole.numpy as hvd
from farandole.runtime.coordination.stall import MOST_WAITS


def x() -> Any:
    return np.ones(2)


def handle(function: Callable[..., Any], *given: Any, name: str) -> Any:
    return hvd.synchronize(function(*given, name=name))


def init_again(_: str) -> None:
    hvd.shutdown()
    hvd.init()


TOGETHER: dict[str, Callable[[str], Any]] = {
    "allreduce": lambda name: hvd.allreduce(x(), name=name),
    "allreduce_": lambda name: hvd.allreduce_(x(), name=name),
    "allreduce_async": lambda name: handle(hvd.allreduce_async, x(), name=name),
    "allreduce_async_": lambda name: handle(hvd.allreduce_async_, x(), name=name),
    "grouped_allreduce": lambda name: hvd.grouped_allreduce([x()], name=name),
    "grouped_allreduce_": lambda name: hvd.grouped_allreduce_([x()], name=name),
    "grouped_allreduce_async": lambda name: handle(hvd.grouped_allreduce_async, [x()], name=name),
    "grouped_allreduce_async_": lambda name: handle(hvd.grouped_allreduce_async_, [x()], name=name),
    "allgather": lambda name: hvd.allgather(x(), name=name),
    "allgather_async": lambda name: handle(hvd.allgather_async, x(), name=name),
    "grouped_allgather": lambda name: hvd.grouped_allgather([x()], name=name),
    "grouped_allgather_async": lambda name: handle(hvd.grouped_allgather_async, [x()], name=name),
    "allgather_object": lambda name: hvd.allgather_object(1, name=name),
    "alltoall": lambda name: hvd.alltoall(x(), name=name),
    "alltoall_async": lambda name: handle(hvd.alltoall_async, x(), name=name),
    "broadcast": lambda name: hvd.broadcast(x(), 0, name=name),
    "broadcast_": lambda name: hvd.broadcast_(x(), 0, name=name),
    "broadcast_async": lambda name: handle(hvd.broadcast_async, x(), 0, name=name),
    "broadcast_async_": lambda name: handle(hvd.broadcast_async_, x(), 0, name=name),
    "broadcast_object": lambda name: hvd.broadcast_object(1, 0, name=name),
    "broadcast_parameters": lambda name: hvd.broadcast_parameters({name: x()}, 0),
    "reducescatter": lambda name: hvd.reducescatter(x(), name=name),
    "reducescatter_async": lambda name: handle(hvd.reducescatter_async, x(), name=name),
    "grouped_reducescatter": lambda name: hvd.grouped_reducescatter([x()], name=name),
    "grouped_reducescatter_async": lambda name: handle(hvd.grouped_reducescatter_async, [x()], name=name),
    "DistributedGradients": lambda name: hvd.DistributedGradients({name: x()})({name: x()}),
    "barrier": lambda _: hvd.barrier(),
}
SET = hvd.ProcessSet([0])
ALONE: dict[str, Callable[[str], Any]] = {
    "add_process_set": lambda _: hvd.add_process_set(SET),
    "remove_process_set": lambda _: hvd.remove_process_set(SET),
    "join": lambda _: hvd.join(),
    "init": init_again,
}
WAYS = TOGETHER | ALONE
ROUNDS = [*(list(TOGETHER)[i : i + MOST_WAITS] for i in range(0, len(TOGETHER), MOST_WAITS)), *([way] for way in ALONE)]
"""The ways by which rank 0 waits at once, in a thread each: no more of them than a notice names."""


def act(ways: Sequence[str]) -> None:
    threads = [threading.Thread(target=WAYS[way], args=(f"of {way}.",)) for way in ways]
    for each in threads:
        each.start()
    for each in threads:
        each.join()


def main() -> None:
    hvd.init()
    for ways in ROUNDS:
        with contextlib.suppress(hvd.HorovodInternalError):
            hvd.allreduce(np.ones(2 + hvd.rank()), name="fault")
        if hvd.rank() == 1:
            os.close(os.open(ways[0], os.O_RDONLY))  # returns when the test has read that rank 0 waits
        act(ways)
    print("done", flush=True)


if __name__ == "__main__":
    main()
