"""Event loop of a static job, whose workers all start at the beginning; ``exit_policy`` decides what an exit means.

In a job on several hosts no worker starts before every agent has connected: if one host cannot take part, no host has
started a worker.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Protocol, final

from farandole.control.agent_messages import AgentHello, StartWorkers
from farandole.control.exits import WorkerExited
from farandole.launch.agents.agents import END_S
from farandole.launch.agents.output import Receipts
from farandole.launch.hosts.places import with_places
from farandole.launch.hosts.plan import Job
from farandole.launch.job.exit_policy import ExitAction, ExitDecision, ExitPolicy, Loss
from farandole.launch.job.loop import GIVE_UP_S, AnyAgent, JobResult, Loop

if TYPE_CHECKING:
    from farandole.runtime.controller.root import Root


class StaticAgent(AnyAgent, Protocol):
    """Agent of a static job: it is never replaced."""

    def kill(self) -> None:
        """Kill the child; its agents exit then, and the kernel kills their workers."""


class StaticAgents(Protocol):
    """The agents of a static job."""

    def __iter__(self) -> Iterator[StaticAgent]:
        """Yield all of them."""

    def of(self, host: str) -> StaticAgent:
        """The agent of ``host``."""


@final
class StaticLoop(Loop):
    """Loop that carries out the actions of an ``ExitPolicy``."""

    def __init__(self, job: Job, agents: StaticAgents, root: Root, interrupts: int) -> None:
        super().__init__(job, agents, root, interrupts)
        self._processes = agents
        self._policy = ExitPolicy(job.size, job.settings.on_failure, self._wording)
        self._open = set(job.hosts)
        self._coming = set(job.hosts)
        self._lost: set[str] = set()
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
    def _deadline_s(self) -> float | None:
        return self._await_until

    def _on_turn(self, now: float) -> None:
        super()._on_turn(now)
        if self._await_until is not None and now >= self._await_until:
            self._act(self._policy.overdue())

    def _outcome(self) -> JobResult:
        return JobResult(self._policy.status, self._policy.last_words(), self._policy.cause)

    def _on_signal(self, number: int) -> None:
        decision = self._policy.interrupted(number)
        self._say(decision.reason)
        self._act(decision)

    # -- agents -------------------------------------------------------------------------------------------------------

    def _on_worker_exited(self, event: WorkerExited) -> None:
        self._controller.worker_exited(event)
        self._act(self._policy.exited(event, self._controller.left()))

    def _on_hello(self, host: str, hello: AgentHello) -> None:
        super()._on_hello(host, hello)
        self._ports[host] = hello.ports
        if not self._coming:  # the last agent: no worker runs on any host yet
            for each, start in self._starts.items():
                self._root.tell(each, with_places(start, self._job.hosts, self._job.settings, self._ports, os.environ))
            self._starts = {}

    def _abandon(self, host: str) -> None:
        self._lost.add(host)

    def _runs_nothing(self, host: str) -> bool:
        return host in self._coming and (self._give_up_at is not None or bool(self._starts))

    def _on_host_lost(self, host: str, loss: Loss) -> None:
        worker_ids = [worker_id for worker_id, name in enumerate(self._job.hosts) if name == host]
        running = set(self._policy.running())
        decision = self._policy.host_lost(worker_ids, loss)
        for worker_id in running & set(worker_ids):
            pid = self._pids.get(worker_id, -1)
            self._controller.worker_exited(WorkerExited(worker_id, -signal.SIGKILL, loss.description, host, pid))
        self._act(decision)

    def _close(self, host: str) -> None:
        super()._close(host)
        agent = self._processes.of(host)
        # A child that serves several hosts is killed with the last of them if one was lost; otherwise it exits itself.
        if not self._open & set(agent.hosts) and self._lost & set(agent.hosts):
            agent.kill()
        if not self._open:
            self._finish()

    # -- orders -------------------------------------------------------------------------------------------------------

    def _act(self, decision: ExitDecision) -> None:
        if decision.action is ExitAction.GO_ON:
            return
        if decision.action is ExitAction.AWAIT:
            self._await_until = self._await_until or time.monotonic() + self._job.settings.grace_s
            return
        self._await_until = None
        kill = decision.action is ExitAction.KILL
        if kill:
            self._give_up_at = time.monotonic() + END_S
        self._stop(0.0 if kill else self._job.settings.grace_s)
