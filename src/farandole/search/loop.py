"""Loop of a search: one socket for all trials and all pool workers.

    with SearchLoop(router, study, provider, terms) as loop:
        loop.open(contact)
        loop.run()

One thread runs all of it. One socket receives the messages of pool workers, known by the prefix of their identity, and
of the sessions that they join, known by the worker id in their ``Hello``, which is in the range of one trial. Each turn
handles messages, carries out decisions of the fleet and of the memberships, and then allots workers to trials.
"""

from __future__ import annotations

import contextlib
import math
import os
import statistics
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, final

from farandole import events
from farandole.cluster.contact import Contact
from farandole.control.agent_messages import AGENT
from farandole.control.channel import Router
from farandole.control.exits import HostLost
from farandole.control.run_messages import PERSON, RunOrder, RunQuestion, RunReply
from farandole.control.search_messages import (
    PoolHello,
    PoolRetire,
    PoolView,
    TrialLeft,
    TrialReport,
    TrialVerdict,
)
from farandole.control.watch_messages import WATCHER
from farandole.errors import ControlError
from farandole.launch.providers.fleet import Fleet, FleetWorker, KillProcess, ProcessState
from farandole.launch.providers.provider import Provider, ProviderEvent, words_of
from farandole.runtime.controller.event_loop import EventLoop
from farandole.search.allot import Noise, Running, Time, allot, demand
from farandole.search.groups import SearchLimits, TrialGroups
from farandole.search.rung_checkpoint import key_of, read_metrics, read_reported
from farandole.search.study import HELD, Study
from farandole.search.trial_job import TrialJob
from farandole.search.view import of_report
from farandole.search.watch import SearchWatch
from farandole.search.worker import POOL, pool_worker
from farandole.version import __version__

STOP_S = 10.0
"""Time for trials to leave at a commit when the search's time is over."""


@final
@dataclass
class _Measured:
    """Measurements of trials: begin of each trial, times that some took to their first rung (in s), and noise."""

    begun_s: dict[int, float] = field(default_factory=dict)
    first_rungs_s: list[float] = field(default_factory=list)
    noises: dict[int, Noise] = field(default_factory=dict)

    def reported(self, number: int, report: TrialReport, first_rung: int) -> None:
        """Note what a trial's report tells about its time and its noise."""
        if number in self.begun_s and report.epoch >= first_rung:
            self.first_rungs_s.append(time.monotonic() - self.begun_s.pop(number))
        if report.batch > 0:
            self.noises[number] = Noise(report.noise_high, report.batch)


