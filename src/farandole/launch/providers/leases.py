"""Provider of processes on nodes that jobs of a scheduler lend, and take back.

    provider = LeaseProvider(folder / "pool", output, own_path(), settings)
    # then, in any job of Slurm, and by hand: farandole join FOLDER/pool

The provider publishes its address in that folder, as the leader of a training run does, for the same command. If the
scheduler takes a node back, it sends SIGTERM, the node is leaving, and its scheduler job ends when it is released.
Every lease ends with the provider.

With ``begin`` the provider has the lease manager of elastic jobs, which asks for leases and gives them back by the
policy in that folder; what the loop wants is its order (``Demand``), and a lease trains once its workers are connected.

Orders to the policy of leases that follow the number of workers that a pool can use. Pure.

>>> demand, limits = Demand(), LeaseLimits(lease_workers=4, max_np=10, shrink_after_s=600.0)
>>> demand.order(5, 0.0, limits)
ScaleTo(np=8, why='the search can use 5 workers')
>>> demand.order(2, 60.0, limits), demand.due_s(limits)
(None, 660.0)
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path
from typing import Any, final

from farandole.cluster.contact import Contact
from farandole.control.agent_messages import AgentHello, StopWorkers
from farandole.control.run_messages import LeaseView, RunOrder, RunReply
from farandole.control.search_messages import PoolHello
from farandole.launch.hosts.run_folder import RunContact, RunFolder
from farandole.launch.leases.limits import LeaseLimits
from farandole.launch.leases.observation import ScaleTo
from farandole.launch.leases.policy_context import count
from farandole.launch.leases.recorded_leases import RecordedLeases
from farandole.launch.leases.run_orders import Obeyed, RunOrders, not_recorded
from farandole.launch.providers.hosts import AgentProvider
from farandole.launch.providers.provider import LEAVE_S, HostLeaving, ProviderEvent
from farandole.runtime.coordination.downlink import Send
from farandole.settings import Settings


@final
class Demand:
    """Demand of one pool, in whole leases.

    More is ordered at once, and less after the demand was lower for ``shrink-after-s``, namely the most of that time: a
    trial that pauses is often followed by another one, for which a new lease would wait in the queue.
    """

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Order again at the next call: the policy no longer has the last order."""
        self._ordered = -1
        self._lower_since_s, self._most = math.inf, 0

    def order(self, workers: int, now_s: float, limits: LeaseLimits) -> ScaleTo | None:
        """The order that is due, if a pool can use so many ``workers``; ``None``: the last order stays."""
        size = limits.lease_workers
        most = limits.max_np // size if limits.max_np else math.inf
        wanted = int(min(math.ceil(workers / size), most)) * size
        if wanted < self._ordered:
            self._lower_since_s, self._most = min(self._lower_since_s, now_s), max(self._most, wanted)
            if now_s < self.due_s(limits):
                return None
        np = max(wanted, self._most)
        self._lower_since_s, self._most = (now_s, wanted) if wanted < np else (math.inf, 0)
        if np == self._ordered:
            return None
        self._ordered = np
        return ScaleTo(np, f"the search can use {count(workers)}")

    def due_s(self, limits: LeaseLimits) -> float:
        """Time at which ``order`` is due even if the demand stays; infinite if it is not lower than the last order."""
        return self._lower_since_s + limits.shrink_after_s


