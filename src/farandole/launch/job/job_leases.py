"""Leases of an elastic job, as the loop of its controller sees them, and the people who ask about the run.

    leases = JobLeases(elastic.leases, terms, root, formation, say, stop)
    refusal = leases.admit(terms)                   # an agent has come by itself
    leases.turn(now, busy=hosts_with_workers)       # what is due; ends agents whose workers have left
    leases.deadline_s, leases.fds                   # what wakes the loop for them

The loop's thread calls all of it. The journal has one writer: the controller that lives.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, final

from farandole.control.agent_messages import LeaseTerms, StopWorkers
from farandole.control.run_messages import HostView, Progressed, RunOrder, RunQuestion, RunReply, RunView
from farandole.launch.hosts.leased_hosts import LeasedHosts, is_lent, title_of
from farandole.launch.job.run_terms import RunTerms
from farandole.launch.leases.folder_thread import FolderThread, last
from farandole.launch.leases.lease import LeasePhase
from farandole.launch.leases.manager import LeaseManager
from farandole.launch.leases.seen import Hold, Resume, ScaleTo, Stop
from farandole.launch.leases.slurm import SlurmScheduler
from farandole.launch.leases.turn import count

if TYPE_CHECKING:
    from farandole.elastic.membership.formation import ElasticFormation
    from farandole.runtime.controller.root import Root

CLOSE_S = 1.0
"""Time for the last lines of the journal."""


@final
class JobLeases:
    """Leases of one job, in one controller. ``stop`` ends the job as SIGTERM does."""

    def __init__(
        self,
        hosts: LeasedHosts,
        terms: RunTerms,
        root: Root,
        formation: ElasticFormation,
        say: Callable[[str], object],
        stop: Callable[[], object],
    ) -> None:
        self._hosts, self._root, self._formation, self._say, self._stop = hosts, root, formation, say, stop
        self._files = FolderThread(terms.folder, terms.read_limits)
        scheduler = SlurmScheduler(os.environ) if terms.supply.script else None
        self._manager = LeaseManager(terms.limits, terms.supply, scheduler, self._files.write, say)
        self._dismissed: set[str] = set()
        """Lent hosts whose agents have been told to end, as their workers have left."""
        self._terms: dict[str, LeaseTerms] = {}
        self._began_s = time.time()
        root.on_person = self._on_person
        found = last(terms.folder)
        if found is not None:  # of the controller before, or of the lead that was here before this job was requeued
            self._manager.restore(found.after, found.seen, self._began_s)

    def take_over(self, hosts: Mapping[str, int]) -> None:
        """Go on with the hosts and slots that the controller before had; their agents call again."""
        for host, slots in hosts.items():
            self._hosts.keep(host, slots)
            self._manager.book.expect(host, title_of(host))

    def close(self) -> None:
        """End what the scheduler still does, and write the last lines of the journal."""
        self._manager.close()
        self._files.close(CLOSE_S)

    @property
    def fds(self) -> tuple[int, ...]:
        """Descriptors that wake the loop."""
        return self._manager.fds

    @property
    def deadline_s(self) -> float | None:
        """Time (of ``time.monotonic``) at which ``turn`` has something to do."""
        due_s = self._manager.due_s(time.time())
        return None if due_s is None else time.monotonic() + due_s

    def admit(self, terms: LeaseTerms) -> str:
        """Take in a host that is lent; returns why it cannot be, or ""."""
        refusal = self._hosts.admit(terms)
        if not refusal:
            self._terms[terms.host] = terms
            self._manager.book.admit(terms, time.time())
        return refusal

    def keep(self, terms: LeaseTerms) -> None:
        """Take in the agent of a host that the controller before has admitted, or that was cut off."""
        self._terms[terms.host] = terms
        self._dismissed.discard(terms.host)  # the order may be lost: it is given again if nobody works there
        if terms.host not in self._hosts.leaving:
            self._hosts.keep(terms.host, terms.slots)  # some of which may have had no worker
        self._manager.book.admit(terms, time.time())

    def release(self, host: str, why: str) -> None:
        """Have the workers of a lent host leave at their next commit."""
        if self._hosts.release(host):
            self._manager.book.leave(host, why, time.time())
            self._say(f"{host} leaves at the next commit: {why}")

    def has_left(self, host: str) -> bool:
        """True if the agent of a host was told to end, as its workers had left."""
        return host in self._dismissed

    def closed(self, host: str) -> None:
        """Take in that the agent of a host has ended, or is lost."""
        self._hosts.gone(host)
        cause = "its workers have left" if host in self._dismissed else "its agent is lost"
        self._manager.book.gone(host, cause, time.time())
        self._terms.pop(host, None)

    def turn(self, busy: Collection[str]) -> None:
        """Do what is due; end the agents of hosts that are to leave, and on which nobody is ``busy`` any more."""
        self._read_limits()
        members = self._members()
        self._manager.stepped(self._formation.membership.step_s)
        own = sum(not is_lent(host) for host in members.values())
        for host, why in self._manager.turn(time.time(), len(members), own, set(members.values())):
            self.release(host, why)
        for host in self._hosts.leaving - self._dismissed - set(busy):
            self._dismissed.add(host)
            self._root.tell(host, StopWorkers(0.0))

    def _read_limits(self) -> None:
        """Take in a policy that has been read anew."""
        found = self._files.limits()
        if isinstance(found, str):
            self._say(f"{found}; the policy stays what it was")
        elif found is not None:
            self._manager.limits = found

    # -- people -------------------------------------------------------------------------------------------------------

    def _on_person(self, identity: bytes, message: Any) -> None:
        if isinstance(message, Progressed):
            self._manager.progressed(message, time.time())
        elif isinstance(message, RunQuestion):
            self._root.router.send(identity, self._view())
        elif isinstance(message, RunOrder):
            self._root.router.send(identity, self._ordered(message))

    def _ordered(self, order: RunOrder) -> RunReply:
        """Take an order in; it is obeyed in the next turn of the loop, which follows at once."""
        limits = self._manager.limits
        if order.verb == "scale":
            if order.number < limits.min_np or (limits.max_np and order.number > limits.max_np):
                most = limits.max_np or "any number"
                return RunReply(False, f"{count(order.number)}: this run has {limits.min_np} to {most}")
            self._manager.order(ScaleTo(order.number))
            return RunReply(True, f"from now on the run is to have {count(order.number)}; see: farandole ps")
        if order.verb == "hold":
            self._manager.order(Hold())
            return RunReply(True, "no more leases are released; go on with: farandole release")
        if order.verb == "release":
            self._manager.order(Resume())
            return RunReply(True, "the policy decides again")
        if order.verb == "stop":
            self._manager.order(Stop())
            self._stop()
            return RunReply(True, "the training ends at its next commit")
        return RunReply(False, f"nobody here knows the order {order.verb!r}")

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
            self._began_s,
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
