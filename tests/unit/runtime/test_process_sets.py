"""Process sets as objects, without a job."""

from __future__ import annotations

import pytest

from farandole.errors import UnsupportedError, UsageError
from farandole.runtime.session.process_sets import ProcessSet, Registry, global_process_set


def test_a_set_knows_nothing_of_itself_before_it_is_registered() -> None:
    some = ProcessSet([2, 0])
    assert some.ranks == [0, 2]
    assert (some.process_set_id, some.size(), some.rank(), some.included()) == (None, None, None, None)


def test_a_registered_set_knows_its_number_and_this_ranks_place() -> None:
    registry = Registry(rank=2, size=3)
    some, others = ProcessSet([2, 1]), ProcessSet([0])
    registry.add(1, some)
    registry.add(2, others)
    assert (some.process_set_id, some.size(), some.rank(), some.included()) == (1, 2, 1, True)
    assert (others.size(), others.rank(), others.included()) == (1, -1, False)
    assert (global_process_set.process_set_id, global_process_set.size(), global_process_set.rank()) == (0, 3, 2)
    registry.remove(1)
    assert some.included() is None
    registry.clear()
    assert global_process_set.size() is None


def test_only_members_of_registered_sets_take_part() -> None:
    registry = Registry(rank=1, size=2)
    registry.add(3, ProcessSet([0]))
    assert list(registry.members(0, "allreduce.x")) == [0, 1]
    with pytest.raises(UsageError, match=r"allreduce\.x: there is no process set 7; registered are \[0, 3\]"):
        registry.members(7, "allreduce.x")
    with pytest.raises(UsageError, match=r"rank 1 is not in process set 3, which is \[0\]"):
        registry.members(3, "allreduce.x")
    registry.clear()


def test_sets_that_cannot_be_are_refused() -> None:
    registry = Registry(rank=0, size=2)
    for ranks in ([], [2], [-1, 0]):
        with pytest.raises(UsageError, match="does not fit a job of 2"):
            registry.admit(ranks)
    with pytest.raises(UsageError, match="are process set 0 already"):
        registry.admit([1, 0])
    with pytest.raises(UsageError, match="holds each rank once"):
        ProcessSet([1, 1])
    with pytest.raises(UnsupportedError, match="pass a list"):
        ProcessSet(3)  # type: ignore[arg-type]
    registry.clear()
