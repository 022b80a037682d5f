"""The loop of an elastic job: its workers and hosts come and go as the membership decides.

Agents are started when a host is first needed, and again when a host that was lost has come back. They stay until the
job ends, with workers or without.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, final

import msgspec

from farandole.cluster.environment import PLACE, variables_for
from farandole.control.addresses import is_own
from farandole.control.agent_messages import Exited, KillWorker, StopWorkers, WorkerSpec
from farandole.control.process import signal_name
from farandole.elastic import decisions
from farandole.elastic.happenings import Found, HostLost
from farandole.errors import UsageError
from farandole.launch.agents import END_S, Agents
from farandole.launch.charge import Charge
from farandole.launch.elastic_job import ElasticJob
from farandole.launch.loop import Loop, Outcome
from farandole.launch.plan import Host, by_own_name, start_workers, variables_for_all
from farandole.launch.policy import End
from farandole.topology import Topology

if TYPE_CHECKING:
    from farandole.elastic.formation import ElasticFormation
    from farandole.runtime.root import Root

MOST_WORDS = 3
"""How many of the last failures a job that has failed is described with."""

SAID = (decisions.Abort, decisions.Announce, decisions.Kill, decisions.Form, decisions.Refuse)
"""Decisions that people are told of, from the first generation on; of all others they are with ``--verbose``."""


@final
class ElasticLoop(Loop):
    """Obeys ``formation``. ``charge`` is what every agent is told, but for its host."""

    def __init__(
        self,
        elastic: ElasticJob,
        agents: Agents,
        root: Root,
        interrupts: int,
        formation: ElasticFormation,
        charge: Charge,
    ) -> None:
        super().__init__(elastic.job, agents, root, interrupts)
        self._elastic, self._formation, self._charge = elastic, formation, charge
        self._discovery = elastic.discovery
        self._discovery.say = self._say
        self._formation.on_decision = self._note
        self._formation.on_over = self._say_once
        self._shared = variables_for_all(elastic.job, os.environ)
        self._hosts: dict[int, str] = {}
        """Where the workers are that run, or are to be started, by place."""
        self._slots: dict[str, int] = {}
        self._waiting: dict[str, list[WorkerSpec]] = {}
        """What agents that have not answered yet are to start."""
        self._failures: list[End] = []
        self._signals: list[int] = []
        self._orders: StopWorkers | None = None
        self._said = ""
        self._result = Outcome(0, "")
        self._open_screens()

    # -- what the loop waits for --------------------------------------------------------------------------------------

    @property
    def _deadline_s(self) -> float | None:
        return None if self._orders is not None else self._discovery.deadline_s

    @property
    def _fds(self) -> tuple[int, ...]:
        return () if self._orders is not None else self._discovery.fds

    def _on_turn(self, now: float) -> None:
        for agent in [each for each in self._agents if each.code is not None and not each.hosts]:
            if agent not in self._watched.values():
                self._agents.drop(agent)
        if self._orders is None and (hosts := self._discovery.look(now)) is not None:
            self._find(hosts)
        orders = []
        while self._formation.orders:
            orders.append(self._formation.orders.popleft())
        starts = [each.action for each in orders if isinstance(each.action, decisions.Start)]
        self._hosts.update((start.place, start.host) for start in starts)
        for order in orders:
            self._obey(order)

    def _find(self, hosts: tuple[Host, ...]) -> None:
        own = by_own_name(hosts, self._elastic.here, is_own)
        self._slots = {host.name: host.slots for host in own}
        self._formation.tell(Found(self._slots))

    def _outcome(self) -> Outcome:
        return self._result

    # -- what is decided ----------------------------------------------------------------------------------------------

    def _note(self, decision: decisions.Decision) -> None:
        action = decision.action
        is_first = isinstance(action, decisions.Form) and action.generation == 1
        if self._job.verbose or (isinstance(action, SAID) and not is_first):
            self._say_once(decision.reason)

    def _say_once(self, text: str) -> None:
        """Say it, unless that is what was said last: one cause often has several consequences."""
        if text != self._said:
            self._say(text)
            self._said = text

    def _obey(self, decision: decisions.Decision) -> None:
        action = decision.action
        if self._orders is not None:
            return
        if isinstance(action, decisions.Start):
            self._start(action)
        elif isinstance(action, decisions.Kill):
            self._root.tell(self._hosts.get(action.place, ""), KillWorker(action.place))
        elif isinstance(action, decisions.Finish):
            self._result = Outcome(action.status, self._words(decision.reason) if action.status else "")
            self._stop(self._job.settings.grace_s)

    def _start(self, start: decisions.Start) -> None:
        host = start.host
        if host not in self._open and not self._send_for(host):
            return
        spec = self._spec(start)
        if host in self._coming:
            self._waiting.setdefault(host, []).append(spec)
        else:
            self._tell_to_start(host, [spec])

    def _send_for(self, host: str) -> bool:
        """Start an agent there; false if that cannot be."""
        name = self._root.name(host, time.monotonic() + self._job.settings.start_timeout_s)
        try:
            [group] = self._elastic.starter.groups([host], self._elastic.here)
            agent = self._agents.add(group)
        except UsageError as error:
            self._root.hosts.ended(host)
            self._lost(host, str(error))
            return False
        agent.charge(msgspec.structs.replace(self._charge, host=host, name=name))
        self._open.add(host)
        self._coming.add(host)
        return True

    def _spec(self, start: decisions.Start) -> WorkerSpec:
        """Rank and size are what they would be if nobody came or went until it calls ``init``."""
        places = sorted(self._hosts)
        topology = Topology.of(places.index(start.place), tuple(self._hosts[place] for place in places), 0)
        slots = self._slots.get(start.host, topology.local_size)
        topology = msgspec.structs.replace(topology, local_rank=start.slot, local_size=slots)
        own = {PLACE: str(start.place), "HOROVOD_ELASTIC": "1"}
        told = variables_for(topology, "", self._charge.secret)
        return WorkerSpec(start.place, self._job.command, {**self._shared, **told, **own})

    def _tell_to_start(self, host: str, specs: list[WorkerSpec]) -> None:
        size = max(self._job.settings.max_np, self._job.settings.min_np, len(self._hosts))
        self._root.tell(host, start_workers(self._job, specs, size, inherits=self._agents.of(host).inherits))

    # -- agents -------------------------------------------------------------------------------------------------------

    def _on_hello(self, host: str) -> None:
        if self._orders is not None:
            self._root.tell(host, self._orders)
        elif specs := self._waiting.pop(host, []):
            self._tell_to_start(host, specs)

    def _on_exit(self, host: str, message: Exited) -> None:
        end = End(message.place, host, message.code, message.tail, message.error, title="worker")
        self._hosts.pop(message.place, None)
        if end.code:
            self._failures = [*self._failures[1 - MOST_WORDS :], end]
        self._controller.worker_exited(message.place, message.pid, message.code, str(end))

    def _on_end(self, host: str) -> None:
        self._lose(host, self._agents.of(host).explain())

    def _on_goodbye(self, host: str) -> None:
        if self._orders is None:
            self._lose(host, f"the agent on {host} was told to end (SIGTERM)")
        else:
            self._close(host)

    def _on_lost(self, host: str, reason: str) -> None:
        said = self._agents.of(host).said if host in self._coming else ""
        self._lose(host, f"{reason} ({said})" if said else reason)

    def _lose(self, host: str, reason: str) -> None:
        if host not in self._open:
            return
        self._root.tell(host, StopWorkers(0.0))  # should it come back
        self._agents.of(host).give_up()
        self._close(host)
        self._lost(host, reason)

    def _lost(self, host: str, reason: str) -> None:
        """Nothing that ran there counts any more."""
        self._waiting.pop(host, None)
        self._hosts = {place: name for place, name in self._hosts.items() if name != host}
        if self._orders is None:
            self._say_once(reason)
            self._formation.tell(HostLost(host, reason))

    def _close(self, host: str) -> None:
        super()._close(host)
        if self._orders is not None and not self._open:
            self._finish()

    # -- the end ------------------------------------------------------------------------------------------------------

    def _on_signal(self, number: int) -> None:
        self._signals.append(number)
        again = len(self._signals) > 1
        what = "again: killing the workers" if again else f"ending {len(self._hosts)} workers (again: kill at once)"
        self._say(f"{signal_name(number)}{' ' if again else ': '}{what}")
        first = self._signals[0]
        self._result = Outcome(128 + first, f"the job was ended by {signal_name(first)}")
        if again:
            self._give_up_at = time.monotonic() + END_S
        self._stop(0.0 if again else self._job.settings.grace_s)

    def _stop(self, grace_s: float) -> None:
        """End what runs, and then the agents."""
        self._orders = StopWorkers(grace_s)
        for host in tuple(self._open):
            if host in self._coming:
                self._agents.of(host).give_up()
                self._close(host)
            else:
                self._root.tell(host, self._orders)
        if not self._open:
            self._finish()

    def _words(self, reason: str) -> str:
        """Why the job ended as it did, with the last words of the workers that failed last."""
        lines = [reason]
        for end in reversed(self._failures):
            lines += end.account()
        return "\n".join(lines)
