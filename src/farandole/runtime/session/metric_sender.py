"""Sender of a rank's metrics to the controller: one message for all metrics emitted in a fifth of a second.

    sender = MetricSender(send, generation=1)
    sender.every(0.2)                   # a live view is open
    sender.every(0.0)                   # no live view is open
    sender.close()

Threads. Training threads emit, and only append to ``_points`` and ``_notes``, whose appends and pops are atomic. The
sender's thread, which exists while a live view is open, makes messages of them. The control thread calls ``every``, and
the thread that ends the session ``close`` and ``flush``, also a signal handler on top of either: ``_lock`` serializes
them, and is reentrant for the handler. So is ``_sending``, which keeps messages in the order of their contents.
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
"""Time that ``close`` waits for the last message."""

SHORTEST_S = 0.2
"""Shortest interval of messages: a worker sends at most five per second, whatever a live view requests."""

MOST_POINTS = 4096
"""Most points per message; further points are counted and dropped."""


@final
class MetricSender:
    """Sender of one session."""

    def __init__(self, send: Callable[[Message], object], generation: int) -> None:
        self._send, self._generation = send, generation
        self._lock = threading.RLock()
        self._turn: _Turn | None = None
        self._closed = False

    def every(self, seconds: float) -> None:
        """Send metrics at this interval from now on; 0: stop."""
        with self._lock:
            if seconds > 0 and not self._closed and self._turn is None:
                self._turn = _Turn(self._send, self._generation, max(seconds, SHORTEST_S))
            elif seconds <= 0:
                self._end()

    def flush(self) -> None:
        """Send the remaining metrics now."""
        with self._lock:
            if self._turn is not None:
                self._turn.flush()

    def close(self) -> None:
        """Send the remaining metrics, and stop. Idempotent."""
        with self._lock:
            self._closed = True
            self._end()

    def _end(self) -> None:
        turn, self._turn = self._turn, None  # first: a handler on top of ``join`` must not join, too
        if turn is not None:
            turn.close()


@final
class _Turn:
    """Period in which a live view is open."""

    def __init__(self, send: Callable[[Message], object], generation: int, every_s: float) -> None:
        self._send, self._generation, self._every_s = send, generation, every_s
        self._points: deque[events.Metric] = deque()
        self._notes: deque[events.Recovery] = deque()
        self._dropped = 0
        self._closing, self._sending = ReentrantEvent(), threading.RLock()
        self._cancel = events.listen(self._collect_event)
        # A daemon: the interpreter joins other threads before ``atexit``, which may call ``close``.
        self._thread = threading.Thread(target=self._send_until_closed, name="farandole-metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._cancel()  # before ``_closing``, so that the last send includes all events
        self._closing.set()
        if self._thread is not threading.current_thread():
            # With a timeout: a handler may run on top of a frame that holds the lock which the last message needs.
            self._thread.join(LAST_S)

    def _collect_event(self, event: events.Event) -> None:
        if isinstance(event, events.Metric):
            if len(self._points) < MOST_POINTS:
                self._points.append(event)
            else:
                self._dropped += 1  # several threads: a count may get lost, but it is never 0 then
        elif isinstance(event, events.Recovery):
            self._notes.append(event)

    def _send_until_closed(self) -> None:
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
    """Pop the current items of a queue: not later ones, nor items that a signal handler pops meanwhile."""
    with contextlib.suppress(IndexError):
        for _ in range(len(those)):
            yield those.popleft()
