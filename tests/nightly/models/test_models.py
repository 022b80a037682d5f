"""Larger searches and simulations of the state machines than the gate has time for."""

from __future__ import annotations

import pytest

from tests.unit.runtime.test_peer_model import releasing
from workbench.elastic.search import search as search_jobs
from workbench.elastic.searches import LARGE
from workbench.elastic.simulation import main as elastic
from workbench.peers.search import search
from workbench.peers.searches import SMALL

__all__ = ["releasing"]


@pytest.mark.parametrize(
    "name", ["three workers, one killed and one told to end", "three workers, the script of one raises"]
)
def test_nothing_breaks_what_is_promised_to_three_workers(name: str) -> None:
    found = search_jobs(LARGE[name], most=1_000_000)
    assert not found.fault, found.fault
    assert found.ends[0]


@pytest.mark.usefixtures("releasing")
@pytest.mark.parametrize("name", SMALL)
def test_it_holds_in_every_interleaving_where_ranks_that_are_to_join_ask_to_be_released(name: str) -> None:
    found = search(SMALL[name])
    assert found.fault == ""
    assert found.ends > 0


@pytest.mark.parametrize("first", range(0, 10_000, 1000))
def test_jobs_in_virtual_time_keep_what_is_promised(first: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert elastic([str(first), "1000"]) == 0, capsys.readouterr().out
