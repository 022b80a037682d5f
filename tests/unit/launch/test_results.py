"""What the caller of a function on workers gets, of all that they have sent back."""

from __future__ import annotations

import pickle

import msgspec
import pytest

from farandole.errors import CollectiveError, ControlError, RemoteError
from farandole.launch.function.results import Results, values_of
from farandole.launch.function.task import TaskFailure, TaskValue


def of_two(*failures: TaskFailure) -> Results:
    """Results of two workers: failures, and values of those that have none."""
    results, failed = Results(), {failure.rank: failure for failure in failures}
    for rank in range(2):
        if rank in failed:
            results.add(rank, False, msgspec.msgpack.encode(failed[rank]))
        else:
            results.add(rank, True, msgspec.msgpack.encode(TaskValue(rank, pickle.dumps(10 * rank))))
    return results


def failure(rank: int, is_consequence: bool) -> TaskFailure:
    """One that has raised, because of another rank or by itself."""
    error = CollectiveError("rank 0 is lost") if is_consequence else ValueError("not a number")
    return TaskFailure(
        rank, "node1", f"{type(error).__name__}: {error}", "a traceback", pickle.dumps(error), is_consequence
    )


def test_values_come_in_the_order_of_ranks() -> None:
    assert values_of(of_two(), 2, "") == [0, 10]


@pytest.mark.parametrize("cause", [-1, 0], ids=["host", "rank"])
def test_what_has_failed_first_is_told_and_not_that_another_rank_missed_it(cause: int) -> None:
    with pytest.raises(ControlError, match="rank 0 on node1 was killed"):
        values_of(of_two(failure(1, is_consequence=True)), 2, "rank 0 on node1 was killed", cause)


def test_an_exception_comes_back_before_its_consequences() -> None:
    results = of_two(failure(0, is_consequence=True), failure(1, is_consequence=False))
    with pytest.raises(RemoteError, match="rank 1 on node1 raised ValueError") as caught:
        values_of(results, 2, "rank 0 on node1 exited with 1", 0)
    assert isinstance(caught.value.__cause__, ValueError)


def test_an_exception_of_all_ranks_comes_back_though_none_of_them_is_its_origin() -> None:
    """As of a stall, which ends the wait of every rank."""
    results = of_two(failure(0, is_consequence=True), failure(1, is_consequence=True))
    with pytest.raises(RemoteError, match="rank 0 on node1 raised CollectiveError"):
        values_of(results, 2, "rank 1 on node1 exited with 1", 1)
