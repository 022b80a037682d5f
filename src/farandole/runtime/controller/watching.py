"""Live views of a job: messages from its controller to the viewers, and the orders of viewers.

    watching = Watching(router.send, tell_ranks, time.time)
    watching.handle_viewer_message(identity, WatchJob(...))  # a viewer connected: workers send metrics from now on
    watching.formed(1, ["a", "a"])
    watching.metrics(0, Metrics(...))               # forwarded to every viewer

A slow viewer misses messages, and receives their number: no queue grows while it is stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias, final

from farandole.control.message import Message
from farandole.control.messages import encode
from farandole.control.watch_messages import (
    AT_ONCE,
    EXPECTED_S,
    Acted,
    Announced,
    CellOver,
    Ended,
    Members,
    Metrics,
    Missed,
    OrderNews,
    Prepared,
    RankMetrics,
    Seen,
    SendMetrics,
    WatchJob,
    WatchOrder,
)
from farandole.runtime.coordination.downlink import Send
from farandole.runtime.coordination.rank_set import RankSet
from farandole.runtime.coordination.step_orders import StepOrders

Obey: TypeAlias = Callable[[WatchOrder], tuple[bool, str]]
"""Obeys an order that needs no step; returns whether it is accepted, and a text for the user."""

LONGEST_WINDOW_BYTES, BACKLOG_BYTES = 2**26, 2**23


MOST_WATCHERS = 16


@final
class _Watcher:
    def __init__(self, window_bytes: int, every_s: float) -> None:
        self.window_bytes, self.every_s = window_bytes, every_s
        self.unseen_bytes = self.missed = 0


@final
class Watching:
    """Viewers of one job; one thread. ``tell`` sends a message to ranks; ``clock`` is wall-clock time."""

    def __init__(self, send: Send, tell: Callable[[RankSet, Message], object], clock: Callable[[], float]) -> None:
        self.obey: Obey = lambda order: (False, f"this job knows no {order.verb}")
        """Obey an order of ``AT_ONCE``; set by the launcher or controller host that runs the job."""
        self.resizable = False
        self.in_cells = False
        """True if ranks train in notebook cells; orders end with the cell."""
        self._send, self._send_to_ranks, self._clock = send, tell, clock
        self._watchers: dict[bytes, _Watcher] = {}
        self._backlog: list[Message] | None = None
        self._backlog_bytes = 0
        self._members: Members | None = None
        self._ranks: set[int] = set()
        self._orders = StepOrders(tell, self._news)

    @property
    def is_watched(self) -> bool:
        """True if a viewer is connected or expected."""
        return bool(self._watchers) or self._backlog is not None

    def expect(self) -> None:
        """Keep messages for a viewer that will connect soon."""
        self._backlog = []

    # -- viewers ------------------------------------------------------------------------------------------------------

    def handle_viewer_message(self, identity: bytes, message: WatchJob | Seen | WatchOrder) -> None:
        """Handle a message of a viewer."""
        watcher = self._watchers.get(identity)
        if isinstance(message, WatchJob):
            if watcher is None and len(self._watchers) < MOST_WATCHERS:
                self._watchers[identity] = _Watcher(min(message.window_bytes, LONGEST_WINDOW_BYTES), message.every_s)
                backlog, self._backlog = self._backlog, None
                if backlog is None and self._members is not None:
                    backlog = [self._members]
                for kept in backlog or ():
                    self._send_to_viewer(identity, kept)
                self._request_metrics(self._ranks)
        elif watcher is None:
            return
        elif isinstance(message, Seen):
            watcher.unseen_bytes = max(0, watcher.unseen_bytes - max(0, message.nbytes))
        elif message.verb in AT_ONCE:
            accepted, text = self.obey(message)
            self._news(message.number, message.verb, "acted" if accepted else "refused", text, -1)
        else:
            self._orders.add_order(message.number, message.verb)

    def send_to_viewers(self, message: Message) -> None:
        """Send a message to all viewers."""
        for identity in tuple(self._watchers):
            self._send_to_viewer(identity, message)
        if self._backlog is not None:
            self._backlog_bytes += len(encode(message))
            self._backlog.append(message)
            if self._backlog_bytes > BACKLOG_BYTES:  # no viewer connects
                self._backlog = None

    def said(self, text: str) -> None:
        """Send a text that was printed for users to the viewers."""
        if self.is_watched:
            self.send_to_viewers(Announced(self._clock(), text))

    # -- events -------------------------------------------------------------------------------------------------------

    def formed(self, generation: int, hosts: Sequence[str]) -> None:
        """Handle the start of a generation."""
        self._ranks = set(range(len(hosts)))
        self._members = Members(self._clock(), generation, list(hosts), self.resizable)
        self.send_to_viewers(self._members)
        if self.is_watched:
            self._request_metrics(self._ranks)
        self._orders.begin(generation, self._ranks)

    def ended(self, generation: int, reason: str) -> None:
        """Handle the end of the generation."""
        self._ranks = set()
        self._orders.end("the ranks' session has ended with their cell" if self.in_cells else "")
        if self.is_watched:
            self.send_to_viewers(Ended(self._clock(), generation, reason))

    def left(self, rank: int) -> None:
        """Handle a rank that has left."""
        self._ranks.discard(rank)
        self._orders.gone(rank)

    def of_rank(self, rank: int, message: Metrics | Prepared | Acted | CellOver) -> None:
        """Handle a message of a rank."""
        if isinstance(message, Metrics):
            self.send_to_viewers(RankMetrics(message.generation, rank, message.points, message.notes, message.dropped))
        elif isinstance(message, Prepared):
            self._orders.prepared(rank, message.number, message.step, message.at_rest)
        elif isinstance(message, CellOver):
            self._orders.cell_over(rank, message.number)
        else:
            self._orders.acted(rank, message.number, message.step)

    # -- internals ----------------------------------------------------------------------------------------------------

    def _request_metrics(self, ranks: set[int]) -> None:
        """Make ranks send metrics at the shortest interval requested by a viewer, or stop."""
        if ranks and self._members is not None:
            expected_s = EXPECTED_S if self._backlog is not None else 0.0
            every_s = min((each.every_s for each in self._watchers.values()), default=expected_s)
            self._send_to_ranks(RankSet.of(sorted(ranks)), SendMetrics(self._members.generation, every_s))

    def _send_to_viewer(self, identity: bytes, message: Message) -> None:
        watcher = self._watchers[identity]
        nbytes = len(encode(message))
        if watcher.unseen_bytes + nbytes > watcher.window_bytes:
            watcher.missed += 1
            return
        missed, watcher.missed = watcher.missed, 0
        if missed:
            self._send_to_viewer(identity, Missed(missed))
        if identity in self._watchers:
            watcher.unseen_bytes += nbytes
            if not self._send(identity, message):  # disconnected
                del self._watchers[identity]
                if not self._watchers:
                    self._request_metrics(self._ranks)

    def _news(self, number: int, verb: str, state: str, text: str, step: int) -> None:
        self.send_to_viewers(OrderNews(number, verb, state, text, step, self._clock()))
