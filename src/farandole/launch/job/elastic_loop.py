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
from farandole.control.agent_messages import AgentHello, KillWorker, LeaseOffer, Leaving, StopWorkers, WorkerSpec
from farandole.control.exits import GenerationEnded, WorkerExited
from farandole.control.process import signal_name
from farandole.control.watch_messages import WatchOrder
from farandole.elastic.membership import actions
from farandole.elastic.membership.job_events import ControllerReplaced, HostLost, HostsFound
from farandole.elastic.membership.workers import Worker, WorkerPhase
from farandole.launch.agents.agents import END_S
from farandole.launch.agents.output import Receipts
from farandole.launch.hosts.elastic_job import ElasticJob
from farandole.launch.hosts.leased_hosts import is_lent
from farandole.launch.hosts.plan import Host, by_own_name, start_workers, variables_elsewhere, variables_for_all, within
from farandole.launch.job.elastic_agents import ElasticAgents
from farandole.launch.job.exit_policy import Loss
from farandole.launch.job.job_leases import JobLeases
from farandole.launch.job.leader_fence import LeaderFence
from farandole.launch.job.leadership import Leadership
from farandole.launch.job.loop import JobResult, Loop
from farandole.topology import Topology

if TYPE_CHECKING:
    from farandole.elastic.membership.formation import ElasticFormation
    from farandole.runtime.controller.root import Root

