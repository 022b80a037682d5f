"""Event loop of the controller of an elastic job: the membership decides which workers and hosts join and leave.

An agent starts when its host is first needed, and again when a lost host has returned. Agents run until the job ends,
with workers or without. They also outlive a controller that fails: the next one learns from them what happened to the
workers meanwhile.
"""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, final

import msgspec

from farandole.cluster.environment import WORKER_ID, variables_for
from farandole.control.addresses import is_own
from farandole.control.agent_messages import AgentHello, KillWorker, Leaving, StopWorkers, WorkerSpec
from farandole.control.exits import GenerationEnded, HostLost, WorkerExited
from farandole.control.watch_messages import WatchOrder
from farandole.elastic.membership import actions
from farandole.elastic.membership.job_events import ControllerReplaced, HostsFound
from farandole.elastic.membership.workers import Worker, WorkerPhase
from farandole.launch.agents.output import Receipts
from farandole.launch.hosts.elastic_job import ElasticJob
from farandole.launch.hosts.leased_hosts import is_lent
from farandole.launch.hosts.plan import Host, by_own_name, start_workers, variables_elsewhere, variables_for_all, within
from farandole.launch.job.elastic_agents import ElasticAgents
from farandole.launch.job.loop import JobResult, Loop, ended_by
from farandole.topology import Topology

if TYPE_CHECKING:
    from farandole.elastic.membership.formation import ElasticFormation
    from farandole.runtime.controller.root import Root

MOST_WORDS = 3
"""Number of last failures that the description of a failed job contains."""

UNTIL_KILLED_S = 86400.0
"""Grace for workers that a scheduler told to end: the scheduler itself kills those that take too long."""

LONGEST_WORDS = 2**15
"""Limit in characters for the description of a failed job, which contains output of workers."""

SAID = (actions.AbortGeneration, actions.Announce, actions.Kill, actions.Form, actions.RefuseWorkers)
"""Actions printed for the user, from the first generation on; all others only with ``--verbose``."""


@final
@dataclass
class Handover:
    """State of a job that its controllers share: if one fails, the next one continues with it.

    ``decided``: the result of the job, once a controller has decided to end it; workers have ``grace_s`` then.
    ``is_stopped``: a user ordered the end. ``gone``: leased hosts that were given up and are no longer used.
    ``signals``: signals received that end the job. ``unpassed``: signals for workers that some agents have not received
    yet. ``output``: the writer of the job's output.
    """

    output: Receipts
    decided: JobResult | None = None
    grace_s: float = 0.0
    is_stopped: bool = False
    gone: list[str] = field(default_factory=list)
    signals: list[int] = field(default_factory=list)
    unpassed: list[int] = field(default_factory=list)

    @property
    def result(self) -> JobResult | None:
        """The result of the job, if its end is decided. A signal decides, unless a user has ordered the end before."""
        return ended_by(self.signals[0]) if self.signals and not self.is_stopped else self.decided


