"""An event that a signal handler sets on top of the thread that waits for it, or sets it."""

from __future__ import annotations

import itertools
import threading
import time
from functools import partial

import pytest

from farandole.control.reentrant_event import ReentrantEvent
from farandole.runtime.session import session_end
from farandole.runtime.session.session_end import await_news
from tests.support.runtime.interruptions import DEADLINE_S, at_every_call, at_every_instruction, within_deadline

SHORT_S = 0.01

in_turn: list[ReentrantEvent] = []


def set_the_last() -> None:
    in_turn[-1].set()


def test_it_is_set_on_top_of_every_instruction_of_who_waits() -> None:
    def wait() -> None:
        for interruption in at_every_instruction(set_the_last):
            told = ReentrantEvent()
            in_turn.append(told)
            interruption.run(partial(told.wait, SHORT_S))
            assert told.wait(0.0) == told.is_set() == interruption.has_come

    within_deadline(wait)


def test_it_is_set_on_top_of_every_instruction_of_who_sets_it() -> None:
    def wait() -> None:
        for interruption in at_every_instruction(set_the_last):
            told = ReentrantEvent()
            in_turn.append(told)
            interruption.run(told.set)
            assert told.wait(DEADLINE_S)

    within_deadline(wait)


def test_who_is_interrupted_by_an_exception_leaves_it_open_for_the_others() -> None:
    def stop() -> None:
        in_turn[-1].set()
        raise KeyboardInterrupt

    def wait() -> None:
        for interruption in at_every_call(stop):
            told = ReentrantEvent()
            in_turn.append(told)
            other = threading.Thread(target=told.wait, args=(DEADLINE_S,))
            other.start()
            try:
                interruption.run(partial(told.wait, SHORT_S))
            except KeyboardInterrupt:
                assert told.wait(DEADLINE_S)
            told.set()
            other.join(DEADLINE_S / 3)
            assert not other.is_alive()

    within_deadline(wait)


def test_the_reason_of_an_abort_comes_on_top_of_the_wait_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_end, "REASON_WAIT_S", 20.0)
    monkeypatch.setattr(session_end, "ASK_AGAIN_S", SHORT_S)

    class Nobody:
        def send(self, _: object) -> None:
            raise AssertionError("nothing is blocked")

    def wait() -> None:
        files = ("session_end.py", "threading.py", "reentrant_event.py")
        for interruption in itertools.islice(at_every_instruction(set_the_last, files), 120):
            told = ReentrantEvent()
            in_turn.append(told)
            began_s = time.monotonic()
            interruption.run(partial(await_news, told, list, Nobody()))  # type: ignore[arg-type]
            assert interruption.has_come
            assert time.monotonic() < began_s + session_end.REASON_WAIT_S

    within_deadline(wait)
