"""Who is waited for, whatever the order of answers and departures."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from farandole.runtime.coordination.generation import Acknowledgements


@given(st.permutations(range(5)), st.sets(st.integers(0, 4)), st.sets(st.integers(0, 4)))
def test_it_is_finished_once_when_all_have_answered_or_gone(order: list[int], asked: set[int], gone: set[int]) -> None:
    acknowledgements = Acknowledgements()
    acknowledgements.begin(7, asked)
    finished = [acknowledgements.finished()]
    for rank in order:
        acknowledgements.answered(rank, 6)
        if rank in gone:
            acknowledgements.gone(rank)
        else:
            acknowledgements.answered(rank, 7)
        finished.append(acknowledgements.finished())
    last = max((order.index(rank) + 1 for rank in asked), default=0)
    assert finished == [None] * last + [7] + [None] * (5 - last)


def test_the_next_question_ends_the_one_before_it() -> None:
    acknowledgements = Acknowledgements()
    acknowledgements.begin(1, [1, 2])
    acknowledgements.begin(2, [1])
    acknowledgements.answered(2, 1)
    acknowledgements.answered(1, 1)
    assert acknowledgements.finished() is None
    acknowledgements.answered(1, 2)
    assert acknowledgements.finished() == 2
