"""What a process says of the collectives that it is inside of."""

from __future__ import annotations

import gc
import threading

import pytest

from farandole.runtime.lanes.active_collectives import ActiveCollectives


def test_threads_are_inside_of_their_own_lanes() -> None:
    active = ActiveCollectives()
    active.enter(0, "optimizer.0", 7, "optimizer.0: bucket 1")
    other = threading.Thread(target=active.enter, args=(0, "optimizer.1", 7, "optimizer.1: meet"))
    other.start()
    other.join()
    assert active.now() == "optimizer.0: bucket 1; optimizer.1: meet"
    assert [(blocked.lane, blocked.sequence) for blocked in active.older_than(0.0, 1)] == [
        ("optimizer.0", 7),
        ("optimizer.1", 7),
    ]
    active.exit(0, "optimizer.0")
    assert active.now() == "optimizer.1: meet"


def test_a_handler_adds_a_collective_of_another_lane() -> None:
    active = ActiveCollectives()
    active.enter(0, "optimizer.0", 7, "optimizer.0: bucket 1")
    active.enter_agreed(0, "allreduce 'loss'")
    assert active.now() == "optimizer.0: bucket 1; allreduce 'loss'"
    active.exit(0)
    assert active.now() == "optimizer.0: bucket 1"
    active.exit(0, "optimizer.0")
    assert active.now() == ""


class _Finalized:
    """Garbage whose finalizer begins a collective, as any thread may that runs meanwhile."""

    def __init__(self, active: ActiveCollectives) -> None:
        self.active, self.cycle = active, self

    def __del__(self) -> None:
        self.active.enter(0, f"optimizer.{id(self)}", 1, "begun meanwhile", needs_all=True)


@pytest.mark.parametrize("read", ["reached", "waits", "count_planned", "now"])
def test_a_reader_needs_no_quiet_moment(read: str) -> None:
    active = ActiveCollectives()
    for lane in range(3000):  # more than the tuples that the interpreter keeps for use again
        active.enter(0, f"lane.{lane}", 1, "bucket", needs_all=True)
    before = gc.get_threshold()
    gc.collect()
    try:
        for threshold in range(1, 400, 7):
            _Finalized(active)
            gc.set_threshold(threshold)
            getattr(active, read)()
            gc.set_threshold(*before)
    finally:
        gc.set_threshold(*before)
