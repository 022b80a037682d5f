"""When a name of the fast path is open on a rank, and when it is not: on one rank, which meets itself."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from farandole import events
from farandole.adapters.numpy import NumpyAdapter
from farandole.collective import Kind, ReduceOp, Reduction
from farandole.graphs.library import _Buffer, _Origin, _Request
from farandole.native import core
from farandole.runtime.lanes.announcement import Announcement, FastRequest
from farandole.runtime.lanes.call import Call
from farandole.runtime.lanes.fast_path import FastPath

LIBRARY, SPEC, NAME = 77, b"a spec", "allreduce.loss"
FLOAT = 11
NOWHERE = (-1, -1, -1)


class Native:
    """The core's, with something that happens first when a name is closed."""

    def __init__(self) -> None:
        self.core = core.FastPath(0, ["rank 0"], lambda mine: [mine], 1.0)
        self.first: Callable[[], object] = lambda: None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.core, name)

    def detach(self, name: str) -> None:
        first, self.first = self.first, lambda: None
        first()
        self.core.detach(name)


@pytest.fixture
def native() -> Native:
    return Native()


@pytest.fixture
def fast(native: Native) -> Iterator[FastPath]:
    fast = FastPath(native)  # type: ignore[arg-type]
    yield fast
    fast.close()
    assert not events.shortcuts


def announced(key_name: str = NAME, origin: tuple[int, int, int] = NOWHERE, **how: Any) -> Announcement:
    """An all-reduce of three numbers that a graph has asked for."""
    adapter = NumpyAdapter()
    values = np.zeros(3, np.float32)
    call = Call(Kind.ALLREDUCE, NAME, adapter.array(values), (3,), how=Reduction(ReduceOp.SUM, **how))
    asked = FastRequest(LIBRARY, SPEC, [(FLOAT, (3,))], origin)
    announcement = Announcement(0, NAME, Kind.ALLREDUCE, [call], fast=asked)
    announcement.key = (0, key_name)
    return announcement


def call(origin: tuple[int, int, int] = NOWHERE, count: int = 3) -> tuple[list[float], tuple[int, int, int]]:
    """Results of a call of the graph, none where it is Python's, and the origin of the one before, if that is news."""
    values, dims = np.arange(1, count + 1, dtype=np.float32), (ctypes.c_int64 * 1)(count)
    text = ctypes.create_string_buffer(SPEC)
    buffers = (_Buffer * 2)(_Buffer(values.ctypes.data, FLOAT, 1, dims), _Buffer(None, FLOAT, 1, dims))
    request = _Request(ctypes.addressof(text), len(SPEC), 1, 1, buffers, _Origin(*origin), _Origin(*NOWHERE))
    result = (ctypes.c_float * 512)()
    function = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p)(core.fast_call())
    address = (ctypes.addressof(result) + 63) // 64 * 64
    has_met = function(LIBRARY, ctypes.addressof(request), address)
    previous = request.previous
    found = list((ctypes.c_float * count).from_address(address)) if has_met else []
    return found, (previous.run, previous.device, previous.place)


def test_a_call_meets_once_its_name_is_open_until_python_has_the_name_again(fast: FastPath) -> None:
    assert call()[0] == []
    fast.attach(announced(postscale=2.0), grant=3)
    assert call()[0] == call()[0] == [2.0, 4.0, 6.0]
    assert fast.statistics() == {"met": 2, "left": 0}
    fast.detach((0, "allreduce.another"))
    fast.detach((1, NAME))
    assert call()[0]
    fast.detach((0, NAME))
    assert call()[0] == []


def test_a_call_that_is_pythons_closes_the_name(fast: FastPath) -> None:
    """As another one may come before Python has seen it."""
    fast.attach(announced(), grant=3)
    assert call(count=2)[0] == []
    assert call()[0] == []


def test_a_join_closes_all_names(fast: FastPath) -> None:
    fast.attach(announced(), grant=3)
    fast.give_way(Announcement(0, "join", Kind.JOIN, ()))
    assert call()[0] == []


def test_what_ranks_may_not_mean_alike_is_never_open(fast: FastPath) -> None:
    fast.attach(announced(f"{NAME} (after 1 refused)"), grant=3)
    fast.attach(announced(), grant=4096)
    adasum = announced()
    adasum.calls[0].how = Reduction(ReduceOp.ADASUM)
    fast.attach(adasum, grant=3)
    assert call()[0] == []


def test_a_name_that_somebody_else_is_closing_is_closed_when_python_has_it(fast: FastPath, native: Native) -> None:
    """A subscriber of events, whose thread was stopped in the middle of it."""
    fast.attach(announced(), grant=3)
    found = []

    def meanwhile() -> None:
        fast.detach((0, NAME))
        found.append(call()[0])

    native.first = meanwhile
    fast.detach_all()
    assert found == [[]]


def test_nothing_is_open_while_somebody_subscribes(fast: FastPath) -> None:
    fast.attach(announced(), grant=3)
    cancel = events.subscribe(lambda _: None)
    assert call()[0] == []
    fast.attach(announced(), grant=3)
    assert call()[0] == []
    cancel()
    fast.attach(announced(), grant=3)
    assert call()[0]


def test_calls_of_two_places_in_one_run_are_pythons_which_is_told_of_the_one_before(fast: FastPath) -> None:
    fast.attach(announced(origin=(5, 0, 70)), grant=3)
    assert call((5, 0, 70))[0]
    assert call((6, 0, 71))[0]
    assert call((6, 0, 72)) == ([], (6, 0, 71))
    fast.attach(announced(origin=(6, 0, 72)), grant=3)
    assert call((7, 1, 72)) == ([], NOWHERE), "another device; of the one before it knows"


def test_a_new_program_with_the_name_may_have_the_numbers_of_an_old_run(fast: FastPath) -> None:
    fast.attach(announced(origin=(5, 0, 70)), grant=3)
    assert call((5, 0, 70))[0]
    core.forget_origins(NAME)
    assert call((5, 0, 71))[0]


def test_after_the_end_nothing_meets(fast: FastPath) -> None:
    fast.attach(announced(), grant=3)
    fast.stop()
    assert call()[0] == []
    fast.close()
    fast.attach(announced(), grant=3)
    assert call()[0] == []
    fast.close()


def test_the_pace_has_the_longest_time_between_two_calls_since_it_was_asked_for(fast: FastPath) -> None:
    fast.attach(announced(), grant=3)
    assert (fast.met(), *fast.pace()) == (0, 0.0, 0.0)
    call()
    last_s, longest_s = fast.pace()
    assert fast.met() == 1
    assert last_s > 0
    assert longest_s == 0
    call()
    assert 0 < fast.pace()[1] < 600
    assert fast.pace()[1] == 0
