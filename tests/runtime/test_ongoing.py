"""What a process says of the collectives that it is inside of."""

from __future__ import annotations

import threading

from farandole.runtime.lanes.ongoing import Ongoing


def test_threads_are_inside_of_their_own_lanes() -> None:
    ongoing = Ongoing()
    ongoing.enter(0, "optimizer.0", 7, "optimizer.0: bucket 1")
    other = threading.Thread(target=ongoing.enter, args=(0, "optimizer.1", 7, "optimizer.1: meet"))
    other.start()
    other.join()
    assert ongoing.now() == "optimizer.0: bucket 1; optimizer.1: meet"
    assert [(blocked.lane, blocked.sequence) for blocked in ongoing.older_than(0.0, 1)] == [
        ("optimizer.0", 7),
        ("optimizer.1", 7),
    ]
    ongoing.leave(0, "optimizer.0")
    assert ongoing.now() == "optimizer.1: meet"


def test_a_handler_adds_a_collective_of_another_lane() -> None:
    ongoing = Ongoing()
    ongoing.enter(0, "optimizer.0", 7, "optimizer.0: bucket 1")
    ongoing.enter_agreed(0, "allreduce 'loss'")
    assert ongoing.now() == "optimizer.0: bucket 1; allreduce 'loss'"
    ongoing.leave(0)
    assert ongoing.is_in(0, "optimizer.0")
    assert not ongoing.is_in(1, "optimizer.0")
    ongoing.leave(0, "optimizer.0")
    assert not ongoing.is_in(0, "optimizer.0")
