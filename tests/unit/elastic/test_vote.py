"""The rules of the vote and of the agreement after it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farandole.elastic.membership.vote import NEW, Vote, VoteClaim, VoteOutcome, agree, count
from farandole.errors import CollectiveError, MismatchError, StartError

CLAIMS = st.lists(
    st.builds(VoteClaim, st.integers(NEW, 3), st.sampled_from("ab"), st.just(()), st.booleans()),
    min_size=1,
    max_size=6,
)


def test_a_vote_counts_the_samples_of_all_and_hears_the_one_who_has_heard() -> None:
    parts = [Vote(4, (3, 1)), Vote(4, (2, 0), change_due=True), Vote(4, (2, 1))]
    assert count(parts) == VoteOutcome(5, (7, 2), True)


@pytest.mark.parametrize("other", [Vote(5, (1,)), Vote(4, ()), Vote(3, (1,))])
def test_only_parts_of_one_step_are_a_vote(other: Vote) -> None:
    with pytest.raises(CollectiveError, match="rank 1 is at step"):
        count([Vote(4, (1,)), other])


@pytest.mark.parametrize("odd", range(3))
def test_a_step_of_other_samples_on_some_rank_counts_on_none(odd: int) -> None:
    parts = [Vote(4, (rank + 1,), place="elsewhere" if rank == odd else "here") for rank in range(3)]
    with pytest.raises(MismatchError, match="counts on none of them"):
        count(parts)


def test_the_highest_step_wins_and_its_oldest_rank_is_the_root() -> None:
    agreement = agree([VoteClaim(6, "a"), VoteClaim(7, "b"), VoteClaim(NEW, "c", joined=True), VoteClaim(7, "b")])
    assert (agreement.step, agreement.root, agreement.sources, agreement.receivers) == (7, 1, [1, 3], [0, 2])


def test_a_job_begins_with_its_oldest_worker_that_did_not_join_later() -> None:
    agreement = agree([VoteClaim(NEW, "x", joined=True), VoteClaim(NEW, "y"), VoteClaim(NEW, "y"), VoteClaim(NEW, "z")])
    assert (agreement.step, agreement.root, agreement.sources, agreement.receivers) == (NEW, 1, [1, 2], [0, 3])
    assert not agreement.diverged


def test_those_that_joined_do_not_begin_the_job_anew() -> None:
    with pytest.raises(StartError, match="the state of the job is lost"):
        agree([VoteClaim(NEW, "x", joined=True), VoteClaim(NEW, "x", joined=True)])


def test_a_rank_that_diverged_is_named_and_brought_back() -> None:
    agreement = agree([VoteClaim(7, "a"), VoteClaim(7, "b"), VoteClaim(7, "a")])
    assert agreement.diverged == [1]
    assert agreement.receivers == [1]


MINE, OTHER = (("torch", 1), ("python", 2)), (("torch", 1), ("python", 3))
SAME = ["torch", "python"]


def test_what_is_private_is_handed_over_only_where_ranks_at_one_step_do_not_differ() -> None:
    assert agree([VoteClaim(7, "a", MINE), VoteClaim(7, "a", MINE)]).alike == SAME
    assert agree([VoteClaim(7, "a", MINE), VoteClaim(7, "a", OTHER)]).alike == ["torch"]
    assert agree([VoteClaim(7, "a", MINE), VoteClaim(6, "b", OTHER)]).alike == SAME, "it has drawn numbers since"
    assert agree([VoteClaim(7, "a", MINE), VoteClaim(NEW, "b", OTHER, joined=True)]).alike == SAME
    assert agree([VoteClaim(7, "a", MINE), VoteClaim(6, "b", MINE), VoteClaim(6, "b", OTHER)]).alike == ["torch"]


@pytest.mark.parametrize("step", [NEW, 7])
def test_ranks_whose_tensors_differ_keep_what_is_private_where_they_begin(step: int) -> None:
    assert agree([VoteClaim(step, "a", MINE), VoteClaim(NEW, "b", MINE)]).alike == SAME
    assert agree([VoteClaim(step, "a", MINE), VoteClaim(NEW, "b", MINE), VoteClaim(NEW, "c", OTHER)]).alike == ["torch"]
    assert agree([VoteClaim(step, "a", MINE), VoteClaim(step, "b", OTHER)]).alike == ["torch"]
    assert not agree([VoteClaim(step, "a", MINE), VoteClaim(NEW, "b")]).alike


@given(CLAIMS)
def test_afterwards_all_have_the_state_of_the_root_which_is_the_newest(claims: list[VoteClaim]) -> None:
    try:
        agreement = agree(claims)
    except StartError:
        assert all(claim.step == NEW and claim.joined for claim in claims)
        return
    assert sorted(agreement.sources + agreement.receivers) == list(range(len(claims)))
    assert agreement.root == agreement.sources[0]
    assert agreement.step == max(claim.step for claim in claims)
    assert {(claims[rank].step, claims[rank].digest) for rank in agreement.sources} == {
        (agreement.step, claims[agreement.root].digest)
    }
    assert set(agreement.diverged) <= set(agreement.receivers)
