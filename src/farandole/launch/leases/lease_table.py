"""Table of the leases of a run, from messages of agents and from looks at the scheduler's queue. Without any I/O.

    book = LeaseTable()
    book.submitted("812", count=4, like=Lease("", workers=4, nodes=1, length_s=3600.0), now_s=0.0)
    book.look("812", {0: JobView(JobPhase.HELD)}, now_s=60.0)
    book.admit(terms, now_s=95.0)           # its agent has connected
    book.leases, book.orders()              # input of the policy

Messages of agents take precedence over the scheduler, which may be unreachable or late. A lease that the queue no
longer shows is gone after ``CLEAN_LOOKS`` looks: a single look may be wrong while the scheduler has problems.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import final

import msgspec

from farandole.control.agent_messages import LeaseOffer
from farandole.launch.hosts.leased_hosts import LENT
from farandole.launch.leases.lease import Lease, LeasePhase
from farandole.launch.leases.observation import AnyLeaseOrder, OutsideCancel, OutsideHold, OutsideLimit, OutsideSuspend
from farandole.launch.leases.scheduler import JobPhase, JobView

CLEAN_LOOKS = 3
"""Number of looks in a row without a lease after which it counts as gone."""

SAME_END_S = 90.0
"""Two end times of a job that differ by less are the same: schedulers round to minutes."""

PARTIAL_S = 120.0
"""Time from the connection of its first agent after which a lease counts with the nodes that have connected."""

QUEUED = (LeasePhase.HELD, LeasePhase.ASKED, LeasePhase.PENDING)
HOUR_S = 3600.0


@final
class LeaseTable:
    """Table of one run. Times are in seconds since 1970."""

    def __init__(self) -> None:
        self._leases: dict[str, Lease] = {}
        self._hosts: dict[str, str] = {}
        """Lease of each host whose agent is connected."""
        self._slots: dict[str, int] = {}
        """Number of slots of each of these hosts."""
        self._missing: dict[str, int] = {}
        self._cancelled: set[str] = set()
        self._held: set[str] = set()
        """Leases known to be held by a user or administrator, not by the policy."""
        self._releasing: set[str] = set()
        """Leases whose release the scheduler has not answered: looks that arrive meanwhile show the state before."""
        self._suspended: set[str] = set()
        self._orders: list[AnyLeaseOrder] = []
        self._began_s: dict[str, float] = {}
        self._spent_node_s = 0.0

    # -- queries ------------------------------------------------------------------------------------------------------

    @property
    def leases(self) -> tuple[Lease, ...]:
        """All leases in order of appearance; leases that are gone stay until ``forget``."""
        return tuple(self._leases.values())

    def hosts(self, job: str) -> list[str]:
        """Hosts of a lease whose agents are connected."""
        return [host for host, own in self._hosts.items() if own == job]

    def lease_of(self, host: str) -> Lease | None:
        """Lease of a host."""
        return self._leases.get(self._hosts.get(host, ""))

    def node_hours(self, now_s: float) -> float:
        """Node-hours that leases have used."""
        running = sum(
            (now_s - began_s) * max(1, self._leases[job].nodes)
            for job, began_s in self._began_s.items()
            if job in self._leases
        )
        return (self._spent_node_s + running) / HOUR_S

    @property
    def has_orders(self) -> bool:
        """True if ``orders`` would return any."""
        return bool(self._orders)

    def orders(self) -> tuple[AnyLeaseOrder, ...]:
        """Orders that users gave with commands of the scheduler since the last call."""
        found, self._orders = tuple(self._orders), []
        return found

    def forget(self) -> None:
        """Drop the leases that are gone, after the policy has seen them."""
        self._leases = {job: lease for job, lease in self._leases.items() if lease.phase is not LeasePhase.GONE}

    def restore(self, leases: Collection[Lease], node_hours: float, now_s: float) -> None:
        """Continue with the table of the previous controller; agents that are connected will reconnect."""
        self._leases = {lease.job: lease for lease in leases if lease.phase is not LeasePhase.GONE}
        self._began_s = {job: now_s for job, lease in self._leases.items() if lease.phase not in QUEUED}
        self._spent_node_s = node_hours * HOUR_S

    # -- decisions of the policy --------------------------------------------------------------------------------------

    def submitted(self, array: str, count: int, like: Lease, now_s: float) -> None:
        """Add an array of held leases, each ``like`` this one."""
        for index in range(count):
            job = f"{array}_{index}"
            lease = msgspec.structs.replace(like, job=job, phase=LeasePhase.HELD, since_s=now_s)
            self._leases.setdefault(job, lease)

    def told(self, job: str, phase: LeasePhase, now_s: float) -> None:
        """Note that a lease was told to start (``ASKED``), to leave (``LEAVING``), or was cancelled (``GONE``)."""
        if phase is LeasePhase.GONE:
            self._cancelled.add(job)
        else:
            self._held.discard(job)
            self._move(job, phase, now_s)

    def releasing(self, job: str, now_s: float) -> None:
        """Note that a lease was told to start, and that its release was sent to the scheduler."""
        self.told(job, LeasePhase.ASKED, now_s)
        self._releasing.add(job)

    def released(self, job: str) -> None:
        """Note that the scheduler has answered the release of a lease, with success or failure."""
        self._releasing.discard(job)

    def revert(self, job: str, now_s: float) -> None:
        """Note that the release of a lease was refused: it is still held."""
        if job in self._leases and self._leases[job].phase is LeasePhase.ASKED:
            self._move(job, LeasePhase.HELD, now_s)

    # -- messages of agents -------------------------------------------------------------------------------------------

    def admit(self, terms: LeaseOffer, now_s: float) -> None:
        """Add the connected agent of a lease, which may be one that this run did not submit."""
        job = terms.title
        lease = self._leases.get(job) or Lease(job, 0, since_s=now_s, guest=True)
        nodes = max(lease.nodes, len({*self.hosts(job), terms.host}))  # a reconnecting agent is counted once
        workers = max(lease.workers, terms.slots * nodes)
        ends_s = terms.ends_s or lease.ends_s
        self._hosts[terms.host], self._slots[terms.host] = job, terms.slots
        self._began_s.setdefault(job, now_s)
        self._leases[job] = msgspec.structs.replace(lease, nodes=nodes, workers=workers, ends_s=ends_s)
        if lease.phase not in (LeasePhase.WARMING, LeasePhase.MEMBER, LeasePhase.LEAVING):
            self._move(job, LeasePhase.WARMING, now_s)

    def expect(self, host: str, job: str) -> None:
        """Add a host whose agent was connected to the previous controller: it reconnects, or ``gone`` is called."""
        self._hosts[host] = job

    def train(self, hosts: Collection[str], now_s: float) -> None:
        """Update which leases train; ``hosts`` are those with members of the generation."""
        for job, lease in list(self._leases.items()):
            own = self.hosts(job)
            is_whole = len(own) >= lease.nodes or now_s >= lease.since_s + PARTIAL_S
            if lease.phase is LeasePhase.WARMING and own and is_whole and all(host in hosts for host in own):
                self._move(job, LeasePhase.MEMBER, now_s)
            if self._leases[job].phase is LeasePhase.MEMBER:
                self._count(job)

    def _count(self, job: str) -> None:
        """Count the workers that a lease really has: a node may be lost, or its agent may never have connected."""
        lease = self._leases[job]
        hosts = self.hosts(job)
        if hosts and all(host in self._slots for host in hosts):  # slots are unknown until agents reconnect
            workers = sum(self._slots[host] for host in hosts)
            self._leases[job] = msgspec.structs.replace(lease, workers=workers)

    def mark_leaving(self, host: str, cause: str, now_s: float) -> None:
        """Note that a host is to leave."""
        job = self._hosts.get(host)
        if job in self._leases:
            self._move(job, LeasePhase.LEAVING, now_s, cause)

    def gone(self, host: str, cause: str, now_s: float) -> None:
        """Remove a host whose agent has exited or is lost; a lease without hosts is gone."""
        job = self._hosts.pop(host, None)
        self._slots.pop(host, None)
        if job in self._leases and not self.hosts(job):
            self._end(job, self._leases[job].cause or cause, now_s)

    def nodes(self) -> dict[str, set[str]]:
        """Nodes with connected agents, by lease."""
        found: dict[str, set[str]] = {}
        for host, job in self._hosts.items():
            if job in self._leases:
                found.setdefault(job, set()).add(host.partition(LENT)[0])
        return found

    # -- looks at the queue -------------------------------------------------------------------------------------------

    def look(self, array: str, jobs: Mapping[int, JobView], now_s: float) -> None:
        """Update the leases of an array from a look at its jobs."""
        self._note_suspended(array, jobs)
        for job, lease in list(self._leases.items()):
            number, _, index = job.partition("_")
            if number != array or lease.phase is LeasePhase.GONE:
                continue
            view = jobs.get(int(index or -1))
            if view is not None:
                self._missing.pop(job, None)
                self._compare(lease, view, now_s)
            elif not self.hosts(job):
                self._missing[job] = self._missing.get(job, 0) + 1
                if self._missing[job] >= CLEAN_LOOKS:
                    self._lost(lease, "no look shows it any more", now_s)

    def drain(self, nodes: Collection[str], drained: Mapping[str, str]) -> None:
        """Update the leases from a look at ``nodes``; ``drained``: the reason for each node that is being drained."""
        for job, own in self.nodes().items():
            known = sorted(own & set(nodes))
            words = [f"{node} ({drained[node]})" if drained[node] else node for node in known if node in drained]
            if known:
                self._leases[job] = msgspec.structs.replace(self._leases[job], drained=", ".join(words))

    def _note_suspended(self, array: str, jobs: Mapping[int, JobView]) -> None:
        """Note which jobs are suspended, also those of leases that are gone because their agents were silent."""
        found = {f"{array}_{index}" for index, view in jobs.items() if view.phase is JobPhase.SUSPENDED}
        self._orders += [OutsideSuspend(job) for job in sorted(found - self._suspended)]
        self._suspended = {job for job in self._suspended if job.partition("_")[0] != array} | found

    def _compare(self, lease: Lease, view: JobView, now_s: float) -> None:
        job = lease.job
        if view.ends_s and lease.ends_s and abs(view.ends_s - lease.ends_s) > SAME_END_S:
            self._orders.append(OutsideLimit(job))
        nodes = len(view.nodes) or lease.nodes
        if view.began_s and lease.phase is not LeasePhase.GONE:
            self._began_s[job] = view.began_s  # its node-hours count from then on
        times = {"ends_s": view.ends_s or lease.ends_s, "starts_s": view.starts_s, "nodes": nodes}
        self._leases[job] = msgspec.structs.replace(lease, **times)
        if view.phase is JobPhase.GONE and not self.hosts(job):
            self._lost(lease, f"its job has ended{f' ({view.reason})' if view.reason else ''}", now_s)
        elif lease.phase not in QUEUED:
            return
        elif view.phase in (JobPhase.HELD, JobPhase.BARRED):
            self._note_hold(lease, view.phase is JobPhase.BARRED, now_s)
        elif view.phase is JobPhase.PENDING:
            if lease.phase is not LeasePhase.PENDING:
                self._move(job, LeasePhase.PENDING, now_s)
        else:
            self._began_s.setdefault(job, now_s)
            self._move(job, LeasePhase.STARTING, now_s)

    def _note_hold(self, lease: Lease, is_barred: bool, now_s: float) -> None:
        """Note that a lease is held after its release, or that only an administrator can release it."""
        if lease.job in self._held or (lease.phase is LeasePhase.HELD and not is_barred):
            return
        if lease.job in self._releasing and not is_barred:
            return
        self._held.add(lease.job)
        self._orders.append(OutsideHold(lease.job, is_barred))
        if lease.phase is not LeasePhase.HELD:
            self._move(lease.job, LeasePhase.HELD, now_s)

    def _lost(self, lease: Lease, cause: str, now_s: float) -> None:
        if lease.phase in QUEUED and lease.job not in self._cancelled:
            self._orders.append(OutsideCancel(lease.job))
        self._end(lease.job, cause, now_s)

    def _end(self, job: str, cause: str, now_s: float) -> None:
        began_s = self._began_s.pop(job, None)
        if began_s is not None:
            self._spent_node_s += (now_s - began_s) * max(1, self._leases[job].nodes)
        self._missing.pop(job, None)
        self._move(job, LeasePhase.GONE, now_s, cause)

    def _move(self, job: str, phase: LeasePhase, now_s: float, cause: str = "") -> None:
        lease = self._leases.get(job)
        if lease is not None and lease.phase is not phase:
            self._leases[job] = msgspec.structs.replace(lease, phase=phase, since_s=now_s, cause=cause or lease.cause)
