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
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, final

from farandole import events
from farandole.cluster.contact import Contact
from farandole.control.agent_messages import AGENT
from farandole.control.channel import Router
from farandole.control.messages import Hello, Refuse
from farandole.control.run_messages import PERSON, RunOrder, RunQuestion, RunReply
from farandole.control.search_messages import (
    PoolHello,
    PoolHostView,
    PoolRetire,
    PoolView,
    TrialLeft,
    TrialOrder,
    TrialReport,
    TrialVerdict,
)
from farandole.control.watch_messages import WATCHER
from farandole.elastic.membership import actions
from farandole.elastic.membership.job_events import HostLost
from farandole.errors import ControlError
from farandole.launch.providers.fleet import Fleet, FleetWorker, KillProcess, ProcessState
from farandole.launch.providers.provider import Provider, ProviderEvent, words_of
from farandole.runtime.coordination.downlink import CONTROL
from farandole.search import wording
from farandole.search.allot import Noise, Running, Time, allot, demand
from farandole.search.rung_checkpoint import key_of, read_metrics, read_reported
from farandole.search.study import HELD, Study, StudyTrial
from farandole.search.trial_job import TrialJob, job_of
from farandole.search.watch import SearchWatch
from farandole.search.worker import POOL, pool_worker
from farandole.settings import Settings
from farandole.version import __version__

STOP_S = 10.0
"""Time for trials to leave at a commit when the search's time is over."""


class SearchLimits(NamedTuple):
    """Limits of a search: workers of one trial, its deadline, its folder, its function, pickled, and its settings."""

    workers: tuple[int, int]
    deadline_s: float
    folder: Path
    call: bytes
    settings: Settings

    def folder_of(self, number: int) -> Path:
        """Folder of the checkpoints of a trial."""
        return self.folder / "checkpoints" / f"trial-{number:04d}"

    def order(self, row: StudyTrial, levels: Sequence[int], worker_id: int, reaches_out: bool) -> TrialOrder:
        """Order for a worker to join a trial; ``reaches_out``: the search has workers on several hosts."""
        return TrialOrder(
            worker_id,
            row.number,
            dict(row.parameters),
            row.seed,
            levels[-1],
            # With several hosts, a lost host may end all workers of a trial: then write a checkpoint at each report.
            # Write one at the last rung, too, because a later call may ask for more epochs.
            list(range(1, levels[-1] + 1) if reaches_out else levels),
            str(self.folder_of(row.number)),
            str(self.folder / "output" / f"trial-{row.number:04d}.txt"),
            self.workers[1],
            self.call,
        )


@final
@dataclass
class _Measured:
    """Measurements of trials: begin of each trial, times that some took to their first rung (in s), and noise."""

    begun_s: dict[int, float] = field(default_factory=dict)
    first_rungs_s: list[float] = field(default_factory=list)
    noises: dict[int, Noise] = field(default_factory=dict)


