"""Groups to which their members have given numbers, as the controller takes them over."""

from __future__ import annotations

import pytest

from farandole.runtime.coordination.process_groups import ADOPTED, ProcessGroups


def test_a_group_is_taken_over_once_and_none_that_contradicts_it() -> None:
    groups = ProcessGroups(4, [[2, 3]])
    assert groups.adopt(ADOPTED, [1, 3])
    assert groups.adopt(ADOPTED, [1, 3])
    assert not groups.adopt(ADOPTED, [1, 2])
    assert groups.get(ADOPTED) == groups.get(groups.add([1, 3])[0]), "a process set may have the same ranks"
    assert groups.of(1)[:2] == [0, ADOPTED]


@pytest.mark.parametrize(
    ("number", "ranks"), [(1, [1, 3]), (-1, [1]), (ADOPTED, []), (ADOPTED, [4]), (ADOPTED, [1, 1])]
)
def test_numbers_of_process_sets_and_impossible_ranks_are_not_taken_over(number: int, ranks: list[int]) -> None:
    groups = ProcessGroups(4)
    assert not groups.adopt(number, ranks)
    assert len(groups) == 1
