"""Who is waited for, whatever the order of answers and departures."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from farandole.runtime.coordination.acknowledgements import Acknowledgements


@given(st.permutations(range(5)), st.sets(st.integers(0, 4)), st.sets(st.integers(0, 4)))
def test_it_is_finished_once_when_all_have_answered_or_gone(order: list[int], asked: set[int], gone: set[int]) -> None:
    roll_call = Acknowledgements()
    roll_call.begin(7, asked)
    finished = [roll_call.finished()]
    for rank in order:
        roll_call.answered(rank, 6)
        if rank in gone:
            roll_call.gone(rank)
        else:
            roll_call.answered(rank, 7)
        finished.append(roll_call.finished())
    last = max((order.index(rank) + 1 for rank in asked), default=0)
    assert finished == [None] * last + [7] + [None] * (5 - last)


def test_the_next_question_ends_the_one_before_it() -> None:
    roll_call = Acknowledgements()
    roll_call.begin(1, [1, 2])
    roll_call.begin(2, [1])
    roll_call.answered(2, 1)
    roll_call.answered(1, 1)
    assert roll_call.finished() is None
    roll_call.answered(1, 2)
    assert roll_call.finished() == 2
