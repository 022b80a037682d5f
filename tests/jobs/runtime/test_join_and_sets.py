"""Ranks that have joined, process sets and unnamed calls: right numbers, or an error on every rank; never a hang."""

from __future__ import annotations

import numpy as np
import pytest

from farandole.adapters.numpy import verbs
from farandole.collective import ReduceOp, Reduction
from farandole.errors import CollectiveError, FarandoleError, UsageError
from farandole.runtime.session.init import current, global_process_set, init, shutdown
from farandole.runtime.session.process_sets import ProcessSet
from farandole.testing.rank import RankContext
from workbench.jobs import NumpyCalls, run_job

SUM = Reduction(ReduceOp.SUM)
FEW_S = {"FARANDOLE_STALL_SHUTDOWN_S": "20"}


def unnamed_sum(value: float, process_set: ProcessSet = global_process_set) -> float:
    [result] = verbs.allreduce([np.array([value])], None, SUM, process_set).run()
    return float(result[0])


def test_unnamed_calls_meet_after_a_join_that_some_ranks_have_come_to_with_fewer_of_them() -> None:
    def program(member: RankContext) -> list[float]:
        some = ProcessSet([0, 2])
        init(process_sets=[some])
        found = []
        for _ in range(2):
            found += [unnamed_sum(step) for step in range(1, 1 + 2 * member.rank)]
            if member.rank == 2:
                found.append(unnamed_sum(7.0, some))
                current().barrier()
            current().join()
            found.append(unnamed_sum(member.rank))
            if some.included():
                found.append(unnamed_sum(member.rank, some))
            current().barrier()
        new = current().add_process_set([0, 1])
        if new.included():
            found.append(unnamed_sum(10.0, new))
        shutdown()
        return found

    first, second, third = run_job(program, 3, environment=FEW_S)
    assert first == [3.0, 2.0, 3.0, 2.0, 20.0]
    assert second == [2.0, 4.0, 3.0] * 2 + [20.0]
    assert third == [2.0, 4.0, 3.0, 4.0, 7.0, 3.0, 2.0] * 2


def test_process_sets_with_a_member_that_has_joined_and_without() -> None:
    def program(member: RankContext) -> list[object]:
        sets = [ProcessSet([0, 1]), ProcessSet([1, 2]), ProcessSet([0, 2])]
        init(process_sets=sets)
        found: list[object] = []
        if member.rank > 0:
            for number, each in enumerate(sets, 1):
                if not each.included():
                    continue
                do, x = NumpyCalls(number), np.full(2, 1.0 + member.rank)
                do.allreduce("small", x)
                large = np.full(100_000, 1.0 + member.rank)
                do.allreduce("large", large, ReduceOp.MIN)
                rows, _ = do.allgather("rows", np.full((member.rank, 1), 5.0 * member.rank))
                kept = do.reducescatter("kept", np.full(4, 1.0 + member.rank))
                current().barrier(number)
                found.append((x.tolist(), float(large[-1]), rows.ravel().tolist(), kept.tolist()))
        current().join()
        shutdown()
        return found

    first, second, third = run_job(program, 3, environment=FEW_S)
    assert first == []
    both = [5.0, 10.0, 10.0]
    assert second == [([2.0, 2.0], 2.0, [5.0], [2.0, 2.0]), ([5.0, 5.0], 2.0, both, [5.0, 5.0])]
    assert third == [([5.0, 5.0], 2.0, both, [5.0, 5.0]), ([3.0, 3.0], 3.0, [10.0, 10.0], [3.0, 3.0])]


def test_a_process_set_that_a_joined_rank_would_not_know_is_refused_on_every_rank() -> None:
    def program(member: RankContext) -> list[str]:
        some = ProcessSet([0, 1])
        init(process_sets=[some])
        said = []
        if member.rank > 0:
            for change in (lambda: current().add_process_set([0, 2]), lambda: current().remove_process_set(some)):
                with pytest.raises(CollectiveError) as caught:
                    change()
                said.append(str(caught.value))
        current().join()
        new = current().add_process_set([0, 2])
        if new.included():
            assert unnamed_sum(1.0, new) == 2.0
        assert current().remove_process_set(some)
        assert unnamed_sum(1.0) == 3.0
        shutdown()
        return said

    none, *both = run_job(program, 3, environment=FEW_S)
    assert none == []
    for said in both:
        assert len(said) == 2
        for text in said:
            assert "every rank has to know of it, and rank 0 on" in text
            assert "has called join(), which has not returned yet" in text


@pytest.mark.parametrize("wrong", [[0, 7], [0, 0], ["a"], 3, [0, 1.5], []], ids=str)
def test_a_process_set_that_one_rank_cannot_make_is_an_error_on_all_and_the_next_works(wrong: object) -> None:
    def program(member: RankContext) -> str:
        init()
        with pytest.raises((FarandoleError, TypeError)) as caught:
            current().add_process_set([0, 1] if member.rank else wrong)  # type: ignore[arg-type]
        some = current().add_process_set(np.array([2, 0]))
        if some.included():
            assert unnamed_sum(1.0 + member.rank, some) == 4.0
        assert unnamed_sum(1.0) == 3.0
        shutdown()
        return f"{type(caught.value).__name__}: {caught.value}"

    own, *others = run_job(program, 3, environment=FEW_S)
    assert not own.startswith("MismatchError")
    for text in others:
        assert text.startswith("MismatchError: add_set")
        assert "rank 0 on" in text
        assert "it cannot: " in text


def test_what_no_rank_can_make_is_an_error_on_each_and_the_next_works() -> None:
    def program(_: RankContext) -> float:
        init()
        for _again in range(2):
            with pytest.raises(UsageError, match="does not fit a job of 2"):
                current().add_process_set([0, 7])
        some = current().add_process_set([0])
        assert some.process_set_id == 1
        result = unnamed_sum(1.0)
        shutdown()
        return result

    assert run_job(program, 2, environment=FEW_S) == [2.0, 2.0]