@final
class SearchLoop(EventLoop):
    """Loop over the trials of ``study``. Calls ``on_change`` when a trial begins, reports, or gives workers back.

    The argument of ``on_change`` describes the change.
    """

    def __init__(self, router: Router, study: Study, provider: Provider, terms: SearchLimits) -> None:
        super().__init__(router)
        self.on_change: Callable[[str], object] = lambda _: None
        self.watch: SearchWatch | None = None
        """Record and orders of watchers, if the search is recorded."""
        self.fleet = Fleet(provider.slots, provider.heed_s)
        self.groups = TrialGroups(self.fleet, study, terms, router.send, self._kill, reaches_out=provider.reaches_out)
        self.size = self.groups.size
        self._study, self._provider, self._terms = study, provider, terms
        self._contact = Contact([], "")
        self._mail: list[tuple[bytes, Any]] = []
        """Messages for the provider that have arrived in this turn."""
        self._page = -1  # pidfd of the live page's process
        self._size = self.fleet.size
        self._measured = _Measured()
        self._ends_s = time.monotonic() + terms.deadline_s
        self._stops_s = math.inf  # end of the time to leave after the search's deadline

    def __exit__(self, *_: object) -> None:
        for worker in self.fleet:
            if worker.identity:
                self._router.send(worker.identity, PoolRetire())
        super().__exit__()

    def open(self, contact: Contact) -> None:
        """Start the workers, which find this search by ``contact``."""
        self._contact = contact
        self._provider.open(contact, self._router.send)
        self._on_events(self._provider.events(time.monotonic()))

    def abandon(self) -> None:
        """Kill all workers, whose results are no longer needed."""
        for worker in self.fleet:
            self._kill(worker)

    def run(self) -> None:
        """Run until no trial is left that could go on, or the time is over."""
        self._turn(time.monotonic())  # the provider may wait for what is wanted of it
        self.serve()

    @contextlib.contextmanager
    def follow(self, watch: SearchWatch, show: Callable[[str], object], page: int = -1) -> Iterator[None]:
        """Context in which changes go to ``watch``, which records and reports them, and to ``show``.

        ``page``: pid of the live page, if there is one; when it exits, trials that its users have paused go on.
        """

        def changed(what: str) -> None:
            show(what)
            watch.changed(what, self.size)

        self.watch, self.on_change = watch, changed
        if page >= 0:
            watch.expect()
        watch.changed("", self.size)  # trials that are known from the log
        if page >= 0:
            self._page = os.pidfd_open(page)
        try:
            yield
        finally:
            self._close_page()

    def stop(self) -> None:
        """End the search: trials leave at their next commit, or are abandoned after ``STOP_S``."""
        self._ends_s = min(self._ends_s, time.monotonic())

    def stop_trial(self, number: int, why: str) -> None:
        """End a trial at its next commit or report; a second call ends its processes, which may never get there."""
        self._study.stop(number, why)
        for job in self.groups.of(number):
            if job.stopping or job.failure:
                for worker in self.fleet.of(job.workers):
                    self._kill(worker)
            job.stop(why)

    # -- waiting ------------------------------------------------------------------------------------------------------

    def _is_over(self) -> bool:
        is_left = not self._study.is_over and math.isinf(self._stops_s)
        return (not is_left and not self.groups) or time.monotonic() >= self._stops_s

    @property
    def _fds(self) -> Collection[int]:
        return {*self._provider.fds, *([self._page] if self._page >= 0 else [])}

    def _receive(self, until_s: float | None) -> set[int]:
        ready = self._router.wait(None if until_s is None else max(0.0, until_s - time.monotonic()))
        messages = list(iter(self._router.recv, None))
        self._mail = [each for each in messages if each[0].startswith(AGENT) or isinstance(each[1], PoolHello)]
        for identity, message in messages:
            if not identity.startswith(AGENT):  # first: a worker's last message may arrive after its exit's report
                self._handle_message(identity, message)
        return ready

    def _on_descriptors(self, ready: set[int]) -> None:
        if self._page in ready:
            self._lose_page()
        ended = ready & self._watched
        self._unwatch(ended)  # the provider may close them
        self._on_events(self._provider.events(time.monotonic(), ended, self._mail))

    def _on_turn(self, now: float) -> None:
        self._turn(now)
        if self.watch is not None and self.watch.turn(self):
            self.on_change("")
            self._turn(now)

    def _lose_page(self) -> None:
        self._close_page()
        if self.watch is not None:
            self.watch.abandoned()
            self.on_change("")

    def _close_page(self) -> None:
        page, self._page = self._page, -1
        if page >= 0:
            self._unwatch({page} & self._watched)
            os.close(page)

    def _until_s(self) -> float | None:
        moments = [self._provider.deadline_s, self.fleet.deadline_s, *(job.deadline_s for job in self.groups)]
        moments.append(self._ends_s if math.isinf(self._stops_s) else self._stops_s)
        until_s = min(moments)
        return None if until_s == math.inf else until_s

    # -- messages -----------------------------------------------------------------------------------------------------

    def _handle_message(self, identity: bytes, message: Any) -> None:
        if identity.startswith(POOL):
            self._on_pool(identity, message)
            return
        if identity.startswith(PERSON):
            self._on_person(identity, message)
            return
        if identity.startswith(WATCHER):
            if self.watch is not None:
                self.watch.handle_viewer_message(identity, message)
            return
        self.groups.handle_session_message(identity, message)

    def _on_person(self, identity: bytes, message: Any) -> None:
        if isinstance(message, RunQuestion):
            view = PoolView(self.groups.hosts(), self._study.summary, *self._provider.lease_views())
            self._router.send(identity, view)
        elif isinstance(message, RunOrder) and message.verb == "stop":
            self.stop()
            self._router.send(identity, RunReply(True, "the search ends: its trials leave at their next commit"))
        elif isinstance(message, RunOrder) and (reply := self._provider.obey(message, identity)) is not None:
            self._router.send(identity, reply)

    def _on_pool(self, identity: bytes, message: Any) -> None:
        if isinstance(message, PoolHello):
            if message.version != __version__:
                text = f"host {message.host} has Farandole {message.version} and this one has {__version__}"
                self._router.refuse("workers of another version", text)
                self._router.send(identity, PoolRetire())
                return
            self.fleet.connect(message.worker_id, identity, message.pid)
            if not self.fleet.knows(message.worker_id):
                text = "process %d on %s is none of the workers that the search has started"
                events.logger.warning(text, message.pid, message.host)
            return
        worker = self.fleet.speaker(identity, message)
        if worker is None:
            return
        if isinstance(message, TrialReport):
            self._on_report(worker, message)
        elif isinstance(message, TrialLeft) and worker.state is ProcessState.KILLED:
            self._on_killed_left(worker)
        elif isinstance(message, TrialLeft):
            worker.member_id = -1
            self._on_left(worker, message)

    def _on_report(self, worker: FleetWorker, report: TrialReport) -> None:
        job = self.groups.with_worker(worker.member_id)
        if job is None:
            return
        self._measured.reported(job.number, report, self._study.plan.rungs.levels[0])
        goes_on, reason = self._study.report(job.number, report.epoch, report.value, report.metrics)
        leaves = goes_on and bool(job.stopping)
        if leaves:
            goes_on, reason = False, job.stopping
        keeps = leaves or reason == HELD
        if not goes_on:
            job.has_ended, job.is_held = True, keeps
        self._router.send(worker.identity, TrialVerdict(report.worker_id, report.epoch, goes_on, reason, keeps))
        phase = self._study.rows[job.number].phase
        self.on_change(of_report(job.number, report.epoch, report.value, phase, (goes_on, reason)))

    def _on_left(self, worker: FleetWorker, left: TrialLeft) -> None:
        job = self.groups.with_worker(left.worker_id)
        if job is None:
            return
        # A function may also raise because the scheduler ended other processes of its node, such as data loaders.
        is_taken = left.end in ("raised", "lost") and worker.host in self.fleet.leaving
        job.is_excused |= is_taken
        if left.end == "raised" and not is_taken:
            why = f"rank {left.rank} on {worker.host} raised {left.text}"
            if not job.failure:
                self.on_change(f"trial {job.number} has failed: {why}; see output/trial-{job.number:04d}.txt")
            self._study.failed(job.number, why)
            job.fail(why)
            job.died(left.worker_id, 1, why, worker.pid)
        elif left.end in ("raised", "lost"):
            job.died(left.worker_id, 1, left.text, worker.pid)
        else:
            if left.end in ("returned", "ended"):
                job.has_ended = True
            if left.end == "returned" and left.rank <= 0:
                self._study.returned(job.number, left.value)
            job.left(left.worker_id)

    def _on_killed_left(self, worker: FleetWorker) -> None:
        """Handle a killed worker whose function has caught the interrupt: the message of the worker is no result."""
        job, member_id = self.groups.with_worker(worker.member_id), worker.member_id
        self.fleet.spare(worker)
        self._router.send(worker.identity, PoolRetire())  # an interrupt under way must not end another trial
        if job is not None:
            words = f"a worker of trial {job.number} on {worker.host} (process {worker.pid}) was interrupted"
            job.died(member_id, 1, words, worker.pid)

    # -- processes and hosts ------------------------------------------------------------------------------------------

    def _on_events(self, found: Sequence[ProviderEvent]) -> None:
        """Handle starts and exits of processes, and hosts that are offered, leave and are lost."""
        fleet, least = self.fleet, self._terms.workers[0]
        for event in found:
            if isinstance(event, HostLost):
                events.logger.warning("the search goes on without host %s: %s", event.host, event.reason)
            for worker in fleet.on(event):
                self._on_exited(worker)
            if isinstance(event, HostLost) and not fleet.slots and not fleet.may_grow:
                raise ControlError(f"no host of the search is left; the last one was {event.host}: {event.reason}")
            if fleet.given_up is not None:
                words = self._provider.explain(fleet.given_up)
                raise ControlError(f"the workers of the search end before they have begun: the last one{words}")
        fleet.tick(time.monotonic())
        self._carry_out()
        self.groups.leave_lost_hosts()
        if fleet.size < least and not fleet.may_grow:
            raise ControlError(
                f"{fleet.size} workers of the pool are left, and a trial has {least} at least: {self._provider.remedy}"
            )

    def _on_exited(self, worker: FleetWorker) -> None:
        job = self.groups.with_worker(worker.member_id)
        if job is not None and worker.exited is not None:
            exited = words_of(worker.exited)
            words = f"a worker of trial {job.number} on {worker.host} (process {worker.pid}) {exited}"
            self.on_change(words)
            job.died(worker.member_id, worker.exited.code or 1, words, worker.pid)

    def _kill(self, worker: FleetWorker) -> None:
        self.fleet.kill(worker, time.monotonic())
        self._carry_out()

    def _carry_out(self) -> None:
        """Carry out the orders of the fleet."""
        for order in self.fleet.take_orders():
            if isinstance(order, KillProcess):
                self._provider.kill(*order)
            else:
                is_lent = self._provider.lends
                specs = [pool_worker(worker_id, self._contact, is_lent=is_lent) for worker_id in order.worker_ids]
                self._provider.start(order.host, specs)

    # -- decisions ----------------------------------------------------------------------------------------------------

    def _turn(self, now: float) -> None:
        self.groups.turn(now)
        self.groups.leave_hosts()
        for host in self.fleet.vacated:
            self._provider.release(host)
        for job in self.groups.done:
            self._on_done(job)
        if now >= self._ends_s and math.isinf(self._stops_s):
            self._end(now)
        self._allot(now)
        if self.fleet.size != self._size:
            self.on_change(f"the pool has {self.fleet.size} workers; before: {self._size}")
            self._size = self.fleet.size

    def _on_done(self, job: TrialJob) -> None:
        self.groups.remove(job)
        if self.groups.of(job.number):  # it was resumed while its workers were leaving, and has others
            self.on_change("")
            return
        # For a trial that has not returned: its workers may have left in good order, for example by sys.exit(0).
        lost = (
            "" if job.stopping or job.is_held else job.failure or "its workers have ended, and rank 0 has not returned"
        )
        self._study.released(job.number, lost="" if job.is_excused else lost)
        is_lost = bool(lost) and self._study.rows[job.number].phase == "running"
        self.on_change(f"trial {job.number} has lost its workers: {lost}" if is_lost else "")

    def _end(self, now: float) -> None:
        """End the search because its time is over: trials leave at their next commit, or are abandoned later."""
        self._stops_s = now + STOP_S
        for job in self.groups:
            job.stop("the time of the search is over")

    def _allot(self, now: float) -> None:
        study, rungs_s = self._study, self._measured.first_rungs_s
        at_work, kept = self.groups.at_work()
        noises = self._measured.noises
        running = [Running(job.number, *study.rung(study.rows[job.number]), noises.get(job.number)) for job in at_work]
        left = Time(self._ends_s - now, statistics.median(rungs_s) if rungs_s else 0.0)
        waiting = study.waiting if math.isinf(self._stops_s) else 0
        busy = {worker.host for worker in self.fleet if worker.member_id >= 0}
        self._provider.want(demand(running, waiting, self._terms.workers, left), busy)
        shares, begin, _ = allot(running, waiting, self.fleet.size - kept, self._terms.workers, left)
        for job in at_work:
            share = next(share for share in shares if share.number == job.number)
            before = job.size
            if self.groups.resize(job, share.size):
                reason = share.reason or "others wait"
                self.on_change(f"trial {job.number}: {before} -> {job.size} workers: {reason}")
        for _ in range(begin):
            if self.groups.free < self._terms.workers[0]:
                return
            number, reason = study.next()
            if number is None:
                return
            self._begin(number, reason, now)

    def _begin(self, number: int, reason: str, now: float) -> None:
        least, row = self._terms.workers[0], self._study.rows[number]
        kept = read_reported(self._terms.folder_of(number), key_of(row.parameters, row.seed))
        if kept is not None and kept[0] > row.epoch:  # of a worker that died before it reported it
            goes_on, why = self._study.report(number, *kept, read_metrics(self._terms.folder_of(number)))
            if not goes_on:
                self._study.released(number)
                self.on_change(of_report(number, *kept, row.phase, (goes_on, why)))
                return
        job = self.groups.begin(number, self._router.reaches)
        if not row.values:
            self._measured.begun_s[number] = now
        self.groups.resize(job, least)
        self.on_change(f"trial {number} {'goes on' if row.values else 'begins'}, workers: {least}; {reason}")
