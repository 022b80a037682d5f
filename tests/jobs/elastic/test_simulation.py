"""Thousands of jobs in virtual time; ``ELASTIC_SEED=4711 pytest tests/jobs/elastic/test_simulation.py`` repeats one."""

from __future__ import annotations

import os
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from farandole.elastic.membership import vote
from tests.support.launching import run_to_end
from workbench.elastic.simulation import main, simulate
from workbench.elastic.world import Rules

COUNT, PROCESSES = 1_000, 2
"""The slice ``models`` plays 10,000."""
DEADLINE_S = 280.0


@pytest.mark.skipif("ELASTIC_SEED" in os.environ, reason="only one schedule was asked for")
def test_what_is_promised_holds(tmp_path: Path) -> None:
    share = COUNT // PROCESSES

    def play(first: int) -> str:
        folder = tmp_path / str(first)
        folder.mkdir()
        command = [sys.executable, "-m", "workbench.elastic.simulation", str(first), str(share)]
        return run_to_end(command, folder, DEADLINE_S).ok().stdout

    with ThreadPoolExecutor(PROCESSES) as pool:
        for said in pool.map(play, range(0, COUNT, share)):
            found = [re.findall(rf"([\d,]+) {what}", said)[0] for what in ("faults and plans", "jobs ended well")]
            disruptions, well = (int(number.replace(",", "")) for number in found)
            assert disruptions > share
            assert well > share / 2


@pytest.mark.skipif("ELASTIC_SEED" not in os.environ, reason="ELASTIC_SEED=N repeats one schedule")
def test_it_holds_in_the_schedule_that_was_asked_for() -> None:
    assert simulate(int(os.environ["ELASTIC_SEED"])).faults == []


def test_a_seed_is_a_schedule() -> None:
    assert simulate(3) == simulate(3)
    assert simulate(3) != simulate(4)._replace(seed=3)


@pytest.mark.parametrize(
    "rules",
    [
        Rules(hands_over_cursor=False),
        Rules(owns_up=False),
        Rules(agree=lambda claims: vote.agree([claim._replace(digest="") for claim in claims])),
    ],
    ids=["forget the cursor in the transfer", "keep a state that is half applied", "compare no digests"],
)
def test_a_broken_rule_is_found(rules: Rules) -> None:
    assert any(simulate(seed, rules).faults for seed in range(300))


def test_the_command_says_what_was_seen(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["5", "3"]) == 0
    assert capsys.readouterr().out.startswith("3 schedules")
