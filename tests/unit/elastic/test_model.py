"""Every interleaving of small jobs: what is promised holds in all of them, and a broken rule is found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from farandole.elastic.membership import vote
from farandole.elastic.membership.actions import AbortGeneration, AnyAction
from farandole.elastic.membership.job_state import JobState
from farandole.elastic.membership.policy import Policy
from workbench.elastic.search import search
from workbench.elastic.searches import ONCE, SMALL
from workbench.elastic.world import JobSetup, Rules


@pytest.mark.parametrize("name", SMALL)
def test_nothing_breaks_what_is_promised(name: str) -> None:
    found = search(SMALL[name], most=200_000)
    print(f"{name}: {found.states} states, {found.transitions} transitions, ends {dict(found.ends)}")
    assert not found.fault, found.fault
    assert found.ends[0]


def test_a_job_of_which_nobody_is_left_says_so() -> None:
    found = search(JobSetup({"a": 2}, ONCE, budget=(("kill", 2),)))
    assert not found.fault, found.fault
    assert found.ends[137]


# -- the checker finds what is wrong ----------------------------------------------------------------------------------


def oldest_state(claims: Sequence[vote.VoteClaim]) -> vote.Agreement:
    """The lowest step wins."""
    lowest = min(claim.step for claim in claims)
    return vote.agree([replace_step(claim, lowest) for claim in claims])


def replace_step(claim: vote.VoteClaim, lowest: int) -> vote.VoteClaim:
    return claim if claim.step == lowest else claim._replace(step=vote.NEW, joined=True)


def own_part_only(parts: Sequence[vote.Vote]) -> vote.VoteOutcome:
    """As if all of a batch of two had come."""
    return vote.VoteOutcome(parts[0].step + 1, (2,), False)


def no_digest(claims: Sequence[vote.VoteClaim]) -> vote.Agreement:
    """Whoever is at the same step counts as having the same state."""
    return vote.agree([claim._replace(digest="") for claim in claims])


KILL = JobSetup({"a": 2}, ONCE, budget=(("kill", 1),))
FAIL = replace(KILL, budget=(("fail", 1),))
APPLY = replace(KILL, budget=(("fail in apply", 1),))
JOIN = JobSetup({"a": 1}, Policy(), plans=({"a": 1, "b": 1},), fixed_batch=False, samples=5)


@pytest.mark.parametrize(
    ("setup", "rules", "promise"),
    [
        (KILL, Rules(needs_all_parts=False, count=own_part_only), "P[35]"),
        (KILL, Rules(moves_cursor=False), "P4"),
        (JOIN, Rules(hands_over_cursor=False), "P4"),
        (FAIL, Rules(agree=oldest_state), "P3"),
        (KILL, Rules(agree=no_digest), "P5"),
        (APPLY, Rules(owns_up=False), "P[345]"),
    ],
    ids=[
        "apply before the vote",
        "forget the cursor in the vote",
        "forget the cursor in the transfer",
        "take the lowest step",
        "compare no digests",
        "keep a state that is half applied",
    ],
)
def test_a_broken_rule_is_found(setup: JobSetup, rules: Rules, promise: str) -> None:
    with pytest.raises(AssertionError, match=promise):
        assert_holds(replace(setup, rules=rules))


def test_a_membership_that_does_not_wait_for_survivors_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    awaited = JobState.awaited
    monkeypatch.setattr(JobState, "awaited", lambda job, now: [] if job.generation else awaited(job, now))
    with pytest.raises(AssertionError, match=r"P[135]"):
        assert_holds(replace(KILL, hosts={"a": 3}))


def test_a_membership_that_does_not_end_a_generation_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = JobState._answer

    def keep_silent(job_state: JobState, action: AnyAction, reason: str) -> None:
        if not isinstance(action, AbortGeneration):
            answer(job_state, action, reason)

    monkeypatch.setattr(JobState, "_answer", keep_silent)
    with pytest.raises(AssertionError):
        assert_holds(JobSetup({"a": 2, "b": 1}, ONCE, budget=(("cut host", 1),)))


def assert_holds(setup: JobSetup) -> None:
    found = search(setup, most=200_000)
    assert not found.fault, found.fault
