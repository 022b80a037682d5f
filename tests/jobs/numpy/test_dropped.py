"""Optimizers that the script of one rank drops, or makes anew, while others use theirs."""

from __future__ import annotations

import pytest

from tests.support.launching import Launch

PRELUDE = """
    import numpy as np
    import farandole.numpy as hvd

    hvd.init()
    like = {"a": np.zeros(3), "b": np.zeros(2)}
    average = hvd.DistributedGradients(like)
    for _ in range(2):
        average(like)
    if hvd.rank() == 0:
        del average
"""
REPLACED = """
    for attempt in range(2):
        try:
            if hvd.rank() == 0:
                average = hvd.DistributedGradients(like)
            average(like)
        except hvd.HorovodInternalError as error:
            print(type(error).__name__, error)
"""
JOINED = """
    hvd.join()
    print(hvd.allreduce(np.ones(1)))
"""


@pytest.mark.parametrize("engine", ["shm", "tcp"])
def test_another_optimizer_on_one_rank_is_told_to_all(launch: Launch, engine: str) -> None:
    lines = launch(2, PRELUDE + REPLACED, options=["--engine", engine]).ok().lines()
    assert len(lines) == 4
    assert len(set(lines)) == 1, "the generation has ended with this, and says so again"
    assert lines[0].startswith("MismatchError rank 1 on ")
    assert "step 2.0" in lines[0]
    assert "but the script of rank 0 on " in lines[0]
    assert "has dropped that optimizer, or made another one in its place" in lines[0]


@pytest.mark.parametrize("engine", ["shm", "tcp"])
def test_who_joins_misses_no_optimizer_that_another_rank_has_dropped(launch: Launch, engine: str) -> None:
    assert launch(2, PRELUDE + JOINED, options=["--engine", engine]).ok().lines() == ["[1.]", "[1.]"]


FORKED = """
    import os

    average = hvd.DistributedGradients(like)
    average(like)
    child = os.fork()
    if not child:
        del average
        os._exit(0)
    os.waitpid(child, 0)
    for _ in range(3):
        average(like)
    print("went on")
"""


def test_a_forked_child_drops_nothing_of_its_parents(launch: Launch) -> None:
    assert launch(2, PRELUDE + FORKED).ok().lines() == ["went on"] * 2
