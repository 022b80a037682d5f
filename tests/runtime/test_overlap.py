"""When gradients are reduced, and the thread that does it while the backward pass runs."""

from __future__ import annotations

import re
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farandole.gradients.overlap import Background, choose_overlap


@given(st.integers(0, 2**30), st.booleans())
def test_overlap_is_chosen_where_there_is_enough_for_the_network_to_do(nbytes: int, crosses: bool) -> None:
    choice, why = choose_overlap("auto", nbytes, crosses)
    assert (choice == "backward") == (crosses and nbytes >= 2**20)
    assert why
    for asked in ("step", "backward"):
        assert choose_overlap(asked, nbytes, crosses) == (asked, "it was asked for")


def test_the_background_works_in_order_and_ends() -> None:
    done: list[int] = []
    background = Background("test")
    for i in range(100):
        background.run(lambda i=i: done.append(i))  # type: ignore[misc]
    background.finish()
    assert done == list(range(100))
    assert not any(re.search("farandole-test", thread.name) for thread in threading.enumerate())


def test_the_background_stops_at_an_error() -> None:
    done: list[int] = []
    background = Background("test")
    background.run(lambda: 1 // 0)
    background.run(lambda: done.append(1))
    with pytest.raises(ZeroDivisionError):
        background.finish()
    assert done == []
