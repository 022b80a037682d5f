"""Event loop of an elastic job that takes leases: hosts join and leave it, and another leader may replace this one.

    with LeasedLoop(elastic, agents, root, interrupts, handover, formation, secret, terms) as loop:
        result = loop.run()

``JobLeases`` decides about leases, and ``LeaderFence`` whether this leader is still the current one. Agents of leases
connect by themselves; the launcher has no child for them.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, final

from farandole.control.agent_messages import AgentHello, KillWorker, StopWorkers
from farandole.control.watch_messages import WatchOrder
from farandole.elastic.membership import actions
from farandole.launch.hosts.elastic_job import ElasticJob
from farandole.launch.hosts.leased_hosts import LeasedHosts, is_lent
from farandole.launch.job.elastic_agents import ElasticAgents
from farandole.launch.job.elastic_loop import ElasticLoop, Handover
from farandole.launch.job.job_leases import JobLeases
from farandole.launch.job.leader_fence import LeaderFence
from farandole.launch.job.leadership import Leadership
from farandole.launch.job.loop import JobResult

if TYPE_CHECKING:
    from farandole.elastic.membership.formation import ElasticFormation
    from farandole.runtime.controller.root import Root

ADOPT_S = 10.0
"""Time for the agents of leases to find the next leader, after they noticed the loss of theirs."""


@final
class LeasedLoop(ElasticLoop):
    """Loop of the current leader of a run; ``adopts``: it goes on with the workers of the previous leader."""

    WHOLE = "the leader"

    def __init__(
        self,
        elastic: ElasticJob,
        agents: ElasticAgents,
        root: Root,
        interrupts: int,
        handover: Handover,
        formation: ElasticFormation,
        secret: str,
        terms: Leadership,
        *,
        adopts: bool = False,
    ) -> None:
        super().__init__(elastic, agents, root, interrupts, handover, formation, secret)
        assert isinstance(elastic.discovery, LeasedHosts)
        self._leases = JobLeases(elastic.discovery, terms, root, formation, self._print_text, self._end_for_people)
        self._leases.refuse(handover.gone)
        self._fence = LeaderFence(terms, formation, self._job.settings, root.router.address)
        self._adopts = adopts

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        self._leases.close()
        self._fence.close()

    # -- the previous controller or leader ----------------------------------------------------------------------------

    @property
    def _reconnect_s(self) -> float:
        # Agents look for the next leader after the heartbeat timeout; until then workers may train without one.
        return ADOPT_S + 2 * self._job.settings.host_timeout_s if self._adopts else super()._reconnect_s

    def _known_agents(self, counts: Mapping[str, int]) -> Mapping[str, str]:
        # Agents of leases reconnect by themselves, unless they were given up.
        lent = {host: host for host in counts if is_lent(host) and host not in self._handover.gone}
        self._leases.take_over({host: counts[host] for host in lent})
        for host in lent:
            self._far.admit(host)
        return {**super()._known_agents(counts), **lent}

    def _why_gone(self, host: str) -> str:
        if host in self._handover.gone:
            return "was given up before the controller was replaced"
        return "was lost with the previous leader" if self._adopts else super()._why_gone(host)

    def _compare(self, host: str, hello: AgentHello) -> set[int]:
        if hello.lent is not None:
            self._leases.keep(hello.lent)
        running = super()._compare(host, hello)
        if self._adopts:
            self._kill(host, running - set(self._workers))
        return running

    def _kill(self, host: str, worker_ids: Collection[int]) -> None:
        """Kill workers of a previous leader that are no members."""
        for worker_id in worker_ids:
            self._root.send_to_agent(host, KillWorker(worker_id))

    # -- descriptors and deadlines ------------------------------------------------------------------------------------

    @property
    def _deadline_s(self) -> float | None:
        people_s, now = self._leases.people_due_s, time.monotonic()
        if self._orders is not None:
            return people_s
        moments = (
            people_s,
            super()._deadline_s if self._may_look(now) else self._begins_s(now),
            self._leases.deadline_s if self._fence.is_sure(now) else None,
            self._fence.deadline_s,
        )
        return min((moment for moment in moments if moment is not None), default=None)

    @property
    def _fds(self) -> set[int]:
        decides = self._orders is None and self._fence.is_sure(time.monotonic())
        fence = set() if self._fence.superseded else {self._fence.fd}
        return super()._fds | set(self._leases.fds if decides else ()) | fence | {self._leases.folder_fd}

    def _on_turn(self, now: float) -> None:
        self._leases.attend()
        if words := self._fence.turn(now):
            self._give_way(words)
        self._leases.obey_people(now, self._fence)
        super()._on_turn(now)
        if self._orders is None and self._fence.is_sure(now):  # else another leader may have the leases
            self._leases.turn(self._busy)

    def _look(self, now: float) -> None:
        if self._may_look(now):
            super()._look(now)

    def _may_look(self, now: float) -> bool:
        """False while adopted agents have not reconnected, or while the previous leader may still train."""
        if self._adopts and self._inherited & self._coming:
            return False
        return self._begins_s(now) is None or self._formation.membership.generation > 0

    def _begins_s(self, now: float) -> float | None:
        """Time at which this leader may start workers; ``None`` if that is over."""
        return self._fence.begins_s if now < self._fence.begins_s else None

    # -- hosts --------------------------------------------------------------------------------------------------------

    @property
    def _busy(self) -> set[str]:
        """Hosts that have workers."""
        return {worker.slot.host for worker in self._workers.values()}

    def _obey(self, decision: actions.Decision) -> None:
        super()._obey(decision)
        action = decision.action
        if self._orders is not None or not isinstance(action, actions.Rest):
            return
        is_longest = action.rest_s >= self._job.settings.blacklist_cooldown_range[1]
        if is_longest and action.host not in self._busy:
            self._leases.give_back(action.host, "the workers there fail, again and again")

    def _obey_watcher(self, order: WatchOrder) -> tuple[bool, str]:
        if order.verb == "scale":
            return False, f"this run takes leases: farandole scale {self._job.command[0]} N"
        return super()._obey_watcher(order)

    def _variables_on(self, host: str) -> Mapping[str, str]:
        if not is_lent(host) or not self._fence.lead_patience_s:
            return {}
        patience_s = self._job.settings.start_timeout_s + self._fence.lead_patience_s
        return {"FARANDOLE_START_TIMEOUT_S": str(patience_s)}  # init() there also waits for the next leader

    def _on_unknown(self, host: str, hello: AgentHello) -> None:
        if hello.lent is None or self._orders is not None:
            super()._on_unknown(host, hello)
        elif refusal := self._leases.admit(hello.lent):
            self._refuse(host, refusal)
        else:
            self._far.admit(host)
            self._open.add(host)
            slots = hello.lent.slots
            self._print_text(f"{host} is lent, with {slots} worker{'s' if slots > 1 else ''}")
            self._kill(host, [started.worker_id for started in hello.running])

    def _on_leaving(self, host: str) -> None:
        if is_lent(host):
            self._leases.release(host, "its scheduler wants it back (SIGTERM)")
        else:
            super()._on_leaving(host)

    def _on_goodbye(self, host: str) -> None:
        if self._leases.has_left(host):
            self._close(host)
        else:
            super()._on_goodbye(host)

    def _close(self, host: str) -> None:
        super()._close(host)
        if is_lent(host):
            self._far.forget(host)
            self._leases.closed(host)
            self._handover.gone.append(host)
            self._look(time.monotonic())  # before ``HostLost``, or a worker would start there

    # -- the end ------------------------------------------------------------------------------------------------------

    def _end_for_people(self) -> None:
        """End the job with status 0, as a user ordered: with another status a batch script would requeue it."""
        self._print_text(f"farandole stop: ending {len(self._workers)} workers")
        self._handover.is_stopped = True
        self._end(JobResult(0, ""), self._job.settings.grace_s)

    def _give_way(self, words: str) -> None:
        """End, because another leader has taken over, or the run folder no longer answers."""
        if not self._fence.superseded:
            if self._orders is None:
                self._end(self._handover.decided or JobResult(1, words), self._job.settings.grace_s)
            return
        self._result = JobResult(1, words)
        self._orders = StopWorkers(0.0)
        for host in self._open:
            if not is_lent(host):  # leased hosts belong to the new leader
                self._root.send_to_agent(host, self._orders)
        self._give_up_at = time.monotonic()
