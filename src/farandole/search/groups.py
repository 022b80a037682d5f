"""``TrialGroups``: which workers of a fleet train which trial of a search.

    groups = TrialGroups(fleet, study, limits, router.send, kill, reaches_out=False)
    job = groups.begin(number=17, is_connected=router.reaches)
    groups.resize(job, 2)                           # as far as workers are free
    groups.handle_session_message(identity, message)
    groups.turn(now)                                # decisions of memberships; orders to free workers
    groups.of(17)                                   # [job]; two, if it was resumed while its workers leave

Each trial that has workers is a ``TrialJob``, whose membership decides as that of any elastic job. But its workers are
free workers of the fleet, which are ordered to join, and not processes that are started for it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, final

from farandole.control.messages import Hello, Refuse
from farandole.control.search_messages import PoolHostView, TrialOrder
from farandole.elastic.membership import actions
from farandole.events import logger
from farandole.launch.providers.fleet import Fleet, FleetWorker
from farandole.runtime.coordination.downlink import CONTROL, Send
from farandole.search.study import Study, StudyTrial
from farandole.search.trial_job import TrialJob, job_of
from farandole.settings import Settings


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
class TrialGroups:
    """Jobs of the trials that have workers; ``kill`` kills a worker at once. Iteration is over the jobs."""

    def __init__(
        self,
        fleet: Fleet,
        study: Study,
        limits: SearchLimits,
        send: Send,
        kill: Callable[[FleetWorker], object],
        *,
        reaches_out: bool,
    ) -> None:
        self._fleet, self._study, self._limits = fleet, study, limits
        self._send, self._kill, self._reaches_out = send, kill, reaches_out
        self._jobs: dict[int, TrialJob] = {}
        self._starts: list[tuple[TrialJob, actions.Start]] = []
        """Starts that memberships have decided, and that wait for a free worker on their host."""
        self._uids: dict[bytes, TrialJob] = {}  # by session: common prefix of its sockets' identities
        self._next = 0

    def __iter__(self) -> Iterator[TrialJob]:
        return iter(list(self._jobs.values()))

    def __len__(self) -> int:
        return len(self._jobs)

    def with_worker(self, member_id: int) -> TrialJob | None:
        """Job with this worker id among its own; ``None`` if it has ended, or if there is none (-1)."""
        return self._jobs.get(job_of(member_id)) if member_id >= 0 else None

    def of(self, number: int) -> list[TrialJob]:
        """Jobs of a trial."""
        return [job for job in self if job.number == number]

    def size(self, number: int) -> int:
        """Number of workers that a trial has now."""
        return sum(len(self._fleet.of(job.workers)) for job in self.of(number))

    def hosts(self) -> list[PoolHostView]:
        """Hosts of the fleet with the trials that they have, for users."""
        leaving = self._fleet.leaving
        slots = {**self._fleet.slots, **dict.fromkeys(leaving, 0)}
        trials = {host: [job.number for job in self if host in job.slots] for host in slots}
        return [PoolHostView(host, slots[host], trials[host], host in leaving) for host in slots]

    def at_work(self) -> tuple[list[TrialJob], int]:
        """Jobs that can change their size, and the number of workers of jobs that are about to pause."""
        trains = [job for job in self if not (job.has_ended or job.failure or job.stopping)]
        pauses = [job for job in trains if self._study.is_paused or self._study.rows[job.number].is_held]
        return [job for job in trains if job not in pauses], sum(job.size for job in pauses)

    @property
    def free(self) -> int:
        """Number of free workers, without those that waiting starts will use."""
        return max(0, len(self._fleet.free) - len(self._starts))

    # -- from the first worker to the last ----------------------------------------------------------------------------

    def begin(self, number: int, is_connected: Callable[[bytes], bool]) -> TrialJob:
        """Make a job for a trial, without workers yet; ``is_connected`` tells whether a session's socket is open."""
        job = TrialJob(self._next, number, self._send, self._limits.settings)
        job.controller.registry.is_connected = is_connected
        self._next += 1
        self._jobs[job.index] = job
        return job

    def resize(self, job: TrialJob, size: int) -> bool:
        """Give workers to a trial, as far as there are free workers, or take workers from it; false: no change."""
        size = min(size, job.size + self.free)
        if size == job.size:
            return False
        job.resize(self._spread(job.slots, size))
        for order in job.tick(time.monotonic()):
            self._obey(job, order)
        self._serve_starts()
        return True

    def handle_session_message(self, identity: bytes, message: Any) -> None:
        """Handle a message of a session; its ``Hello`` tells by the worker id which trial it is of."""
        uid = identity[:-1]
        if isinstance(message, Hello):
            job = self._jobs.get(job_of(message.worker_id))
            if job is None or message.worker_id not in job.workers:
                self._send(uid + CONTROL, Refuse("the trial is over", orderly=True))
                return
            self._uids[uid] = job
        job = self._uids.get(uid)
        if job is not None and job.index in self._jobs:
            job.handle_session_message(identity, message)

    def turn(self, now: float) -> None:
        """Carry out what the memberships have decided, as far as workers are free."""
        for job in self:
            for order in job.tick(now):
                self._obey(job, order)
        self._serve_starts()
        self._move_starts()

    @property
    def done(self) -> list[TrialJob]:
        """Jobs that no worker has, and none will join again."""
        over = [job for job in self if job.is_over or job.has_ended or job.failure or job.stopping]
        return [job for job in over if not self._fleet.of(job.workers)]

    def remove(self, job: TrialJob) -> None:
        """Forget a job that is done."""
        del self._jobs[job.index]
        self._uids = {uid: each for uid, each in self._uids.items() if each is not job}
        self._starts = [each for each in self._starts if each[0] is not job]

    # -- hosts --------------------------------------------------------------------------------------------------------

    def leave_lost_hosts(self) -> None:
        """Let trials go on without the workers that they had on hosts that are lost."""
        for job in self:
            if gone := job.slots.keys() - self._fleet.slots.keys() - self._fleet.leaving:
                self._take_away(job, gone, f"its hosts are lost: {', '.join(sorted(gone))}")

    def _take_away(self, job: TrialJob, hosts: Collection[str], why: str) -> None:
        """Let a trial go on without its workers on these hosts; a trial without other workers begins again."""
        if left := {host: slots for host, slots in job.slots.items() if host not in hosts}:
            job.resize(left)
        else:
            job.slots = {}
            job.fail(why)

    def leave_hosts(self) -> None:
        """Move trials away from hosts that a scheduler takes back, to others if possible."""
        leaving, (least, most) = self._fleet.leaving, self._limits.workers
        for job in self:
            if leaving & job.slots.keys() and not job.stopping:
                size = job.size
                job.slots = {host: slots for host, slots in job.slots.items() if host not in leaving}
                # If no worker stays, old and new workers form one generation, in which the state is transferred.
                new = min(size - job.size, self.free, most if job.slots else most - size)
                if job.size + new >= least:
                    job.resize(self._spread(job.slots, job.size + new))
                else:  # it begins again from its last report, which may be the one at which it leaves
                    job.stop("its hosts are wanted back, and too few others are free")

    # -- inside -------------------------------------------------------------------------------------------------------

    def _obey(self, job: TrialJob, order: actions.Decision) -> None:
        action = order.action
        logger.debug("trial %d: %s (%s)", job.number, action, order.reason)
        if isinstance(action, actions.Start):
            self._starts.append((job, action))
        elif isinstance(action, actions.Kill):
            workers = self._fleet.of([action.worker_id])
            for worker in workers:
                self._kill(worker)
            if not workers:
                self._starts = [each for each in self._starts if each[1].worker_id != action.worker_id]
                job.died(action.worker_id, 1, order.reason)

    def _serve_starts(self) -> None:
        """Order free workers to join, as far as there are any on the hosts that the memberships have chosen."""
        left, levels = [], self._study.plan.rungs.levels
        for job, start in self._starts:
            is_lost = start.host not in self._fleet.slots
            if is_lost or job.index not in self._jobs or job.has_ended or job.failure or job.stopping:
                if job.index in self._jobs:
                    job.died(start.worker_id, 1, "the trial needs it no more")
                continue
            order = self._limits.order(self._study.rows[job.number], levels, start.worker_id, self._reaches_out)
            if (worker := self._send_order(start.host, order)) is None:
                left.append((job, start))
            else:
                job.controller.worker_started(start.worker_id, worker.pid, worker.host)
        self._starts = left

    def _send_order(self, host: str, order: TrialOrder) -> FleetWorker | None:
        """Order a free worker on ``host`` to join, and return it; a worker that cannot be reached is killed."""
        for worker in [each for each in self._fleet.free if each.host == host]:
            if self._send(worker.identity, order):
                worker.member_id = order.worker_id
                return worker
            self._kill(worker)  # in case it is only disconnected, after which it exits anyway
        return None

    def _move_starts(self) -> None:
        """Let trials use other hosts if they wait for a worker on a host that has too few workers left."""
        for host, size in self._fleet.slots.items():
            surplus = sum(job.slots.get(host, 0) for job in self) - size
            waiting = [job for job, start in self._starts if start.host == host]
            for job in waiting[: max(0, surplus)]:
                if job.slots[host] > 1:
                    job.resize({**job.slots, host: job.slots[host] - 1})
                else:
                    self._take_away(job, {host}, f"no worker is left for it on {host}")

    def _spread(self, slots: Mapping[str, int], size: int) -> dict[str, int]:
        return self._fleet.spread(slots, size, [start.host for _, start in self._starts])