@final
class LeaseProvider(AgentProvider):
    """Processes on leased nodes, whose agents find this process by ``folder``."""

    lends = True

    def __init__(
        self,
        folder: Path,
        output: Path,
        python_path: Sequence[str],
        settings: Settings,
        begin: Callable[[RunFolder], RecordedLeases] | None = None,
    ) -> None:
        super().__init__({}, output, python_path, settings)
        self._folder, self._begin = RunFolder.create(folder), begin
        self._known: set[str] = set()
        """All hosts that were ever lent. None is lent twice: its job ends, and the next job's host has another name."""
        self._leaving: dict[str, str] = {}
        """Hosts that must leave, and why."""
        self._leases: RecordedLeases | None = None
        self._demand, self._wanted, self._is_due = Demand(), -1, False
        self._connected: set[str] = set()
        """Hosts of which a worker has connected."""

    def open(self, contact: Contact, send: Send) -> None:
        """See ``Provider``."""
        super().open(contact, send)
        self._orders = RunOrders(self._carry_out, send)
        told = self._settings
        self._leases = self._begin(self._folder) if self._begin is not None else None
        self._folder.publish(
            RunContact(
                list(contact.addresses), contact.key, told.host_timeout_s, told.start_timeout_s, told.network_interface
            )
        )
        sys.stderr.write(f"farandole: nodes join this search by: farandole join {self._folder.path}\n")

    def close(self) -> None:
        """See ``Provider``. The leases end with their agents."""
        self._folder.withdraw(0)
        for host in self.slots:
            self._send_to_agent(host, StopWorkers(LEAVE_S))
        self.slots = {}
        leases, self._leases = self._leases, None
        for text in leases.end() if leases is not None else ():
            sys.stderr.write(f"farandole: {text}\n")
        if leases is not None:
            self._confirm(leases)
            self._orders.close()

    def release(self, host: str) -> None:
        """See ``Provider``."""
        self._lose(host, f"its workers have left: {self._leaving.get(host, 'nobody needs it')}")

    # -- leases by the policy -----------------------------------------------------------------------------------------

    def want(self, slots: int, busy: Collection[str]) -> None:
        """See ``Provider``."""
        if self._leases is not None:
            self._leases.manager.busy = busy
        self._is_due |= self._leases is not None and slots != self._wanted
        self._wanted = slots

    @property
    def fds(self) -> Collection[int]:
        """See ``Provider``."""
        return () if self._leases is None else (self._leases.folder_fd, *self._leases.fds)

    @property
    def deadline_s(self) -> float:
        """See ``Provider``."""
        moments = [super().deadline_s, -math.inf if self._is_due else math.inf]
        if self._leases is not None:
            lower_s = self._demand.due_s(self._leases.manager.limits) - time.time()
            moments += [time.monotonic() + lower_s, self._leases.deadline_s or math.inf]
            moments.append(self._orders.deadline_s or math.inf)
        return min(moments)

    def events(
        self, now: float, ready: Collection[int] = (), mail: Sequence[tuple[bytes, Any]] = ()
    ) -> list[ProviderEvent]:
        """See ``Provider``."""
        self._connected |= {message.host for _, message in mail if isinstance(message, PoolHello)}
        return super().events(now, ready, mail)

    def obey(self, order: RunOrder, identity: bytes) -> RunReply | None:
        """See ``Provider``."""
        if self._leases is None:
            return super().obey(order, identity)
        self._orders.queue_order(identity, order, time.monotonic())
        self._is_due = True
        return None

    def _carry_out(self, order: RunOrder, tag: bytes) -> Obeyed:
        leases = self._leases
        if leases is not None and (reply := leases.obey(order.verb)):
            self._demand.forget()
            self._is_due = True
            is_queued = leases.files.write(leases.manager.asked(time.time()), tag)
            return Obeyed(reply, is_written=True) if is_queued else Obeyed(not_recorded(reply, self._folder.path))
        path = self._folder.path
        bound = f"bound it by max-np = N in {path}/policy.toml, or type: farandole hold {path}"
        return Obeyed(RunReply(False, f"this search takes as many workers as its trials can use: {bound}"))

    def lease_views(self) -> tuple[list[LeaseView], list[str]]:
        """See ``Provider``."""
        manager = self._leases.manager if self._leases is not None else None
        return ([], []) if manager is None else (manager.views(), list(manager.said))

    def _attend(self, ready: Collection[int]) -> None:
        """Read what the scheduler has answered, and decide about leases."""
        leases, self._is_due = self._leases, False
        if leases is None:
            return
        leases.attend()
        self._confirm(leases)
        now = time.monotonic()  # no other search leads this one, so nothing has to be looked up
        self._orders.turn(now, now, "", is_read=leases.is_read)
        now_s, manager = time.time(), leases.manager
        is_known = leases.is_read and self._wanted >= 0
        if is_known and (order := self._demand.order(self._wanted, now_s, manager.limits)):
            manager.order(order)
        hosts = self._connected & self.slots.keys()
        for host, why in leases.turn(now_s, sum(self.slots[host] for host in hosts), 0, hosts):
            self._leave(host, why)

    def _confirm(self, leases: RecordedLeases) -> None:
        """Reply to the senders of orders that the journal has."""
        for tag, why in leases.files.written():
            self._orders.written(tag, why)

    # -- hosts --------------------------------------------------------------------------------------------------------

    def _refusal(self, hello: AgentHello) -> str:
        if hello.lent is None or hello.lent.host != hello.host:
            return "this search did not start its agent; nodes join by: farandole join"
        if hello.host in self._known:
            return "it has been here before, and was given up"
        if hello.lent.slots < 1:
            return f"it lends {hello.lent.slots} workers"
        self._known.add(hello.host)
        self.slots[hello.host] = hello.lent.slots
        if self._leases is not None:
            self._leases.when_read(partial(self._leases.manager.book.admit, hello.lent, time.time()))
        return ""

    def _on_leaving(self, host: str) -> None:
        self._leave(host, "its scheduler wants it back (SIGTERM)")

    def _leave(self, host: str, why: str) -> None:
        if host not in self._leaving and host in self.slots:
            self._leaving[host] = why
            self._news.append(HostLeaving(host))
            if self._leases is not None:
                self._leases.when_read(partial(self._leases.manager.book.mark_leaving, host, why, time.time()))

    def _lose(self, host: str, reason: str) -> None:
        if host in self.slots and self._leases is not None:
            self._leases.when_read(partial(self._leases.manager.book.gone, host, reason, time.time()))
        super()._lose(host, reason)
