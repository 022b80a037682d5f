"""The context of the collectives of a lane, and what comes between its lines."""

from __future__ import annotations

import contextlib
import threading
from functools import partial
from typing import final

import pytest

from farandole.errors import UsageError
from farandole.runtime.lanes.active_collectives import ActiveCollectives
from farandole.runtime.lanes.reentry import Reentry
from farandole.runtime.session.cell_state import CellState
from farandole.runtime.session.planned_collective import PlannedCollectives
from tests.support.runtime.interruptions import at_every_call


@final
class Lane:
    """A lane of a process, and what the process knows of it."""

    def __init__(self) -> None:
        self.active, self.reentry = ActiveCollectives(), Reentry()
        self.collectives = self.another()

    def another(self) -> PlannedCollectives:
        """Another object for the same lane."""
        cells = CellState(self.active)
        return PlannedCollectives(self.active, self.reentry, lambda: None, cells, 0, "lane", "lane: ")

    def reports(self) -> list[tuple[str, int]]:
        """What is active, and its number."""
        return [(each.what, each.sequence) for each in self.active.older_than(0.0, 1)]


def test_a_handler_between_the_two_parts_of_entering_has_a_number_and_a_name_of_its_own() -> None:
    lane = Lane()
    below = lane.collectives.next("below")
    with lane.collectives.next("of the handler", needs_all=True):
        assert lane.reports() == [("lane: of the handler", 2)]
        assert len(lane.active.waits()) == 1
    with below:
        assert lane.reports() == [("lane: below", 1)]
        assert lane.active.waits() == []
    assert lane.collectives.sequence == 2
    assert lane.reports() == []


@pytest.mark.parametrize("is_another", [False, True])
def test_a_handler_inside_of_the_lane_is_refused_and_counts_nothing(is_another: bool) -> None:
    lane = Lane()
    handlers = lane.another() if is_another else lane.collectives  # as where the lane is just being made
    with lane.collectives.next("below"):
        before = handlers.sequence
        with pytest.raises(UsageError, match="lane: on top was asked for in a signal handler"):
            handlers.next("on top")
        assert handlers.sequence == before
    with handlers.next("afterwards"):
        assert lane.active.now() == "lane: afterwards"


def test_an_interrupt_on_entering_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: object) -> float:
        raise KeyboardInterrupt

    lane = Lane()
    monkeypatch.setattr("farandole.runtime.lanes.active_collectives.Pace.beat", interrupted)
    with pytest.raises(KeyboardInterrupt), lane.collectives.next("interrupted"):
        pytest.fail("it was entered")
    monkeypatch.undo()
    assert not lane.reentry.here()
    with lane.collectives.next("afterwards"):
        assert lane.reports() == [("lane: afterwards", 2)]


def test_an_interrupt_between_any_two_calls_of_entering_and_leaving_shuts_nobody_out() -> None:
    def stop() -> None:
        raise KeyboardInterrupt

    def collective(lane: Lane) -> None:
        with lane.collectives.next("interrupted"):
            assert lane.reentry.here()
            with pytest.raises(UsageError):
                lane.collectives.next("of a handler")

    left = 0
    for interruption in at_every_call(stop, ("planned_collective.py", "lanes/reentry.py", "active_collectives.py")):
        lane = Lane()
        with contextlib.suppress(KeyboardInterrupt):
            interruption.run(partial(collective, lane))
        left += bool(lane.reentry.entries)
        collective(lane)
        assert not lane.reentry.here()
        assert lane.reentry.entries == []
        assert lane.reports() == []
    assert left > 1  # of the moments are such that nobody could have left


def test_a_thread_that_an_interrupted_script_has_left_inside_leaves_by_itself() -> None:
    lane, inside, over = Lane(), threading.Event(), threading.Event()

    def stay() -> None:
        with lane.collectives.next("left behind"):
            inside.set()
            over.wait(60.0)

    other = threading.Thread(target=stay)
    other.start()
    assert inside.wait(60.0)
    with lane.collectives.next("next step"):
        assert lane.reports() == [("lane: left behind", 1), ("lane: next step", 2)]
        over.set()
        other.join(60.0)
        assert lane.reports() == [("lane: next step", 2)]
    assert lane.reentry.entries == []
