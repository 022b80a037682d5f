"""Event loop of a static job, whose workers all start at the beginning; ``exit_policy`` decides what an exit means.

In a job on several hosts no worker starts before every agent has connected: if one host cannot take part, no host has
started a worker.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, final

from farandole.control.agent_messages import AgentHello, Started, StartWorkers
from farandole.control.exits import WorkerExited
from farandole.launch.agents.output import Receipts
from farandole.launch.hosts.places import with_places
from farandole.launch.hosts.plan import Job
from farandole.launch.job.exit_policy import ExitAction, ExitPolicy
from farandole.launch.job.loop import GIVE_UP_S, AnyAgents, JobResult, Loop, ended_by

if TYPE_CHECKING:
    from farandole.runtime.controller.root import Root


@final
class StaticLoop(Loop):
    """Loop that carries out the actions of an ``ExitPolicy``."""

    def __init__(self, job: Job, agents: AnyAgents, root: Root, interrupts: int) -> None:
        super().__init__(job, agents, root, interrupts)
        self._policy = ExitPolicy(job.size, job.settings.on_failure, self._wording)
        self._open = set(job.hosts)
        self._coming = set(job.hosts)
        self._starts: Mapping[str, StartWorkers] = {}
        """Orders to send once all agents have connected, by host."""
        self._ports: dict[str, tuple[int, ...]] = {}
        """Free ports of each host."""
        self._await_until: float | None = None
        """Deadline for the exits of ranks that left the job before a failure and may be its cause."""

    def start_later(self, starts: Mapping[str, StartWorkers]) -> None:
        """Start the workers after the agents on all these hosts have connected; the agents forward their output."""
        self._starts = starts
        until_s = time.monotonic() + self._job.settings.start_timeout_s
        for host in starts:
            self._root.hosts.expect(host, until_s)
        self._write_to(Receipts.own())

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        if self._receipts is not None:
            self._receipts.close(GIVE_UP_S)

    @property
    def _living(self) -> Collection[int]:
        return self._policy.living.keys()

    @property
    def _deadline_s(self) -> float | None:
        return self._await_until

    def _on_turn(self, now: float) -> None:
        super()._on_turn(now)
        if self._await_until is not None and now >= self._await_until:
            self._act(ExitAction.STOP)

    def _outcome(self) -> JobResult:
        policy = self._policy
        if self._signals:
            return ended_by(self._signals[0], policy.cause)
        return JobResult(policy.status, policy.last_words(), policy.cause)

    # -- agents -------------------------------------------------------------------------------------------------------

    def _on_hello(self, host: str, hello: AgentHello) -> None:
        super()._on_hello(host, hello)
        self._ports[host] = hello.ports
        if not self._coming:  # the last agent: no worker runs on any host yet
            for each, start in self._starts.items():
                self._root.send_to_agent(
                    each, with_places(start, self._job.hosts, self._job.settings, self._ports, os.environ)
                )
            self._starts = {}

    def _on_started(self, host: str, started: Started) -> None:
        super()._on_started(host, started)
        if started.worker_id in self._policy.living:
            self._policy.living[started.worker_id] = started.pid

    def _runs_nothing(self, host: str) -> bool:
        return host in self._coming and (self._give_up_at is not None or bool(self._starts))

    def _close(self, host: str) -> None:
        super()._close(host)
        if not self._open:
            self._finish()

    # -- ends ---------------------------------------------------------------------------------------------------------

    def _on_worker_exited(self, event: WorkerExited) -> None:
        self._controller.worker_exited(event)
        self._act(self._policy.exited(event, self._controller.left()))

    def _on_host_lost(self, host: str, reason: str, status: int = 1) -> None:
        lost = {worker_id: pid for worker_id, pid in self._policy.living.items() if self._job.hosts[worker_id] == host}
        action = self._policy.host_lost(lost, reason, status)
        for worker_id, pid in lost.items():
            self._controller.worker_exited(WorkerExited(worker_id, -signal.SIGKILL, reason, host, pid))
        self._act(action)

    def _act(self, action: ExitAction) -> None:
        if action is ExitAction.AWAIT:
            self._await_until = self._await_until or time.monotonic() + self._job.settings.grace_s
        elif action is ExitAction.STOP:
            self._stop(self._job.settings.grace_s)

    def _stop(self, grace_s: float) -> None:
        self._await_until, self._policy.is_stopped = None, True
        super()._stop(grace_s)
