"""Leases of an elastic job, for the loop of its controller, and replies to users who query or order the run.

    leases = JobLeases(elastic.discovery, terms, root, formation, say, stop)
    refusal = leases.admit(terms)                   # the agent of a lease has connected
    leases.turn(busy=hosts_with_workers)            # does what is due; ends agents without workers
    leases.deadline_s, leases.fds                   # wake the loop
    leases.attend(); leases.folder_fd               # handles results of the folder thread
    leases.obey_people(now, fence)                  # obeys orders of users

Only the loop's thread calls it. The manager of the leases, its journal and its policy file are ``RecordedLeases``. Of
the script's reports before the journal has been read only the last is kept: a script may report every step.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, final

from farandole.control.agent_messages import LeaseOffer, StopWorkers
from farandole.control.run_messages import HostView, Progressed, RunOrder, RunQuestion, RunReply, RunView
from farandole.launch.hosts.leased_hosts import LeasedHosts, is_lent, title_of
from farandole.launch.job.leadership import Leadership
from farandole.launch.leases.lease import LeasePhase
from farandole.launch.leases.observation import ScaleTo, Stop
from farandole.launch.leases.policy_context import count
from farandole.launch.leases.recorded_leases import RecordedLeases
from farandole.launch.leases.run_orders import END, Obeyed, RunOrders, not_recorded

if TYPE_CHECKING:
    from farandole.elastic.membership.formation import ElasticFormation
    from farandole.launch.job.leader_fence import LeaderFence
    from farandole.runtime.controller.root import Root

MOST_BARREN = 2
"""Number of leased hosts in a row whose workers all fail; then no further lease is released."""


@final
class JobLeases:
    """Leases of one job, in one controller. ``stop`` ends the job like SIGTERM."""

    def __init__(
        self,
        hosts: LeasedHosts,
        terms: Leadership,
        root: Root,
        formation: ElasticFormation,
        say: Callable[[str], object],
        stop: Callable[[], object],
    ) -> None:
        self._hosts, self._root, self._formation, self._say, self._stop = hosts, root, formation, say, stop
        self._folder = terms.folder.path
        self._leases = RecordedLeases(terms.folder, terms.supply, terms.limits, terms.read_limits, say)
        self._manager = self._leases.manager
        self._dismissed: set[str] = set()
        """Leased hosts whose agents were told to end because their workers have left."""
        self._terms: dict[str, LeaseOffer] = {}
        root.on_person = self._on_person
        self._reported: tuple[Progressed, float] | None = None
        """Last report of the script before the journal was read, and its time."""
        self._barren = 0
        """Number of leased hosts in a row on which no worker became a member."""
        self._orders = RunOrders(self._obey, root.router.send)

    def take_over(self, hosts: Mapping[str, int]) -> None:
        """Continue with the hosts and slots of the previous controller; their agents reconnect."""
        for host, slots in hosts.items():
            self._hosts.keep(host, slots)
            self._leases.when_read(partial(self._manager.book.expect, host, title_of(host)))

    def refuse(self, gone: Collection[str]) -> None:
        """Admit none of these hosts any more."""
        self._hosts.refuse(gone)

    def close(self) -> None:
        """Stop running scheduler commands, and write the last lines of the journal."""
        self._leases.close()
        self._reply()
        self._orders.close()

    def attend(self) -> None:
        """Handle results of the folder thread: the previous controller's journal, and orders now in the journal."""
        self._leases.attend()
        if self._reported is not None and self._leases.is_read:
            self._manager.progressed(*self._reported)
            self._reported = None
        self._reply()

    def obey_people(self, now: float, fence: LeaderFence) -> None:
        """Obey the orders of users, after it is certain that this leader is still the current one."""
        if self._orders.has_new():
            fence.look()
        self._orders.turn(now, fence.sure_s, fence.why_over, is_read=self._leases.is_read)

    @property
    def people_due_s(self) -> float | None:
        """Time at which ``obey_people`` has something to do."""
        return self._orders.deadline_s

    @property
    def folder_fd(self) -> int:
        """Descriptor that is readable when ``attend`` has something to do."""
        return self._leases.folder_fd

    @property
    def fds(self) -> tuple[int, ...]:
        """Descriptors that wake the loop."""
        return self._leases.fds

    @property
    def deadline_s(self) -> float | None:
        """Time (of ``time.monotonic``) at which ``turn`` has something to do."""
        return self._leases.deadline_s

    def admit(self, terms: LeaseOffer) -> str:
        """Admit a leased host; return why it is refused, or ""."""
        refusal = self._hosts.admit(terms)
        if not refusal:
            self._terms[terms.host] = terms
            self._leases.when_read(partial(self._manager.book.admit, terms, time.time()))
        return refusal

    def keep(self, terms: LeaseOffer) -> None:
        """Handle the reconnect of a leased host's agent after a lost connection or a change of controller."""
        self._terms[terms.host] = terms
        self._dismissed.discard(terms.host)  # the order may be lost; it is repeated if no worker runs there
        if terms.host not in self._hosts.leaving:
            self._hosts.keep(terms.host, terms.slots)  # some slots may have had no worker
        self._leases.when_read(partial(self._manager.book.admit, terms, time.time()))

    def release(self, host: str, why: str) -> None:
        """Make the workers of a leased host leave at their next commit."""
        if self._hosts.release(host):
            self._leases.when_read(partial(self._manager.book.mark_leaving, host, why, time.time()))
            self._say(f"{host} leaves at the next commit: {why}")

    def give_back(self, host: str, why: str) -> None:
        """End the lease of a host where every worker fails; after ``MOST_BARREN`` such hosts release no further lease.

        One host may be broken; if no leased host ever trained, the script probably cannot grow.
        """
        if host not in self._terms:
            return
        self.release(host, why)
        self._barren += 1
        if self._barren == MOST_BARREN:
            self._obey(RunOrder("hold"), b"")
            self._say(
                f"{self._barren} leases in a row were given back, as their workers failed before they trained, so no "
                "more are released; see why in the output of these workers, then type: "
                f"farandole release {self._folder}"
            )

    def has_left(self, host: str) -> bool:
        """True if the agent of a host was told to end because its workers had left."""
        return host in self._dismissed

    def closed(self, host: str) -> None:
        """Handle the exit or loss of the agent of a host."""
        self._hosts.gone(host)
        cause = "its workers have left" if host in self._dismissed else "its agent is lost"
        self._leases.when_read(partial(self._manager.book.gone, host, cause, time.time()))
        self._terms.pop(host, None)

    def turn(self, busy: Collection[str]) -> None:
        """Do what is due; end the agents of leaving hosts that are not ``busy``: they have no workers left."""
        members = self._members()
        if any(map(is_lent, members.values())):
            self._barren = 0
        self._manager.stepped(self._formation.membership.step_s)
        own = sum(not is_lent(host) for host in members.values())
        for host, why in self._leases.turn(time.time(), len(members) or None, own, set(members.values())):
            self.release(host, why)
        for host in self._hosts.leaving - self._dismissed - set(busy):
            self._dismissed.add(host)
            self._root.send_to_agent(host, StopWorkers(0.0))

    # -- orders and questions of users --------------------------------------------------------------------------------

    def _on_person(self, identity: bytes, message: Any) -> None:
        if isinstance(message, Progressed):
            self._progressed(message, time.time())
        elif isinstance(message, RunQuestion):
            self._root.router.send(identity, self._view())
        elif isinstance(message, RunOrder):
            self._orders.queue_order(identity, message, time.monotonic())

    def _progressed(self, message: Progressed, now_s: float) -> None:
        if self._leases.is_read:
            self._manager.progressed(message, now_s)
        else:
            self._reported = _joined(self._reported, message, now_s)

    def _obey(self, order: RunOrder, tag: bytes) -> Obeyed:
        """Obey an order; its sender gets the reply once the journal has the order, for the next controller, too.

        For ``stop`` the launcher knows the result before the reply is sent, whether or not the folder answers. Before
        the journal has been read there is no plan to write to it.
        """
        reply = self._ordered(order)
        if not reply.accepted or not self._leases.is_read:
            return Obeyed(reply)
        if not self._leases.files.write(self._manager.asked(time.time()), tag):
            return Obeyed(not_recorded(reply, self._folder))
        return Obeyed(reply, is_written=order.verb != END)

    def _reply(self) -> None:
        """Reply to the senders of orders that are now in the journal."""
        for tag, why in self._leases.files.written():
            self._orders.written(tag, why)

    def _ordered(self, order: RunOrder) -> RunReply:
        """Accept or refuse an order; the next turn of the loop, which follows at once, carries it out."""
        limits = self._manager.limits
        if order.verb == "scale":
            if order.number < limits.min_np or (limits.max_np and order.number > limits.max_np):
                most = limits.max_np or "any number"
                return RunReply(False, f"{count(order.number)}: this run has {limits.min_np} to {most}")
            self._manager.order(ScaleTo(order.number))
            return RunReply(True, f"from now on the run is to have {count(order.number)}; see: farandole ps")
        if order.verb == END:
            self._manager.order(Stop())
            self._stop()
            return RunReply(True, "the training ends at its next commit")
        return self._leases.obey(order.verb) or RunReply(False, f"unknown order {order.verb!r}")

    def _members(self) -> dict[int, str]:
        """Host of each member of the generation, by rank."""
        membership = self._formation.membership
        workers = membership.workers
        return {
            rank: workers[worker_id].slot.host
            for rank, worker_id in enumerate(membership.members)
            if worker_id in workers
        }

    def _view(self) -> RunView:
        members = self._members()
        hosts = dict.fromkeys([*members.values(), *self._terms])
        views = [self._host_view(host, [rank for rank, own in members.items() if own == host]) for host in hosts]
        leases = [view for view in self._manager.views() if view.phase != LeasePhase.GONE.value]
        limits = self._manager.limits
        return RunView(
            time.time(),
            self._leases.began_s,
            self._formation.membership.generation,
            views,
            leases,
            limits.min_np,
            limits.max_np,
            self._manager.metrics,
            list(self._manager.said),
        )

    def _host_view(self, host: str, ranks: list[int]) -> HostView:
        terms, lease = self._terms.get(host), self._manager.book.lease_of(host)
        if terms is None:
            return HostView(host, ranks, len(ranks))
        return HostView(host, ranks, terms.slots, terms.title, lease.ends_s if lease is not None else 0.0)


def _joined(before: tuple[Progressed, float] | None, last: Progressed, now_s: float) -> tuple[Progressed, float]:
    """Two reports of a script merged into one, with the time of the last advice."""
    if before is None:
        return last, now_s
    first, at_s = before
    metrics, pause_s = {**first.metrics, **last.metrics}, last.pause_s or first.pause_s
    return Progressed(metrics, last.advice or first.advice, pause_s), now_s if last.advice is not None else at_s