class ElasticLoop(Loop):
    """Carries out the actions of ``formation``; ``handover`` is what earlier controllers left.

    A job that takes leases has a ``LeasedLoop``.
    """

    TITLE = "worker"
    WHOLE = "the job"
    """Words for the agents that are not leased."""

    _found: tuple[Host, ...] = ()
    _most = 0
    """Number of workers ordered in the live view; 0: as many as there are slots."""

    def __init__(
        self,
        elastic: ElasticJob,
        agents: ElasticAgents,
        root: Root,
        interrupts: int,
        handover: Handover,
        formation: ElasticFormation,
        secret: str,
    ) -> None:
        super().__init__(elastic.job, agents, root, interrupts)
        self._elastic, self._formation, self._secret = elastic, formation, secret
        self._far, self._handover, self._said = agents, handover, ""
        self._inherited: set[str] = set()
        """Hosts whose agents had another controller or connection before, and have not yet reported their workers."""
        self._discovery = elastic.discovery
        self._discovery.say = self._print_text
        self._formation.on_decision = self._note
        self._formation.on_generation_ended = self._on_generation_ended
        is_foreign = elastic.starter.is_foreign
        self._shared = variables_elsewhere(elastic.job) if is_foreign else variables_for_all(elastic.job, os.environ)
        self._told: set[str] = set()
        """Hosts other than leased ones whose agents were told to end (SIGTERM) and are not replaced yet."""
        self._failures: list[WorkerExited] = []
        self._passing: list[tuple[int, set[str]]] = []
        """Signals for workers, each with the hosts whose agents have not connected since."""
        self._result, self._signals = JobResult(0, ""), handover.signals
        self._write_to(handover.output)

    def take_over(self) -> None:
        """Continue a job as its next controller, from the membership, the agents and what was handed over."""
        decided = None if self._formation.orders else self._handover.decided  # else its order to finish is repeated
        self._formation.report_event(ControllerReplaced())
        until_s = time.monotonic() + self._reconnect_s
        counts = Counter(worker.slot.host for worker in self._workers.values())
        if counts:
            self._discovery.inherit()
        names = self._known_agents(counts)
        self._inherited = {host for agent in self._far for host in agent.hosts}
        self._open |= self._inherited
        self._coming |= self._inherited
        for host, name in names.items():
            self._root.adopt(host, name, until_s if host in self._inherited else None)
        for host in counts:
            if host not in self._inherited:
                self._on_host_lost(host, f"the agent of {host} {self._why_gone(host)}")
        self._passing = [(number, set(self._inherited)) for number in self._handover.unpassed]
        self._confirm()
        self._repeat_end(decided)

    def _repeat_end(self, decided: JobResult | None) -> None:
        """Repeat what the previous controllers have decided, and what users have ordered."""
        if decided is not None:
            self._print_text(f"{'farandole stop: ' * self._handover.is_stopped}ending {len(self._workers)} workers")
            self._end(decided, self._handover.grace_s)
        if self._signals:  # afterwards: a signal may leave workers less time
            self._obey_signals()

    @property
    def _reconnect_s(self) -> float:
        """Time for agents of the previous controller to connect."""
        return self._job.settings.start_timeout_s

    def _known_agents(self, counts: Mapping[str, int]) -> Mapping[str, str]:
        """Names of the agents by host, whose workers are counted by host."""
        return self._far.names

    def _why_gone(self, host: str) -> str:
        """Description of an agent that the previous controller had, and that has exited."""
        return "ended while no controller was there"

    @property
    def _workers(self) -> Mapping[int, Worker]:
        """Workers from the decision to start each until its end is known, by ``worker_id``."""
        return self._formation.membership.workers

    @property
    def _living(self) -> Collection[int]:
        return self._workers.keys()

    # -- descriptors and deadlines ------------------------------------------------------------------------------------

    @property
    def _deadline_s(self) -> float | None:
        return self._discovery.deadline_s if self._orders is None else None

    @property
    def _fds(self) -> set[int]:
        return super()._fds | set(self._discovery.fds if self._orders is None else ())

    def _pass_on(self, number: int, hosts: Collection[str]) -> list[str]:
        self._handover.unpassed.append(number)  # first: if this controller fails now, the next one passes it on
        have_workers = set(hosts) - (self._coming - self._inherited)
        self._passing.append((number, set(super()._pass_on(number, have_workers))))
        self._confirm()
        return []

    def _confirm(self, host: str = "") -> None:
        """Forget signals that all agents have received; ``host`` has received its signals, or is closed."""
        for _, hosts in self._passing:
            hosts.discard(host)
        self._passing = [each for each in self._passing if each[1]]
        self._handover.unpassed = [number for number, _ in self._passing]

    def _on_turn(self, now: float) -> None:
        super()._on_turn(now)
        self._far.drop_exited()
        self._look(now)
        orders = []
        while self._formation.orders:
            orders.append(self._formation.orders.popleft())
        if self._orders is not None:
            return  # the job ends: no worker that exits now is replaced
        for order in orders:
            self._obey(order)

    def _look(self, now: float) -> None:
        if self._orders is None and (hosts := self._discovery.look(now)) is not None:
            self._find(hosts)

    def _find(self, hosts: tuple[Host, ...]) -> None:
        self._found = hosts
        named = by_own_name(hosts, self._elastic.here, is_own) if self._elastic.here else hosts
        own = within(named, self._most)
        self._formation.report_event(HostsFound({host.name: host.slots for host in own}))

    def _obey_watcher(self, order: WatchOrder) -> tuple[bool, str]:
        if order.verb != "scale":
            return super()._obey_watcher(order)
        settings = self._job.settings
        fewest, most = max(1, settings.min_np), settings.max_np or sum(host.slots for host in self._found)
        if not fewest <= order.workers <= most:
            return False, f"this job has {fewest} to {most} workers"
        self._most = order.workers
        self._find(self._found)
        return (
            True,
            f"{order.workers} worker{'s' * (order.workers != 1)} from the next commit on, as far as there are slots",
        )

    def _outcome(self) -> JobResult:
        return self._result

    # -- actions ------------------------------------------------------------------------------------------------------

    def _note(self, decision: actions.Decision) -> None:
        if self._orders is not None:
            return  # no longer obeyed
        action = decision.action
        is_first = isinstance(action, actions.Form) and action.generation == 1
        if self._job.verbose or (isinstance(action, SAID) and not is_first):
            self._say_once(decision.reason)

    def _on_generation_ended(self, event: GenerationEnded) -> None:
        self._say_once(event.reason)

    def _say_once(self, text: str) -> None:
        """Print ``text``, unless it was printed last: one cause often has several consequences."""
        if text != self._said:
            self._print_text(text)
            self._said = text

    def _obey(self, decision: actions.Decision) -> None:
        action = decision.action
        if self._orders is not None:
            return
        if isinstance(action, actions.Start):
            self._start(action)
        elif isinstance(action, actions.Kill):
            if worker := self._workers.get(action.worker_id):
                self._root.send_to_agent(worker.slot.host, KillWorker(action.worker_id))
        elif isinstance(action, actions.Finish):
            words = self._words(decision.reason) if action.status else ""
            self._end(self._handover.decided or JobResult(action.status, words), self._job.settings.grace_s)

    def _end(self, result: JobResult, grace_s: float) -> None:
        """End the job with ``result``, which the next controller keeps, if this one fails meanwhile."""
        self._result = self._handover.decided = result
        self._handover.grace_s = grace_s
        self._stop(grace_s)

    def _start(self, start: actions.Start) -> None:
        if start.worker_id not in self._workers:
            return  # its host was lost since
        if start.host not in self._open:
            self._send_for(start.host)
        elif start.host not in self._coming:
            self._tell_to_start(start.host, [self._spec(start)])

    def _send_for(self, host: str) -> None:
        """Start an agent on ``host``."""
        self._far.add(host, self._root.name(host, time.monotonic() + self._job.settings.start_timeout_s))
        self._open.add(host)
        self._coming.add(host)
        self._note_end(self._far.of(host))  # if it could not be started

    def _spec(self, start: actions.Start) -> WorkerSpec:
        """Spec of a worker, with the rank and size it has if no worker joins or leaves before it calls ``init``."""
        worker_ids = sorted(self._workers)
        hosts = tuple(self._workers[worker_id].slot.host for worker_id in worker_ids)
        topology = Topology.of(worker_ids.index(start.worker_id), hosts, 0)
        slots = self._formation.membership.slots.get(start.host, topology.local_size)
        topology = msgspec.structs.replace(topology, local_rank=start.slot, local_size=slots)
        own = {WORKER_ID: str(start.worker_id), "HOROVOD_ELASTIC": "1"}
        told = variables_for(topology, "", self._secret)
        variables = {**self._shared, **told, **own, **self._variables_on(start.host)}
        return WorkerSpec(start.worker_id, self._job.command, variables)

    def _variables_on(self, host: str) -> Mapping[str, str]:
        """Variables of the workers on a host, beside those of all workers."""
        return {}

    def _tell_to_start(self, host: str, specs: list[WorkerSpec]) -> None:
        size = max(self._job.settings.max_np, self._job.settings.min_np, len(self._workers))
        self._root.send_to_agent(host, start_workers(self._job, specs, size, inherits=self._far.of(host).inherits))

    # -- agents -------------------------------------------------------------------------------------------------------

    def _on_agent(self, host: str, message: object) -> None:
        if isinstance(message, AgentHello) and host not in self._open:
            self._on_unknown(host, message)
        elif isinstance(message, AgentHello) and host not in self._coming:  # it reconnects; messages were lost
            self._inherited.add(host)
        if isinstance(message, Leaving) and host in self._open:
            self._on_leaving(host)
        super()._on_agent(host, message)

    def _on_unknown(self, host: str, hello: AgentHello) -> None:
        """Handle an agent that offers a lease, or that lost its connection and was given up."""
        if hello.lent is not None and self._orders is None:
            self._refuse(host, "this job takes no leases: it has no --run-folder")
        else:
            self._root.send_to_agent(host, StopWorkers(0.0))

    def _refuse(self, host: str, why: str) -> None:
        """Refuse the lease of a host."""
        self._say_once(f"refused: {why}")
        self._root.send_to_agent(host, StopWorkers(0.0))
        self._root.hosts.ended(host)

    def _on_leaving(self, host: str) -> None:
        """End the whole job once a scheduler has told the agents of all hosts to end, except those of leases."""
        self._told.add(host)
        if self._orders is None and self._told >= {each for each in self._open if not is_lent(each)}:
            # Now: the last worker may exit before the first agent, and its exit would be reported as the cause.
            self._print_text(f"{self.WHOLE} is told to end (SIGTERM): all workers leave at their next commit")
            words = f"{self.WHOLE} was told to end, and all workers have left"
            self._end(JobResult(128 + signal.SIGTERM, words), UNTIL_KILLED_S)

    def _on_hello(self, host: str, hello: AgentHello) -> None:
        super()._on_hello(host, hello)
        running: set[int] = set()
        if host in self._inherited:
            self._inherited.discard(host)
            running = self._compare(host, hello)
            for number, hosts in self._passing:
                if host in hosts:
                    super()._pass_on(number, [host])
            self._confirm(host)
        else:
            self._told.discard(host)  # a new agent, not the one that was told to end
        self._start_missing(host, running)

    def _compare(self, host: str, hello: AgentHello) -> set[int]:
        """Learn from an agent what happened to the workers and the orders of the previous controller."""
        for ended in hello.ended:
            self._on_exit(host, ended)
        for started in hello.running:
            if started.worker_id in self._workers:
                self._on_agent(host, started)
        return {started.worker_id for started in hello.running}

    def _start_missing(self, host: str, running: Collection[int]) -> None:
        """Compare the workers of ``host`` with those ``running`` there: start, kill, or report them as exited."""
        later = {each.action.worker_id for each in self._formation.orders if isinstance(each.action, actions.Start)}
        specs = []
        for worker_id, worker in list(self._workers.items()):
            if worker.slot.host != host or worker_id in later:
                continue
            if worker_id in running:
                if worker.phase is WorkerPhase.DOOMED:
                    self._root.send_to_agent(host, KillWorker(worker_id))
            elif worker.phase is WorkerPhase.STARTING:
                specs.append(self._spec(actions.Start(worker_id, host, worker.slot.index)))
            else:  # its exit was not reported, or it was never started: no failure to print at the end
                unseen = WorkerExited(worker_id, -signal.SIGKILL, error="it ended unseen, or never started")
                self._controller.worker_exited(self._wording.describe(unseen, host))
        if specs:
            self._tell_to_start(host, specs)

    def _on_worker_exited(self, event: WorkerExited) -> None:
        if event.worker_id not in self._workers:
            return  # already reported to the previous controller
        if event.code:
            self._failures = [*self._failures[1 - MOST_WORDS :], event]
        self._controller.worker_exited(event)

    def _on_goodbye(self, host: str) -> None:
        if self._orders is None:
            self._lose(host, f"the agent on {host} was told to end (SIGTERM)")
        else:
            self._close(host)

    def _runs_nothing(self, host: str) -> bool:
        return host in self._coming - self._inherited

    def _on_host_lost(self, host: str, reason: str, status: int = 1) -> None:
        if self._orders is None:
            self._say_once(reason)
            self._discovery.hurry()
            self._formation.report_event(HostLost(host, reason))

    def _close(self, host: str) -> None:
        super()._close(host)
        self._confirm(host)
        if self._orders is not None and not self._open:
            self._finish()

    # -- the end ------------------------------------------------------------------------------------------------------

    def _obey_signals(self) -> None:
        self._result = self._handover.result or self._result
        super()._obey_signals()

    def _stop(self, grace_s: float) -> None:
        super()._stop(grace_s)
        if not self._open:
            self._finish()

    def _words(self, reason: str) -> str:
        """The reason why the job ended, with the last output of the workers that failed last."""
        return "\n".join([reason, *self._wording.account(*reversed(self._failures))])[:LONGEST_WORDS]
