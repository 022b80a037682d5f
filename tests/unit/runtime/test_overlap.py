"""When gradients are reduced, and the thread that does it while the backward pass runs."""

from __future__ import annotations

import gc
import re
import threading
import weakref

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
        background.submit(lambda i=i: done.append(i))  # type: ignore[misc]
    background.finish()
    assert done == list(range(100))
    assert not any(re.search("farandole-test", thread.name) for thread in threading.enumerate())


def test_the_background_stops_at_an_error() -> None:
    done: list[int] = []
    background = Background("test")
    background.submit(lambda: 1 // 0)
    background.submit(lambda: done.append(1))
    with pytest.raises(ZeroDivisionError):
        background.finish()
    assert done == []


def test_a_background_that_failed_is_collected_with_what_it_was_given() -> None:
    background = Background("test")
    background.submit(lambda: 1 // 0)
    given = [Given(background) for _ in range(10)]
    for each in given:
        background.submit(each.go)
    alive = [weakref.ref(each) for each in given]
    with pytest.raises(ZeroDivisionError):
        background.finish()
    del background, given, each
    gc.collect()
    assert not any(ref() for ref in alive)


def test_a_background_that_nobody_finishes_ends_when_it_is_collected() -> None:
    background = Background("test-left")
    [thread] = [thread for thread in threading.enumerate() if "test-left" in thread.name]
    given = Given(background)
    background.submit(given.go)
    del background, given
    gc.collect()
    thread.join(10.0)
    assert not thread.is_alive()


class Given:
    """Refers to the background that it is given to, as a backward pass does."""

    def __init__(self, background: Background) -> None:
        self.background = background

    def go(self) -> None:
        pass