ADOPT_S = 10.0
"""Time for the agents of leases to find the next leader, after they noticed the loss of theirs."""

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

    ``decided``: the result of the job, once a controller has decided to end it. ``gone``: leased hosts that were given
    up and are no longer used. ``signals``: signals received that end the job. ``unpassed``: signals for workers that
    some agents have not received yet. ``output``: the writer of the job's output.
    """

    output: Receipts
    decided: JobResult | None = None
    gone: list[str] = field(default_factory=list)
    signals: list[int] = field(default_factory=list)
    unpassed: list[int] = field(default_factory=list)


@final
class ElasticLoop(Loop):
    """Carries out the actions of ``formation``; ``handover`` is what earlier controllers left."""

    TITLE = "worker"

    _found: tuple[Host, ...] = ()
    _most = 0
    """Number of workers ordered in the live view; 0: as many as there are slots."""
    _is_stopped = _adopts = False
    """``_is_stopped``: a user ordered the end. ``_adopts``: this leader adopts the workers of the previous one."""

    def __init__(
        self,
        elastic: ElasticJob,
        agents: ElasticAgents,
        root: Root,
        interrupts: int,
        handover: Handover,
        formation: ElasticFormation,
        secret: str,
        terms: Leadership | None = None,
    ) -> None:
        super().__init__(elastic.job, agents, root, interrupts)
        self._elastic, self._formation, self._secret = elastic, formation, secret
        self._far, self._handover, self._said = agents, handover, ""
        self._inherited: set[str] = set()
        """Hosts whose agents had another controller or connection before, and have not yet reported their workers."""
        self._discovery = elastic.discovery
        self._discovery.say = self._say
        self._formation.on_decision = self._note
        self._formation.on_generation_ended = self._on_generation_ended
        is_foreign = elastic.starter.is_foreign
        self._shared = variables_elsewhere(elastic.job) if is_foreign else variables_for_all(elastic.job, os.environ)
        self._leases: JobLeases | None = None
        if elastic.leases is not None and terms is not None:
            self._leases = JobLeases(elastic.leases, terms, root, formation, self._say, self._end_for_people)
        address, settings = root.router.address, self._job.settings
        self._fence = LeaderFence(terms, formation, settings, address) if terms is not None else None
        self._told: set[str] = set()
        """Hosts other than leased ones whose agents were told to end (SIGTERM) and are not replaced yet."""
        self._failures: list[WorkerExited] = []
        self._passing: list[tuple[int, set[str]]] = []
        """Signals for workers, each with the hosts whose agents have not connected since."""
        self._result = JobResult(0, "")
        self._write_to(handover.output)
        if self._leases is not None:
            self._leases.refuse(handover.gone)

    def take_over(self, *, adopts: bool = False) -> None:
        """Continue a job as its next controller, from the membership, the agents and what was handed over.

        A leader that ``adopts`` the workers of another leader has only those of its agents that run on leased hosts.
        """
        self._adopts = adopts
        is_stopped = self._handover.decided is not None and not self._formation.orders
        self._formation.tell(ControllerReplaced())
        settings = self._job.settings
        # Agents look for the next leader after the heartbeat timeout; until then workers may train without one.
        found_s = ADOPT_S + 2 * settings.host_timeout_s
        until_s = time.monotonic() + (found_s if adopts else settings.start_timeout_s)
        counts = Counter(worker.slot.host for worker in self._workers.values())
        if counts:
            self._discovery.inherit()
        # Agents of leases reconnect by themselves, unless they were given up; the launcher has no record of them.
        lent = {}
        if self._leases is not None:
            lent = {host: host for host in counts if is_lent(host) and host not in self._handover.gone}
            self._leases.take_over({host: counts[host] for host in lent})
        for host in lent:
            self._far.admit(host)
        self._inherited = {host for agent in self._far for host in agent.hosts}
        self._open |= self._inherited
        self._coming |= self._inherited
        for host, name in {**self._far.names, **lent}.items():
            self._root.adopt(host, name, until_s if host in self._inherited else None)
        for host in counts:
            if host not in self._inherited:
                when = "went with the lead before" if adopts else "ended while no controller was there"
                when = "was given up before the controller was replaced" if host in self._handover.gone else when
                self._lost(host, f"the agent of {host} {when}")
        if is_stopped:
            self._end_for_people()
        signals, self._handover.signals = self._handover.signals, []
        unpassed, self._handover.unpassed = self._handover.unpassed, []
        for number in (*signals, *unpassed):
            self._hear(number)

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        if self._leases is not None:
            self._leases.close()
        if self._fence is not None:
            self._fence.close()

    @property
    def _workers(self) -> Mapping[int, Worker]:
        """Workers from the decision to start each until its end is known, by ``worker_id``."""
        return self._formation.membership.workers

    @property
    def _busy(self) -> set[str]:
        """Hosts that have workers."""
        return {worker.slot.host for worker in self._workers.values()}

    # -- descriptors and deadlines ------------------------------------------------------------------------------------

    @property
    def _deadline_s(self) -> float | None:
        people_s = self._leases.people_due_s if self._leases is not None else None
        if self._orders is not None:
            return people_s
        now = time.monotonic()
        begins_s = self._fence.begins_s if self._fence is not None and now < self._fence.begins_s else None
        decides = self._decides_about_leases(now)
        moments = (
            people_s,
            self._discovery.deadline_s if self._may_look(now) else begins_s,
            decides.deadline_s if decides is not None else None,
            self._fence.deadline_s if self._fence is not None else None,
        )
        return min((moment for moment in moments if moment is not None), default=None)

    @property
    def _fds(self) -> set[int]:
        decides = self._decides_about_leases(time.monotonic())
        leases = decides.fds if decides is not None else ()
        fence = {self._fence.fd} if self._fence is not None and not self._fence.superseded else set()
        folder = {self._leases.folder_fd} if self._leases is not None else set()
        others = () if self._orders is not None else (*self._discovery.fds, *leases)
        return super()._fds | set(others) | fence | folder

    def _pass_on(self, number: int, hosts: Collection[str]) -> list[str]:
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
        if self._leases is not None:
            self._leases.attend()
        if self._fence is not None and (words := self._fence.turn(now)):
            self._give_way(words, self._fence.superseded)
        if self._leases is not None and self._fence is not None:
            self._leases.obey_people(now, self._fence)
        self._look(now)
        orders = []
        while self._formation.orders:
            orders.append(self._formation.orders.popleft())
        if self._orders is not None:
            return  # the job ends: no worker that exits now is replaced
        for order in orders:
            self._obey(order)
        if self._orders is None and (decides := self._decides_about_leases(now)) is not None:
            decides.turn(self._busy)

    def _decides_about_leases(self, now: float) -> JobLeases | None:
        """The leases; ``None`` while it is unknown whether another leader has them."""
        return self._leases if self._fence is not None and self._fence.is_sure(now) else None

    def _look(self, now: float) -> None:
        if self._orders is None and self._may_look(now) and (hosts := self._discovery.look(now)) is not None:
            self._find(hosts)

    def _may_look(self, now: float) -> bool:
        """False while adopted agents have not reconnected, or while the previous leader may still train."""
        if self._adopts and self._inherited & self._coming:
            return False
        has_begun = self._fence is None or now >= self._fence.begins_s
        return has_begun or self._formation.membership.generation > 0

    def _find(self, hosts: tuple[Host, ...]) -> None:
        self._found = hosts
        named = by_own_name(hosts, self._elastic.here, is_own) if self._elastic.here else hosts
        own = within(named, self._most)
        self._formation.tell(HostsFound({host.name: host.slots for host in own}))

    def _obey_watcher(self, order: WatchOrder) -> tuple[bool, str]:
        if order.verb != "scale":
            return super()._obey_watcher(order)
        settings = self._job.settings
        fewest, most = max(1, settings.min_np), settings.max_np or sum(host.slots for host in self._found)
        if self._leases is not None:
            return False, f"this run takes leases: farandole scale {self._job.command[0]} N"
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
            self._say(text)
            self._said = text

    def _obey(self, decision: actions.Decision) -> None:
        action = decision.action
        if self._orders is not None:
            return
        if isinstance(action, actions.Start):
            self._start(action)
        elif isinstance(action, actions.Kill):
            if worker := self._workers.get(action.worker_id):
                self._root.tell(worker.slot.host, KillWorker(action.worker_id))
        elif isinstance(action, actions.Rest):
            is_longest = action.rest_s >= self._job.settings.blacklist_cooldown_range[1]
            if is_longest and self._leases is not None and action.host not in self._busy:
                self._leases.give_back(action.host, "the workers there fail, again and again")
        elif isinstance(action, actions.Finish):
            words = self._words(decision.reason) if action.status else ""
            self._decide(self._handover.decided or JobResult(action.status, words))
            self._stop(self._job.settings.grace_s)

    def _decide(self, result: JobResult) -> None:
        """Set the result of the job before the workers are told to end: the next controller keeps it."""
        self._result = self._handover.decided = result

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
        if is_lent(start.host) and self._fence is not None and self._fence.lead_patience_s:
            patience_s = self._job.settings.start_timeout_s + self._fence.lead_patience_s
            own["FARANDOLE_START_TIMEOUT_S"] = str(patience_s)  # init() there also waits for the next leader
        return WorkerSpec(start.worker_id, self._job.command, {**self._shared, **told, **own})

    def _tell_to_start(self, host: str, specs: list[WorkerSpec]) -> None:
        size = max(self._job.settings.max_np, self._job.settings.min_np, len(self._workers))
        self._root.tell(host, start_workers(self._job, specs, size, inherits=self._far.of(host).inherits))

    # -- agents -------------------------------------------------------------------------------------------------------

    def _on_agent(self, host: str, message: object) -> None:
        if isinstance(message, AgentHello) and host not in self._open:
            if message.lent is None or self._orders is not None:  # it lost its connection and was given up
                self._root.tell(host, StopWorkers(0.0))
            else:
                self._admit(host, message.lent)
                for started in message.running:  # a previous leader's workers, never made members
                    self._root.tell(host, KillWorker(started.worker_id))
        elif isinstance(message, AgentHello) and host not in self._coming:  # it reconnects; messages were lost
            self._inherited.add(host)
        if isinstance(message, Leaving):
            self._on_leaving(host)
        super()._on_agent(host, message)

    def _admit(self, host: str, terms: LeaseOffer) -> None:
        """Admit or refuse a leased host whose agent has connected."""
        no = "this job takes no leases: it has no --run-folder"
        refusal = self._leases.admit(terms) if self._leases is not None else no
        if refusal:
            self._say_once(f"refused: {refusal}")
            self._root.tell(host, StopWorkers(0.0))
            self._root.hosts.ended(host)
            return
        self._far.admit(host)
        self._open.add(host)
        self._say(f"{host} is lent, with {terms.slots} worker{'s' if terms.slots > 1 else ''}")

    def _on_leaving(self, host: str) -> None:
        """Make the workers of a leased host leave; after the last host that is not leased, end the whole job."""
        if is_lent(host):
            if self._leases is not None:  # else the host was refused
                self._leases.release(host, "its scheduler wants it back (SIGTERM)")
            return
        self._told.add(host)
        if self._orders is None and self._told >= {each for each in self._open if not is_lent(each)}:
            # Now: the last worker may exit before the first agent, and its exit would be reported as the cause.
            whole = "the job" if self._leases is None else "the lead"
            self._say(f"{whole} is told to end (SIGTERM): all workers leave at their next commit")
            self._result = JobResult(128 + signal.SIGTERM, f"{whole} was told to end, and all workers have left")
            self._stop(UNTIL_KILLED_S)

    def _on_hello(self, host: str, hello: AgentHello) -> None:
        super()._on_hello(host, hello)
        running: set[int] = set()
        if host in self._inherited:
            self._inherited.discard(host)
            if self._leases is not None and hello.lent is not None:
                self._leases.keep(hello.lent)
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
            if started.worker_id in self._formation.membership.workers:
                self._on_agent(host, started)
            elif self._adopts:
                self._root.tell(host, KillWorker(started.worker_id))
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
                    self._root.tell(host, KillWorker(worker_id))
            elif worker.phase is WorkerPhase.STARTING:
                specs.append(self._spec(actions.Start(worker_id, host, worker.slot.index)))
            else:
                self._on_exit(host, WorkerExited(worker_id, -signal.SIGKILL, error="it ended unseen, or never started"))
        if specs:
            self._tell_to_start(host, specs)

    def _on_worker_exited(self, event: WorkerExited) -> None:
        if event.worker_id not in self._workers:
            return  # already reported to the previous controller
        if event.code:
            self._failures = [*self._failures[1 - MOST_WORDS :], event]
        self._controller.worker_exited(event)

    def _on_goodbye(self, host: str) -> None:
        if self._leases is not None and self._leases.has_left(host):
            self._close(host)
        elif self._orders is None:
            self._lose(host, Loss(f"the agent on {host} was told to end (SIGTERM)"))
        else:
            self._close(host)

    def _abandon(self, host: str) -> None:
        self._far.of(host).give_up()

    def _runs_nothing(self, host: str) -> bool:
        return host in self._coming - self._inherited

    def _on_host_lost(self, host: str, loss: Loss) -> None:
        self._lost(host, loss.description)

    def _lost(self, host: str, reason: str) -> None:
        """Remove the workers of a lost host, and report the loss to the membership."""
        if self._orders is None:
            self._say_once(reason)
            self._discovery.hurry()
            self._formation.tell(HostLost(host, reason))

    def _close(self, host: str) -> None:
        super()._close(host)
        if self._leases is not None and is_lent(host):
            self._far.forget(host)
            self._leases.closed(host)
            self._handover.gone.append(host)
            self._look(time.monotonic())  # before ``HostLost``, or a worker would start there
        self._confirm(host)
        if self._orders is not None and not self._open:
            self._finish()

    # -- the end ------------------------------------------------------------------------------------------------------

    def _end_for_people(self) -> None:
        """End the job with status 0, as a user ordered: with another status a batch script would requeue it."""
        self._say(f"farandole stop: ending {len(self._workers)} workers")
        self._is_stopped = True
        self._decide(JobResult(0, ""))
        self._stop(self._job.settings.grace_s)

    def _give_way(self, words: str, is_superseded: bool) -> None:
        """End, because another leader has taken over, or the run folder no longer answers."""
        if not is_superseded:
            if self._orders is None:
                self._decide(self._handover.decided or JobResult(1, words))
                self._stop(self._job.settings.grace_s)
            return
        self._result = JobResult(1, words)
        self._orders = StopWorkers(0.0)
        for host in self._open:
            if not is_lent(host):  # leased hosts belong to the new leader
                self._root.tell(host, self._orders)
        self._give_up_at = time.monotonic()

    def _on_signal(self, number: int) -> None:
        signals = self._handover.signals
        signals.append(number)
        again = len(signals) > 1
        what = "again: killing the workers" if again else f"ending {len(self._workers)} workers (again: kill at once)"
        self._say(f"{signal_name(number)}{' ' if again else ': '}{what}")
        first = signals[0]
        if not self._is_stopped:
            self._result = JobResult(128 + first, f"the job was ended by {signal_name(first)}")
        if again:
            self._give_up_at = time.monotonic() + END_S
        self._stop(0.0 if again else self._job.settings.grace_s)

    def _stop(self, grace_s: float) -> None:
        super()._stop(grace_s)
        if not self._open:
            self._finish()

    def _words(self, reason: str) -> str:
        """The reason why the job ended, with the last output of the workers that failed last."""
        lines = [reason]
        for event in reversed(self._failures):
            lines += self._wording.account(event)
        return "\n".join(lines)[:LONGEST_WORDS]
