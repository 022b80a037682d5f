"""Sender of a rank's metrics to the controller: what is emitted in a fifth of a second travels in one message.

    sender = MetricSender(send, generation=1)
    sender.every(0.2)                   # somebody watches
    sender.every(0.0)                   # nobody does any more
    sender.close()

Threads. Whoever trains emits, and only appends to ``_points`` and ``_notes``, whose ends are atomic. The thread of the
sender, which exists while somebody watches, makes messages of them. ``every`` comes from the control thread and
``close`` and ``flush`` from whoever ends the session, also a signal handler on top of either: ``_lock`` lets them take
turns, and is reentrant for the handler. So is ``_sending``, which keeps messages in the order of what is in them.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import TypeVar, final

from farandole import events
from farandole.control.message import Message
from farandole.control.reentrant_event import ReentrantEvent
from farandole.control.watch_messages import MetricPoint, Metrics
from farandole.errors import ControlError

T = TypeVar("T")

LAST_S = 1.0
"""How long ``close`` waits for the last message."""

SHORTEST_S = 0.2
"""Five messages a second are the most that a worker sends, whatever a watcher asks for."""

MOST_POINTS = 4096
"""Points of one message; what a script logs more often than that is counted, and dropped."""


@final
class MetricSender:
    """Sender of one session."""

    def __init__(self, send: Callable[[Message], object], generation: int) -> None:
        self._send, self._generation = send, generation
        self._lock = threading.RLock()
        self._turn: _Turn | None = None
        self._closed = False

    def every(self, seconds: float) -> None:
        """Send every so often from now on; 0: no more."""
        with self._lock:
            if seconds > 0 and not self._closed and self._turn is None:
                self._turn = _Turn(self._send, self._generation, max(seconds, SHORTEST_S))
            elif seconds <= 0:
                self._end()

    def flush(self) -> None:
        """Send now what is left."""
        with self._lock:
            if self._turn is not None:
                self._turn.flush()

    def close(self) -> None:
        """Send what is left, and nothing more. Idempotent."""
        with self._lock:
            self._closed = True
            self._end()

    def _end(self) -> None:
        turn, self._turn = self._turn, None  # first: a handler on top of ``join`` must not join as well
        if turn is not None:
            turn.close()


@final
class _Turn:
    """Time in which somebody watches."""

    def __init__(self, send: Callable[[Message], object], generation: int, every_s: float) -> None:
        self._send, self._generation, self._every_s = send, generation, every_s
        self._points: deque[events.Metric] = deque()
        self._notes: deque[events.Recovery] = deque()
        self._dropped = 0
        self._closing, self._sending = ReentrantEvent(), threading.RLock()
        self._cancel = events.listen(self._take)
        # A daemon: the interpreter joins other threads before ``atexit``, where ``close`` may come.
        self._thread = threading.Thread(target=self._run, name="farandole-metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._cancel()  # before the thread is told, so that its last look finds all that was taken in
        self._closing.set()
        if self._thread is not threading.current_thread():
            # Not for ever: a handler may be on top of a frame that has the lock which the last message needs.
            self._thread.join(LAST_S)

    def _take(self, event: events.Event) -> None:
        if isinstance(event, events.Metric):
            if len(self._points) < MOST_POINTS:
                self._points.append(event)
            else:
                self._dropped += 1  # by several threads: then one of their counts may be lost, and it is never 0
        elif isinstance(event, events.Recovery):
            self._notes.append(event)

    def _run(self) -> None:
        with contextlib.suppress(ControlError):  # the link is closed: the session has ended without ``close``
            while not self._closing.wait(self._every_s):
                self._send_all()
            self._send_all()

    def flush(self) -> None:
        with contextlib.suppress(ControlError):
            self._send_all()

    def _send_all(self) -> None:
        with self._sending:
            taken, notes = list(_emptied(self._points)), list(_emptied(self._notes))
            dropped, self._dropped = self._dropped, 0
            if not (taken or notes or dropped):
                return
            since_1970_s = time.time() - time.monotonic()
            points = [MetricPoint(each.time_s + since_1970_s, each.step, each.samples, each.values) for each in taken]
            said = [(each.time_s + since_1970_s, each.text) for each in notes]
            self._send(Metrics(self._generation, points, said, dropped))


def _emptied(those: deque[T]) -> Iterator[T]:
    """Take out what is in a queue now: not what comes meanwhile, nor what a handler on top of this takes."""
    with contextlib.suppress(IndexError):
        for _ in range(len(those)):
            yield those.popleft()
