"""Comparing snapshots: who differs, in what, and what every member says of it."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farandole.errors import DivergenceError
from farandole.runtime.collectives.divergence import OF_GRADIENT, Comparison, StepDigests

NAMES = ("fc.weight", OF_GRADIENT + "fc.weight", "fc.bias", OF_GRADIENT + "fc.bias")


def meet(snapshots: Sequence[StepDigests | None], comparisons: Sequence[Comparison] | None = None) -> list[str]:
    """What each member raises, or warns; "" for nothing."""
    size = len(snapshots)
    comparisons = comparisons or make(size)
    said: list[bytes] = [b""] * size
    barrier = threading.Barrier(size)
    marks = ["" if snapshot is None else snapshot.mark for snapshot in snapshots]

    def member(rank: int) -> str:
        def gather(payload: bytes) -> list[bytes]:
            assert len(payload) <= 64
            said[rank] = payload.rstrip(b"\0")  # as engines do
            barrier.wait(10)
            every = list(said)
            barrier.wait(10)
            return every

        if comparisons[rank].is_suspect(marks):
            try:
                comparisons[rank].explain(gather, snapshots[rank])
            except DivergenceError as error:
                return str(error)
            return "no error"
        return ""

    with ThreadPoolExecutor(size) as pool, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return list(pool.map(member, range(size)))


def make(size: int) -> list[Comparison]:
    return [Comparison("optimizer.0", [f"rank {rank} on a" for rank in range(size)]) for _ in range(size)]


def snapshot(*digests: int, step: int = 7, kind: str = "x", names: tuple[str, ...] = NAMES) -> StepDigests:
    return StepDigests(step, names, digests, kind)


def test_equal_snapshots_are_nothing_to_speak_of() -> None:
    assert meet([snapshot(1, 2, 3, 4)] * 3) == ["", "", ""]


def test_every_member_names_the_first_difference_and_two_ranks() -> None:
    said = meet([snapshot(1, 2, 3, 4), snapshot(1, 2, 3, 4), snapshot(1, 9, 8, 4)])
    assert len(set(said)) == 1
    assert "rank 0 on a and rank 2 on a" in said[0]
    assert "'gradient of fc.weight' differs at step 7" in said[0]


def test_parameters_that_differ_at_first_were_not_broadcast() -> None:
    assert "call broadcast_parameters" in meet([snapshot(1, 2, 3, 4, step=0), snapshot(5, 6, 7, 8, step=0)])[0].lower()


def test_the_same_numbers_under_other_names_differ() -> None:
    swapped = (NAMES[2], NAMES[3], NAMES[0], NAMES[1])
    said = meet([snapshot(1, 1, 1, 1), snapshot(1, 1, 1, 1, names=swapped)])
    assert said[0] == said[1]
    assert "'fc.weight' on the first where it has 'fc.bias' on the other" in said[0]


def test_one_has_more_than_the_other() -> None:
    said = meet([snapshot(1, 2, names=NAMES[:2]), snapshot(1, 2, 3, 4)])
    assert "'nothing' on the first where it has 'fc.bias' on the other" in said[0]


def test_members_that_have_joined_help_to_find_a_difference_of_others() -> None:
    said = meet([None, snapshot(1, 2, 3, 4), snapshot(1, 2, 3, 5)])
    assert "rank 1 on a and rank 2 on a" in said[0]
    assert meet([None, snapshot(1, 2, 3, 4), snapshot(1, 2, 3, 4)]) == ["", "", ""]


def test_ranks_of_other_kinds_may_round_differently_and_are_compared_among_themselves() -> None:
    comparisons = make(4)
    first = [snapshot(1, 2, 3, 4, kind=kind) for kind in "xx"] + [snapshot(1, 2, 3, 5, kind=kind) for kind in "yy"]
    assert meet(first, comparisons) == ["no error"] * 4
    assert meet(first, comparisons) == [""] * 4
    said = meet([*first[:3], snapshot(1, 2, 3, 6, kind="y")], comparisons)
    assert "rank 2 on a and rank 3 on a" in said[0]


def test_a_difference_between_kinds_is_told() -> None:
    comparison = Comparison("optimizer.0", ["rank 0 on a", "rank 1 on b"])
    both = [snapshot(1, 2, 3, 4, kind="x"), snapshot(1, 2, 3, 5, kind="y")]
    answers = iter([[b"4 78", b"4 79"], *([[b"", b""]] * 9)])
    with pytest.warns(RuntimeWarning, match="rank 0 on a, rank 1 on b differ.*rounding"):
        comparison.explain(lambda _: next(answers), both[0])


@given(st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=40), st.data())
def test_any_difference_is_found_where_it_is(digests: list[int], data: st.DataObject) -> None:
    names = tuple(f"{'é' * 40}.{i}" for i in range(len(digests)))
    worker_id = data.draw(st.integers(0, len(digests) - 1))
    other = list(digests)
    other[worker_id] ^= 1 << data.draw(st.integers(0, 63))
    said = meet([snapshot(*digests, names=names), snapshot(*other, names=names)])
    assert said[0] == said[1]
    assert f".{worker_id}' differs" in said[0]
