"""State of a run as viewers see it: whether it was stopped, has failed or has ended well."""

from __future__ import annotations

import pytest

from farandole.control.watch_messages import OrderNews
from farandole.monitor.folder import MemberRecord, RunInfo
from farandole.monitor.hub import BETWEEN_CELLS, Hub


def ended(verb: str, status: int, state: str = "starting", search: bool = False) -> Hub:
    """A run that ended with this status after an order was obeyed."""
    hub = Hub(RunInfo(0.0, ["python", "train.py"], search={"trials": 1} if search else {}), state)
    hub.add_record(MemberRecord(1.0, 1, ["a"]))
    hub.order(OrderNews(1, verb, "acted", "", 7, 2.0))
    hub.end(status, "", 3.0)
    return hub


@pytest.mark.parametrize(("verb", "status"), [("stop", 0), ("end", 143), ("end", 0)])
def test_a_run_that_ends_as_ordered_was_stopped(verb: str, status: int) -> None:
    hub = ended(verb, status)
    assert hub.info.stopped
    [told] = [each for each in hub.snapshot(()) if each["t"] == "run"]
    assert (told["state"], told["stopped"]) == ("ended", True)


def test_a_run_that_ends_otherwise_was_not() -> None:
    assert not ended("stop", 1).info.stopped, "its script has failed on the way out"
    assert not ended("pause", 0).info.stopped
    assert not ended("stop", 0, BETWEEN_CELLS).info.stopped, "a cell was stopped, and the run went on"
    assert not ended("stop", 0, search=True).info.stopped, "the same call goes on"
