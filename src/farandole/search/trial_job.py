"""Elastic job of a running trial, whose workers are taken from the pool and returned to it.

    job = TrialJob(order=3, number=17, send=router.send, settings=Settings(min_np=1))
    job.resize({"a": 2})                                    # slots by host
    job.tick(now)
    for start in job.starts(): ...                          # order a free worker of that host to join
    job.handle_session_message(identity, message)           # a message of a worker's session
    job.left(worker_id)                                     # its function has returned, or it was dismissed
    job.died(worker_id, -9, "worker 5 of trial 17 was killed by SIGKILL")

All trials of a search share one socket, and each job has its own range of worker ids. A trial can do everything that an
elastic job can: workers join and leave at a commit, and the other workers go on when a worker dies.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from functools import partial
from typing import Any, final

import msgspec

from farandole import events
from farandole.control.exits import WorkerExited
from farandole.control.messages import ChangeDue, Hello, Refuse
from farandole.elastic.membership import actions
from farandole.elastic.membership.formation import ElasticFormation
from farandole.elastic.membership.job_events import HostsFound
from farandole.elastic.membership.membership import Membership
from farandole.elastic.membership.policy import Policy
from farandole.engines.choose import choose
from farandole.runtime.controller.controller import Controller
from farandole.runtime.coordination.downlink import CONTROL, Send
from farandole.runtime.session.init_arguments import ANY
from farandole.settings import FOREVER_S, Settings

RANGE = 2**20
"""Number of worker ids of a job, more than any job starts."""

WINDOW_S = 0.2
"""Changes of the membership within this time become one change, so that all new workers of a trial join together."""


def job_of(worker_id: int) -> int:
    """Index of the job that a worker id belongs to."""
    return worker_id // RANGE


@final
class TrialJob:
    """One run of trial ``number``, from its start, or from where it was paused, to the next pause or its end.

    ``index``: number of this job in the search. ``failure``: why the job ended without a result. ``value``: what its
    function has returned.
    """

    def __init__(self, index: int, number: int, send: Send, settings: Settings) -> None:
        self.index, self.number, self.failure = index, number, ""
        self.value: float | None = None
        self.is_over, self.has_ended = False, False
        """``is_over``: it needs no more workers. ``has_ended``: its function has returned or was ended by a verdict."""
        self.slots: dict[str, int] = {}
        """Intended number of workers by host."""
        self.is_held = False
        """True if a user has paused the trial, which leaves its workers by a verdict."""
        self.is_excused = False
        """True if workers ended on a host that a scheduler takes back: then the loss of all workers does not count."""
        self.stopping = ""
        """Reason why it must leave at the next commit; else empty."""
        self._send = send
        # A process that has started and has not called init() yet may be loading its data for hours.
        policy = msgspec.structs.replace(
            Policy.of(settings), start_timeout_s=FOREVER_S, cooldown_range_s=(0.0, 1.0), window_s=WINDOW_S
        )
        self._membership = Membership(policy, index * RANGE)
        engine = partial(choose, settings.engine, across=settings.across)
        self.formation = ElasticFormation(self._membership, engine, time.monotonic)
        self.controller = Controller(send, settings, ANY, time.monotonic, self.formation)
        self.controller.watchdog.report = lambda text: events.logger.warning("trial %d: %s", number, text)
        self._uids: dict[int, bytes] = {}

    @property
    def deadline_s(self) -> float:
        """Time at which ``tick`` is due."""
        moment = self.controller.deadline()
        return math.inf if moment is None or self.is_over else moment

    @property
    def size(self) -> int:
        """Intended number of workers."""
        return sum(self.slots.values())

    @property
    def workers(self) -> set[int]:
        """Ids of the workers that have not left."""
        return set(self._membership.workers)

    def resize(self, slots: Mapping[str, int]) -> None:
        """Set the number of workers on each host; a job that trains changes at its next commit."""
        self.slots = dict(slots)
        self.formation.report_event(HostsFound(dict(slots)))

    def handle_session_message(self, identity: bytes, message: Any) -> None:
        """Handle a message of a session of this job."""
        if isinstance(message, Hello):
            self._uids[message.worker_id] = identity[:-1]
            if self.stopping or self.failure or self.is_over:
                self._dismiss(message.worker_id)
                return
        self.controller.handle(identity, message)

    def tick(self, now: float) -> list[actions.Decision]:
        """Do what is due; returns the decisions to start and to kill workers."""
        if self.deadline_s <= now:
            self.controller.tick(now)
        orders = []
        while self.formation.orders:
            decision = self.formation.orders.popleft()
            if isinstance(decision.action, actions.Finish):
                self._finish(decision)
            else:
                orders.append(decision)
        return orders

    def left(self, worker_id: int) -> None:
        """Record that a worker has left in good order: it ran the function to its end, or was dismissed."""
        if worker_id in self._membership.workers:
            self.controller.worker_exited(WorkerExited(worker_id, 0, f"worker {worker_id % RANGE} has left"))

    def died(self, worker_id: int, code: int, words: str, pid: int = -1) -> None:
        """Record that a worker's process has exited or cannot go on; the other workers go on, if there are any."""
        self.controller.worker_exited(WorkerExited(worker_id, code, words, pid=pid))

    def stop(self, reason: str) -> None:
        """Make all workers leave at their next commit."""
        self.stopping = self.stopping or reason
        for worker_id in self._membership.members:
            if worker_id in self._uids:
                due = ChangeDue(self._membership.generation, f"trial {self.number}: {reason}")
                self._send(self._uids[worker_id] + CONTROL, due)

    def fail(self, reason: str) -> None:
        """End the trial for all of its workers at once."""
        self.failure = self.failure or reason
        self.controller.abort(reason)

    def _finish(self, decision: actions.Decision) -> None:
        action = decision.action
        assert isinstance(action, actions.Finish)
        self.is_over = True
        if action.status and not self.has_ended and not self.failure and not self.stopping:
            self.failure = decision.reason
        for worker_id in self.workers:  # workers about to join; the membership makes no more decisions
            self._dismiss(worker_id)

    def _dismiss(self, worker_id: int) -> None:
        """Dismiss a worker that waits to join, or will wait."""
        if worker_id in self._uids:
            why = self.stopping or self.failure or "it is over"
            self._send(self._uids[worker_id] + CONTROL, Refuse(f"trial {self.number}: {why}", orderly=True))
