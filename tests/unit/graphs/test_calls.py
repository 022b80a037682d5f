"""Calls of compiled graphs are told to the framework once, whichever of an error and a result comes first."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from farandole.errors import AbortError
from farandole.graphs import calls
from farandole.graphs.library import GraphCall, Library, _Buffer, _Origin, _Request
from farandole.runtime.collectives.verbs import Pending
from farandole.runtime.session import init as sessions
from farandole.runtime.session.init import init, shutdown
from tests.support.patience import PATIENCE_S
from tests.support.runtime.interruptions import at_every_call

DEADLINE_S = PATIENCE_S


class Framework:
    """The framework's side of a library: it frees a call when it is told, and notes what it is told."""

    def __init__(self) -> None:
        self.told: list[bytes | None] = []
        self.library = Library.__new__(Library)
        self.library.dtypes = {11: np.dtype(np.float32)}
        self.library.native = SimpleNamespace(  # type: ignore[assignment]
            farandole_graph_set_begin=self._set, farandole_graph_set_fast=lambda *_: None
        )
        self.library.number = 0
        self.library.finish = self.finish  # type: ignore[assignment]
        self.after: Callable[[], None] = lambda: None
        self._has_come = (ctypes.c_int64 * 1)()

    def _set(self, function: Any) -> None:
        self._begin = function

    def finish(self, address: int, text: bytes | None) -> None:
        self.told.append(text)
        self.after()

    def request(self, spec: str) -> tuple[_Request, list[Any]]:
        """A call with one input and one output of three floats, and what it lives in."""
        values, dims, text = (
            np.ones((2, 3), np.float32),
            (ctypes.c_int64 * 1)(3),
            ctypes.create_string_buffer(spec.encode()),
        )
        buffers = (_Buffer * 2)(*(_Buffer(each.ctypes.data, 11, 1, dims) for each in values))
        request = _Request(
            ctypes.addressof(text), len(spec), 1, 1, buffers, _Origin(-1, -1, -1), _Origin(-1, -1, -1), self._has_come
        )
        return request, [values, dims, text, buffers]

    def call(self, spec: str) -> None:
        request, _held = self.request(spec)
        self._has_come[0] = 0
        self._begin(1, ctypes.pointer(request))
        if not self._has_come[0]:  # as ``Call::begin`` of native/graph_call.hpp
            self.told.append(b"a signal handler raised before the call was begun")


@pytest.fixture
def session() -> Any:
    init()
    yield sessions.current()
    shutdown()


@pytest.fixture
def framework() -> Framework:
    return Framework()


def interrupt() -> None:
    raise KeyboardInterrupt


def test_an_interruption_just_after_a_call_was_finished_finishes_it_no_second_time(
    session: Any, framework: Framework
) -> None:
    """The native call is freed by then."""
    calls.take_calls(framework.library)
    framework.after = interrupt
    framework.call(calls.Spec("allreduce", "loss").encode())
    assert framework.told == [None]


