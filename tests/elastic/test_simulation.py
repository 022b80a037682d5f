"""Ten thousand jobs in virtual time; ``ELASTIC_SEED=4711 pytest tests/elastic/test_simulation.py`` repeats one."""

from __future__ import annotations

import os

import pytest

from farandole.elastic import vote
from farandole.testing.elastic.simulation import main, simulate
from farandole.testing.elastic.world import Rules

CHUNK = 1000
SEEDS = [int(os.environ["ELASTIC_SEED"])] if "ELASTIC_SEED" in os.environ else range(0, 10_000, CHUNK)
COUNT = 1 if "ELASTIC_SEED" in os.environ else CHUNK


@pytest.mark.parametrize("first", SEEDS)
def test_what_is_promised_holds(first: int) -> None:
    told = [simulate(seed) for seed in range(first, first + COUNT)]
    broken = [f"ELASTIC_SEED={each.seed}: {each.faults[0]}" for each in told if each.faults]
    assert not broken, "\n".join(broken)
    if COUNT == CHUNK:
        assert sum(each.befell for each in told) > CHUNK
        assert sum(each.status == 0 for each in told) > CHUNK / 2


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
