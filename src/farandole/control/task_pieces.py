"""Functions and results of ``farandole.run`` in pieces: at most one piece per worker is in flight, whatever the size.

payload = fetch(dealer, worker_id, 60.0)                    # worker: get the function to call
send_result(dealer, worker_id, True, b"...", 60.0)          # worker: send its result
router.send(identity, piece_of(task, message))              # controller: answer a FetchTask
whole = results.add(identity, message)                      # controller: a TaskResult, once it is complete
"""

from __future__ import annotations

from typing import final

from farandole.control.channel import Dealer
from farandole.control.task_messages import FetchTask, TaskPayload, TaskResult
from farandole.errors import ControlError

PIECE_BYTES = 8 * 2**20


def piece_of(task: bytes, asked: FetchTask) -> TaskPayload:
    """Piece of the function that a worker requests."""
    end = asked.begin + PIECE_BYTES
    return TaskPayload(task[asked.begin : end], max(0, len(task) - end))


def fetch(dealer: Dealer, worker_id: int, timeout_s: float, first_s: float | None = None) -> bytes:
    """Fetch the function, each piece within ``timeout_s``, the first within ``first_s`` (``None``: no limit).

    Raises ``ControlError`` if another message arrives, or none.
    """
    pieces, begin, left_s = list[bytes](), 0, first_s
    while True:
        dealer.send(FetchTask(worker_id, begin))
        answer = dealer.recv(left_s)
        if not isinstance(answer, TaskPayload):
            within = "" if left_s is None else f" within {left_s:g} s"
            raise ControlError(f"the launcher sent no function{within}, but {answer!r}")
        pieces.append(answer.payload)
        begin, left_s = begin + len(answer.payload), timeout_s
        if not answer.left:
            return b"".join(pieces)


def send_result(dealer: Dealer, worker_id: int, ok: bool, payload: bytes, timeout_s: float) -> None:
    """Send a result and return when it is received; raises ``ControlError`` if a piece takes over ``timeout_s``."""
    for begin in range(0, max(1, len(payload)), PIECE_BYTES):
        piece = payload[begin : begin + PIECE_BYTES]
        dealer.send(TaskResult(worker_id, ok, piece, len(payload) - begin - len(piece)))
        dealer.flush(timeout_s)


@final
class ResultPieces:
    """Incomplete results, by the connection that sends them."""

    def __init__(self) -> None:
        self._coming: dict[bytes, list[bytes]] = {}

    def add(self, identity: bytes, message: TaskResult) -> TaskResult | None:
        """Add a piece; returns the complete result with the last piece."""
        pieces = self._coming.setdefault(identity, [])
        pieces.append(message.payload)
        if message.left:
            return None
        del self._coming[identity]
        return TaskResult(message.worker_id, message.ok, b"".join(pieces))