@pytest.mark.parametrize("when", ["before it is taken", "while it is worked on", "when it is over"])
def test_an_interruption_after_another_thread_was_given_the_call_leaves_it_to_one_of_them(
    session: Any, framework: Framework, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """All orders of: the giver is interrupted, the taker takes it, the taker is through."""
    put, worked = calls._Finishers.put, []
    taken, interrupted, over = threading.Event(), threading.Event(), threading.Event()

    def function(_: Any) -> None:
        worked.append(bool(framework.told))
        taken.set()
        assert when != "while it is worked on" or interrupted.wait(DEADLINE_S)

    def put_and_be_interrupted(finishers: Any, work: Callable[[], None]) -> None:
        def run() -> None:
            assert when != "before it is taken" or interrupted.wait(DEADLINE_S)
            work()
            over.set()

        put(finishers, run)
        assert when != "while it is worked on" or taken.wait(DEADLINE_S)
        assert when != "when it is over" or over.wait(DEADLINE_S)
        raise KeyboardInterrupt

    calls.take_calls(framework.library)
    spec = calls.provide("a function", function)
    monkeypatch.setattr(calls._Finishers, "put", put_and_be_interrupted)
    framework.call(spec)
    interrupted.set()
    assert over.wait(DEADLINE_S)
    assert len(framework.told) == 1
    assert (framework.told == [None]) == (when != "before it is taken")
    assert not any(worked), "it wrote to memory that the framework has freed"


def test_whoever_takes_a_call_is_the_only_one_to_finish_it(session: Any, framework: Framework) -> None:
    """An abort and the end of a collective, in two threads and in every order: two steps of one, one of the other."""
    for order in ("aab", "aba", "bba", "bab"):
        framework.told.clear()
        request, _held = framework.request(calls.Spec("allreduce", "loss").encode())
        call = GraphCall(framework.library, 1, request)
        turns = {name: threading.Semaphore(0) for name in "ab"}
        through = threading.Semaphore(0)

        def ends(
            name: str, error: BaseException | None, call: GraphCall = call, turns: Any = turns, through: Any = through
        ) -> None:
            def work() -> None:
                through.release()
                assert turns[name].acquire(timeout=DEADLINE_S)
                if error is not None:
                    raise error

            assert turns[name].acquire(timeout=DEADLINE_S)
            calls._finish(call, sessions.current("test"), work)
            through.release()

        threads = [
            threading.Thread(target=ends, args=("a", AbortError("rank 1 was killed"))),
            threading.Thread(target=ends, args=("b", None)),
        ]
        for thread in threads:
            thread.start()
        for name in order:
            turns[name].release()
            assert through.acquire(timeout=DEADLINE_S)
        for thread in threads:
            thread.join(DEADLINE_S)
        first = None if order[0] == "b" else b"farandole.errors.AbortError: rank 1 was killed"
        assert framework.told == [first], order


def test_a_failed_call_is_told_when_no_engine_writes_to_its_outputs_any_more(
    session: Any, framework: Framework, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its handle ends with the session, where a leader may still be on its way out of an engine."""
    done, said = threading.Event(), []
    monkeypatch.setattr(type(session), "await_lane", lambda _: said.append(list(framework.told)))

    def fails(*_: Any) -> Any:
        def wait(_: Any) -> None:
            raise AbortError("rank 1 was killed")

        return Pending(None, lambda _: None), wait

    monkeypatch.setitem(calls._BEGIN, "allreduce", fails)
    calls.take_calls(framework.library)
    framework.after = done.set
    framework.call(calls.Spec("allreduce", "loss").encode())
    assert done.wait(DEADLINE_S)
    assert said == [[]]
    assert len(framework.told) == 1


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("is_refused", [False, True])
def test_wherever_an_interruption_comes_the_framework_is_told_once(
    session: Any, framework: Framework, is_refused: bool
) -> None:
    calls.take_calls(framework.library)
    spec = calls.Spec("allreduce", "loss", process_set=7 if is_refused else 0).encode()
    files = ("graphs/calls.py", "graphs/library.py")
    for number, interruption in enumerate(at_every_call(interrupt, files)):
        framework.told.clear()
        interruption.run(lambda: framework.call(spec))
        assert len(framework.told) == 1, number


@pytest.mark.parametrize("has_handle", [False, True])
@pytest.mark.parametrize("error", [KeyboardInterrupt, TimeoutError])
def test_a_call_that_is_interrupted_while_its_collective_is_under_way_ends_the_session_before_it_fails(
    session: Any, framework: Framework, monkeypatch: pytest.MonkeyPatch, has_handle: bool, error: type[BaseException]
) -> None:
    """The engine writes to the outputs, which the framework frees when it is told."""
    said: list[tuple[str, list[Any]]] = []

    class UnderWay:
        def done(self) -> bool:
            return False

        def when_done(self, _: Any) -> None:
            raise error

    def begins(*_: Any) -> Any:
        if not has_handle:
            raise error
        return UnderWay(), lambda _: None

    monkeypatch.setattr(type(session), "await_lane", lambda s: said.append((s.end.reason, list(framework.told))))
    monkeypatch.setattr(type(session.topology), "size", 2)
    monkeypatch.setitem(calls._BEGIN, "allreduce", begins)
    calls.take_calls(framework.library)
    framework.call(calls.Spec("allreduce", "loss").encode())
    [(reason, told)] = said
    assert f"allreduce 'loss' of a compiled graph was interrupted: {error.__name__}" in reason
    assert told == []
    assert len(framework.told) == 1
