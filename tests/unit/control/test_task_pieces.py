"""Functions and results in pieces."""

from __future__ import annotations

from typing import Any

import pytest

from farandole.control.task_messages import FetchTask, TaskPayload, TaskResult
from farandole.control.task_pieces import PIECE_BYTES, ResultPieces, fetch, piece_of, send_result
from farandole.errors import ControlError

SIZES = (0, 1, PIECE_BYTES, PIECE_BYTES + 1, 3 * PIECE_BYTES)


class Launcher:
    """The other end of the connection, which has a function, and takes results."""

    def __init__(self, task: bytes) -> None:
        self.task, self.pieces = task, ResultPieces()
        self.answer: TaskPayload | None = None
        self.results: list[TaskResult | None] = []
        self.received = 0

    def send(self, message: FetchTask | TaskResult) -> None:
        if isinstance(message, FetchTask):
            self.answer = piece_of(self.task, message)
            assert len(self.answer.payload) <= PIECE_BYTES
        else:
            assert len(message.payload) <= PIECE_BYTES
            self.results.append(self.pieces.add(b"task-1", message))

    def recv(self, _: float | None) -> TaskPayload | None:
        answer, self.answer = self.answer, None
        return answer

    def flush(self, _: float) -> None:
        self.received += 1
        assert self.received == len(self.results), "one piece is on its way"


@pytest.mark.parametrize("size", SIZES)
def test_a_function_and_its_result_come_whole(size: int) -> None:
    whole = bytes(range(256)) * (size // 256 + 1)
    launcher: Any = Launcher(whole[:size])
    assert fetch(launcher, 1, 5.0) == whole[:size]
    send_result(launcher, 1, True, whole[:size], 5.0)
    assert launcher.results[-1] == TaskResult(1, True, whole[:size])
    assert set(launcher.results[:-1]) <= {None}


def test_results_of_several_workers_come_at_once() -> None:
    pieces = ResultPieces()
    assert pieces.add(b"a", TaskResult(0, True, b"1", 1)) is None
    assert pieces.add(b"b", TaskResult(1, True, b"3", 1)) is None
    assert pieces.add(b"b", TaskResult(1, True, b"4")) == TaskResult(1, True, b"34")
    assert pieces.add(b"a", TaskResult(0, True, b"2")) == TaskResult(0, True, b"12")


def test_a_launcher_that_sends_no_function_is_told_of() -> None:
    launcher: Any = Launcher(b"task")
    launcher.recv = lambda _: None
    with pytest.raises(ControlError, match="no function within 5 s, but None"):
        fetch(launcher, 1, 5.0, 5.0)