@final
class SearchLoop:
    """Loop over the trials of ``study``. Calls ``on_change`` when a trial begins, reports, or gives workers back.

    The argument of ``on_change`` describes the change.
    """

    def __init__(self, router: Router, study: Study, provider: Provider, terms: SearchLimits) -> None:
        self.on_change: Callable[[str], object] = lambda _: None
        self.watch: SearchWatch | None = None
        """Record and orders of watchers, if the search is recorded."""
        self.jobs: dict[int, TrialJob] = {}
        """Jobs of the trials that have workers, by their index."""
        self.fleet = Fleet(provider.slots, provider.heed_s)
        self._router, self._study, self._provider, self._terms = router, study, provider, terms
        self._contact = Contact([], "")
        self._starts: list[tuple[TrialJob, actions.Start]] = []
        """Starts that memberships have decided, and that wait for a free worker on their host."""
        self._watched: set[int] = set()
        self._page = -1  # pidfd of the live page's process
        self._uids: dict[bytes, TrialJob] = {}  # by session: common prefix of its sockets' identities
        self._next_job, self._size = 0, self.fleet.size
        self._measured = _Measured()
        self._ends_s = time.monotonic() + terms.deadline_s
        self._stops_s = math.inf  # end of the time to leave after the search's deadline

    def __enter__(self) -> SearchLoop:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for worker in self.fleet:
            if worker.identity:
                self._router.send(worker.identity, PoolRetire())
        for fd in self._watched:
            self._router.unwatch(fd)
        self._watched = set()

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
        while not self._is_over():
            self._watch()
            ready = self._router.wait(self._patience_s())
            messages = list(iter(self._router.recv, None))
            mail = [each for each in messages if each[0].startswith(AGENT) or isinstance(each[1], PoolHello)]
            for identity, message in messages:
                if not identity.startswith(AGENT):  # first: a worker's last message may arrive after its exit's report
                    self._handle_message(identity, message)
            if self._page in ready:
                self._lose_page()
            for fd in (ended := ready & self._watched):  # which the provider may close
                self._router.unwatch(fd)
            self._watched -= ended
            self._on_events(self._provider.events(time.monotonic(), ended, mail))
            self.fleet.tick(time.monotonic())
            self._carry_out()
            self._turn(time.monotonic())
            if self.watch is not None and self.watch.turn(self):
                self.on_change("")
                self._turn(time.monotonic())

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
            self._router.watch(self._page)
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
        for job in self._jobs_of(number):
            if job.stopping or job.failure:
                for worker in self.fleet.of(job.workers):
                    self._kill(worker)
            job.stop(why)

    def size(self, number: int) -> int:
        """Number of workers that a trial has now."""
        return sum(len(self.fleet.of(job.workers)) for job in self._jobs_of(number))

    # -- waiting ------------------------------------------------------------------------------------------------------

    def _is_over(self) -> bool:
        is_left = not self._study.is_over and not self._is_ending
        return (not is_left and not self.jobs) or time.monotonic() >= self._stops_s

    @property
    def _is_ending(self) -> bool:
        return not math.isinf(self._stops_s)

    def _watch(self) -> None:
        fds = set(self._provider.fds)
        for fd in self._watched - fds:
            with contextlib.suppress(OSError):  # it is closed
                self._router.unwatch(fd)
        for fd in fds - self._watched:
            self._router.watch(fd)
        self._watched = fds

    def _lose_page(self) -> None:
        self._close_page()
        if self.watch is not None:
            self.watch.abandoned()
            self.on_change("")

    def _close_page(self) -> None:
        page, self._page = self._page, -1
        if page >= 0:
            self._router.unwatch(page)
            os.close(page)

    def _patience_s(self) -> float | None:
        moments = [self._provider.deadline_s, self.fleet.deadline_s, *(job.deadline_s for job in self.jobs.values())]
        moments.append(self._stops_s if self._is_ending else self._ends_s)
        until_s = min(moments)
        return None if until_s == math.inf else max(0.0, until_s - time.monotonic())

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
        uid = identity[:-1]
        if isinstance(message, Hello):
            job = self.jobs.get(job_of(message.worker_id))
            if job is None or message.worker_id not in job.workers:
                self._router.send(uid + CONTROL, Refuse("the trial is over", orderly=True))
                return
            self._uids[uid] = job
        job = self._uids.get(uid)
        if job is not None and job.index in self.jobs:
            job.handle_session_message(identity, message)

    def _on_person(self, identity: bytes, message: Any) -> None:
        if isinstance(message, RunQuestion):
            hosts = {**self.fleet.slots, **dict.fromkeys(self.fleet.leaving, 0)}
            at = {host: [job.number for job in self.jobs.values() if host in job.slots] for host in hosts}
            views = [PoolHostView(host, hosts[host], at[host], host in self.fleet.leaving) for host in hosts]
            self._router.send(identity, PoolView(views, self._study.summary, *self._provider.lease_views()))
        elif isinstance(message, RunOrder) and message.verb == "stop":
            self.stop()
            self._router.send(identity, RunReply(True, "the search ends: its trials leave at their next commit"))
        elif isinstance(message, RunOrder):
            self._router.send(identity, self._provider.obey(message))

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
        job = self.jobs.get(job_of(worker.member_id))
        if job is None:
            return
        if job.number in self._measured.begun_s and report.epoch >= self._study.plan.rungs.levels[0]:
            took_s = time.monotonic() - self._measured.begun_s.pop(job.number)
            self._measured.first_rungs_s.append(took_s)
        if report.batch > 0:
            self._measured.noises[job.number] = Noise(report.noise_high, report.batch)
        goes_on, reason = self._study.report(job.number, report.epoch, report.value, report.metrics)
        leaves = goes_on and bool(job.stopping)
        if leaves:
            goes_on, reason = False, job.stopping
        keeps = leaves or reason == HELD
        if not goes_on:
            job.has_ended, job.is_held = True, keeps
        self._router.send(worker.identity, TrialVerdict(report.worker_id, report.epoch, goes_on, reason, keeps))
        phase = self._study.rows[job.number].phase
        self.on_change(wording.of_report(job.number, report.epoch, report.value, phase, (goes_on, reason)))

    def _on_left(self, worker: FleetWorker, left: TrialLeft) -> None:
        job = self.jobs.get(job_of(left.worker_id))
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
        job, member_id = self.jobs.get(job_of(worker.member_id)), worker.member_id
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
        self._carry_out()
        for job in self.jobs.values():
            if gone := job.slots.keys() - fleet.slots.keys() - fleet.leaving:
                self._take_away(job, gone, f"its hosts are lost: {', '.join(sorted(gone))}")
        if fleet.size < least and not fleet.may_grow:
            raise ControlError(
                f"{fleet.size} workers of the pool are left, and a trial has {least} at least: {self._provider.remedy}"
            )

    def _on_exited(self, worker: FleetWorker) -> None:
        job = self.jobs.get(job_of(worker.member_id)) if worker.member_id >= 0 else None
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

    @staticmethod
    def _take_away(job: TrialJob, hosts: Collection[str], why: str) -> None:
        """Let a trial go on without its workers on these hosts; a trial without other workers begins again."""
        if left := {host: slots for host, slots in job.slots.items() if host not in hosts}:
            job.resize(left)
        else:
            job.slots = {}
            job.fail(why)

    # -- decisions ----------------------------------------------------------------------------------------------------

    def _turn(self, now: float) -> None:
        for job in list(self.jobs.values()):
            for order in job.tick(now):
                self._obey(job, order)
        self._serve_starts()
        self._move_starts()
        self._leave_hosts()
        for job in [job for job in self.jobs.values() if self._is_done(job)]:
            self._release(job)
        if now >= self._ends_s and not self._is_ending:
            self._end(now)
        self._allot(now)
        if self.fleet.size != self._size:
            self.on_change(f"the pool has {self.fleet.size} workers; before: {self._size}")
            self._size = self.fleet.size

    def _obey(self, job: TrialJob, order: actions.Decision) -> None:
        action = order.action
        events.logger.debug("trial %d: %s (%s)", job.number, action, order.reason)
        if isinstance(action, actions.Start):
            self._starts.append((job, action))
        elif isinstance(action, actions.Kill):
            workers = self.fleet.of([action.worker_id])
            for worker in workers:
                self._kill(worker)
            if not workers:
                self._starts = [each for each in self._starts if each[1].worker_id != action.worker_id]
                job.died(action.worker_id, 1, order.reason)

    def _serve_starts(self) -> None:
        """Order free workers to join, as far as there are any on the hosts that the memberships have chosen."""
        left = []
        for job, start in self._starts:
            is_lost = start.host not in self.fleet.slots
            if is_lost or job.index not in self.jobs or job.has_ended or job.failure or job.stopping:
                if job.index in self.jobs:
                    job.died(start.worker_id, 1, "the trial needs it no more")
            elif (worker := self._send_order(start.host, self._order(job, start))) is None:
                left.append((job, start))
            else:
                job.controller.worker_started(start.worker_id, worker.pid, worker.host)
        self._starts = left

    def _order(self, job: TrialJob, start: actions.Start) -> TrialOrder:
        row, levels = self._study.rows[job.number], self._study.plan.rungs.levels
        return self._terms.order(row, levels, start.worker_id, self._provider.reaches_out)

    def _send_order(self, host: str, order: TrialOrder) -> FleetWorker | None:
        """Order a free worker on ``host`` to join, and return it; a worker that cannot be reached is killed."""
        for worker in [each for each in self.fleet.free if each.host == host]:
            if self._router.send(worker.identity, order):
                worker.member_id = order.worker_id
                return worker
            self._kill(worker)  # in case it is only disconnected, after which it exits anyway
        return None

    def _move_starts(self) -> None:
        """Let trials use other hosts if they wait for a worker on a host that has too few workers left."""
        for host, size in self.fleet.slots.items():
            surplus = sum(job.slots.get(host, 0) for job in self.jobs.values()) - size
            waiting = [job for job, start in self._starts if start.host == host]
            for job in waiting[: max(0, surplus)]:
                if job.slots[host] > 1:
                    job.resize({**job.slots, host: job.slots[host] - 1})
                else:
                    self._take_away(job, {host}, f"no worker is left for it on {host}")

    def _leave_hosts(self) -> None:
        """Move trials away from hosts that a scheduler takes back, to others if possible, and dismiss these hosts."""
        leaving, (least, most) = self.fleet.leaving, self._terms.workers
        for job in self.jobs.values():
            if leaving & job.slots.keys() and not job.stopping:
                size = job.size
                job.slots = {host: slots for host, slots in job.slots.items() if host not in leaving}
                # If no worker stays, old and new workers form one generation, in which the state is transferred.
                new = min(size - job.size, self._free, most if job.slots else most - size)
                if job.size + new >= least:
                    job.resize(self._spread(job.slots, job.size + new))
                else:  # it begins again from its last report, which may be the one at which it leaves
                    job.stop("its hosts are wanted back, and too few others are free")
        for host in self.fleet.vacated:
            self._provider.release(host)

    def _is_done(self, job: TrialJob) -> bool:
        """True if no worker has the trial, and none will join it again."""
        has_workers = self.fleet.of(job.workers)
        return not has_workers and (job.is_over or job.has_ended or bool(job.failure) or bool(job.stopping))

    def _release(self, job: TrialJob) -> None:
        del self.jobs[job.index]
        self._uids = {uid: each for uid, each in self._uids.items() if each is not job}
        self._starts = [each for each in self._starts if each[0] is not job]
        if self._jobs_of(job.number):  # it was resumed while its workers were leaving, and has others
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
        for job in self.jobs.values():
            job.stop("the time of the search is over")

    def _allot(self, now: float) -> None:
        study, rungs_s = self._study, self._measured.first_rungs_s
        at_work = [job for job in self.jobs.values() if not (job.has_ended or job.failure or job.stopping)]
        kept = [job for job in at_work if study.is_paused or study.rows[job.number].is_held]  # they are about to pause
        at_work = [job for job in at_work if job not in kept]
        capacity = self.fleet.size - sum(job.size for job in kept)
        noises = self._measured.noises
        running = [Running(job.number, *study.rung(study.rows[job.number]), noises.get(job.number)) for job in at_work]
        left = Time(self._ends_s - now, statistics.median(rungs_s) if rungs_s else 0.0)
        waiting = 0 if self._is_ending else study.waiting
        busy = {worker.host for worker in self.fleet if worker.member_id >= 0}
        self._provider.want(demand(running, waiting, self._terms.workers, left), busy)
        shares, begin, _ = allot(running, waiting, capacity, self._terms.workers, left)
        for job in at_work:
            share = next(share for share in shares if share.number == job.number)
            self._resize(job, share.size, share.reason)
        for _ in range(begin):
            if self._free < self._terms.workers[0]:
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
                self.on_change(wording.of_report(number, *kept, row.phase, (goes_on, why)))
                return
        job = TrialJob(self._next_job, number, self._router.send, self._terms.settings)
        job.controller.registry.is_connected = self._router.reaches
        self._next_job += 1
        self.jobs[job.index] = job
        if not row.values:
            self._measured.begun_s[number] = now
        self._resize(job, least, "")
        self.on_change(f"trial {number} {'goes on' if row.values else 'begins'}, workers: {least}; {reason}")

    def _resize(self, job: TrialJob, size: int, reason: str) -> None:
        """Give workers to the trial, as far as there are free workers, or take workers from it."""
        size = min(size, job.size + self._free)
        if size == job.size:
            return
        before = job.size
        job.resize(self._spread(job.slots, size))
        for order in job.tick(time.monotonic()):
            self._obey(job, order)
        self._serve_starts()
        if before:
            self.on_change(f"trial {job.number}: {before} -> {size} workers: {reason or 'others wait'}")

    @property
    def _free(self) -> int:
        """Number of free workers, without those that waiting starts will use."""
        return max(0, len(self.fleet.free) - len(self._starts))

    def _spread(self, slots: Mapping[str, int], size: int) -> dict[str, int]:
        return self.fleet.spread(slots, size, [start.host for _, start in self._starts])

    def _jobs_of(self, number: int) -> list[TrialJob]:
        return [job for job in self.jobs.values() if job.number == number]
