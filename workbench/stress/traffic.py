"""One rank of random traffic: ``farandole run -np 3 python -m workbench.stress.traffic SEED SECONDS``.

Several threads reduce under names in both lanes, in process sets, small and large, known and new, some of them dropped;
ranks join unevenly, leave and return. All ranks draw the same plan from the seed, and check every result.
"""

# Threads: in each round up to four threads reduce under names of their own, and one uses the planned lane; all in one
# session, in any order. Ranks agree on what is done, and not on when.
#
# So two kinds of draws are kept apart. Only the main thread draws from ``_plan``, in the same order on all ranks; a
# thread draws from a generator of its own, with a seed from the plan. Threads that shared a generator would draw in
# the order in which they run, and ranks would do different things. ``_own`` is for what ranks may differ in (whether a
# collective is driven in the background), and may be shared: each draw is one call.

from __future__ import annotations

import ctypes
import random
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import final

import numpy as np

from farandole.collective import DType, ReduceOp, Reduction
from farandole.runtime.collectives.planned import PlannedLane
from farandole.runtime.session.init import current, init, shutdown
from farandole.runtime.session.process_sets import ProcessSet, global_process_set
from workbench.jobs import NumpyCalls

SIZES = (1, 4, 8, 9, 300, 70_000)
"""In elements of eight bytes: sent from rank to rank, with the announcement, and through an engine."""


@final
class Round:
    """One round, from ``init`` to ``shutdown``. ``plan`` draws the same on all ranks, ``own`` does not."""

    def __init__(self, plan: random.Random, number: int) -> None:
        self._plan, self._number = plan, number
        topology = current().topology
        self._rank, self._size = topology.rank, topology.size
        self._own = random.Random(plan.random() + self._rank)

    def run(self) -> None:
        """Play all parts of the round in sequence."""
        sets = [global_process_set, *self._make_sets()]
        self._threads(sets)
        for process_set in sets[1:]:
            current().remove_process_set(process_set)
        self._join()
        current().barrier()

    def _make_sets(self) -> list[ProcessSet]:
        if self._size < 3 or self._plan.random() < 0.3:
            return []
        ranks = sorted(self._plan.sample(range(self._size), 2))
        return [current().add_process_set(ranks)]

    def _threads(self, sets: list[ProcessSet]) -> None:
        """Run threads with their own names, sizes and process set, and one thread with the planned lane."""
        plans = [(i, self._plan.choice(sets), self._plan.random()) for i in range(self._plan.randint(1, 4))]
        # A worker for each, so that all are in the session at the same time.
        with ThreadPoolExecutor(len(plans) + 1) as pool:
            done = [pool.submit(self._named, *plan) for plan in plans]
            done.append(pool.submit(self._planned, self._plan.randint(0, 12)))
            for each in done:
                each.result()  # else errors of the threads would be lost

    def _named(self, thread: int, process_set: ProcessSet, seed: float) -> None:
        plan = random.Random(seed)
        members = list(process_set.ranks)
        if self._rank not in members:
            return
        do = NumpyCalls(process_set.process_set_id or 0)
        names = plan.randint(1, 5)
        for turn in range(plan.randint(5, 40)):
            name, count = f"{thread}.{turn % names}", plan.choice(SIZES) if plan.random() < 0.3 else SIZES[turn % names]
            x = np.full(count, (self._rank + 1) * (turn + 1), np.int64)
            if self._own.random() < 0.3:
                do.submit(do.reduction(name, x), background=True).wait()
            else:
                do.allreduce(name, x)
            expected = (turn + 1) * sum(member + 1 for member in members)
            assert (x == expected).all(), (name, turn, x[:3], expected)

    def _planned(self, turns: int) -> None:
        lane = PlannedLane(current(), global_process_set, f"stress {self._number}")
        memory = lane.allocate(8 * 1000)
        array = memory.array(DType.INT64, 0, 1000)
        view = np.ctypeslib.as_array((ctypes.c_int64 * 1000).from_address(memory.address))
        for turn in range(turns):
            assert lane.meet(f"turn {turn}", "here") == ["here"] * self._size
            view[:] = self._rank + turn
            lane.allreduce("stress", array, Reduction(ReduceOp.SUM))
            assert (view == sum(rank + turn for rank in range(self._size))).all(), (turn, view[:3])
        lane.close()

    def _join(self) -> None:
        """Do different numbers of all-reduces per rank; joined ranks contribute zeros, and rank 0 joins last."""
        turns = [self._plan.randint(0, 6) for _ in range(self._size)]
        turns[0] = max(turns) + 1
        do = NumpyCalls()
        for turn in range(turns[self._rank]):
            x = np.full(2, self._rank + 1, np.int64)
            do.allreduce(f"uneven.{turn % 2}", x)
            expected = sum(rank + 1 for rank in range(self._size) if turns[rank] > turn)
            assert (x == expected).all(), (turn, x, expected, turns)
        last = current().join()
        assert last == 0, last


def main() -> None:
    """Play rounds until rank 0 ends them."""
    seed, seconds = int(sys.argv[1]), float(sys.argv[2])
    end_s = time.monotonic() + seconds
    number, goes_on = 0, np.ones(1, np.int64)
    while goes_on[0]:
        init()
        Round(random.Random(seed * 1000 + number), number).run()
        number += 1
        goes_on[0] = time.monotonic() < end_s
        # One clock decides: with clocks of their own, ranks would end after different rounds.
        NumpyCalls().broadcast("goes on", goes_on, 0)
        rank = current().topology.rank
        shutdown()
    if rank == 0:
        print(f"{number} rounds")


if __name__ == "__main__":
    main()
