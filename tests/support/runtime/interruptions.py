"""Interruptions of a call, at each of the moments at which a signal's handler may run on top of it.

    for interruption in at_every_instruction(handler, files):       # for handlers that return
        interruption.run(call)
    for interruption in at_every_call(handler, files):              # for handlers that raise
        with contextlib.suppress(KeyboardInterrupt):
            interruption.run(call)

CPython runs handlers when a call has returned, a function begins, or a loop goes back, and nowhere else. In between, as
where a ``with`` block calls ``__exit__``, an exception would do harm that none does in life. So those that raise come
only from there: where a profiler is told of it.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Collection, Iterator
from types import FrameType
from typing import Any, TypeVar, final

import pytest

from tests.support.patience import PATIENCE_S

R = TypeVar("R")
DEADLINE_S = PATIENCE_S


@final
class Interruption:
    """Interruption of the calling thread at its ``number``-th moment in ``files`` (all: those of any)."""

    def __init__(self, number: int, handler: Callable[[], object], files: Collection[str], raises: bool) -> None:
        self._left, self._handler, self._files, self._raises = number, handler, tuple(files), raises
        self.has_come = False

    def run(self, call: Callable[[], R]) -> R:
        """Call it, and be interrupted once."""
        start = sys.setprofile if self._raises else sys.settrace
        start(self._profile if self._raises else self._trace)
        try:
            return call()
        finally:
            self._left = -1  # nothing below is the call's
            self.has_come, came = True, self.has_come
            start(None)
            self.has_come = came

    def _profile(self, frame: FrameType, event: str, _: object) -> None:
        if event in ("call", "c_return"):
            self._pass(frame)

    def _trace(self, frame: FrameType, event: str, _: object) -> Any:
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event == "opcode":
            self._pass(frame)
        return self._trace

    def _pass(self, frame: FrameType) -> None:
        code = frame.f_code
        if self.has_come or code is Interruption.run.__code__ or not code.co_filename.endswith(self._files or ""):
            return
        self._left -= 1
        if self._left < 0:
            self.has_come = True
            self._handler()


def at_every_instruction(handler: Callable[[], object], files: Collection[str] = ()) -> Iterator[Interruption]:
    """Yield interruptions until one has not come, as the call has fewer instructions. The handler returns."""
    yield from _until_it_is_over(handler, files, raises=False)


def at_every_call(handler: Callable[[], object], files: Collection[str] = ()) -> Iterator[Interruption]:
    """Yield interruptions until one has not come, as the call makes fewer calls. The handler raises."""
    yield from _until_it_is_over(handler, files, raises=True)


def _until_it_is_over(handler: Callable[[], object], files: Collection[str], raises: bool) -> Iterator[Interruption]:
    number = 0
    while True:
        interruption = Interruption(number, handler, files, raises)
        yield interruption
        if not interruption.has_come:
            assert number, "nothing was interrupted"
            return
        number += 1


def within_deadline(call: Callable[[], object], deadline_s: float = DEADLINE_S) -> None:
    """Call it in a thread of its own, and fail if it does not return: it may hang for ever."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            call()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(deadline_s)
    if thread.is_alive():
        pytest.fail(f"{call} hangs")
    if errors:
        raise errors[0]
