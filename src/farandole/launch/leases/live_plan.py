"""Dry run of the policy of a running job: what it would decide now, after a look at the queue.

for decision in dry_run(RunFolder("~/runs/cosmo"), SlurmScheduler(os.environ), time.time()): print(decision.reason)

It starts from the last line of the run's journal, so it decides what the run itself would decide after the same look.
"""

from __future__ import annotations

import msgspec

from farandole.errors import UsageError
from farandole.launch.hosts.run_folder import RunFolder
from farandole.launch.leases.actions import LOOKS, LeaseDecision
from farandole.launch.leases.decide import decide
from farandole.launch.leases.ending import arrays_of
from farandole.launch.leases.folder_thread import JOURNAL, last
from farandole.launch.leases.job_arrays import limits_in, read_supply
from farandole.launch.leases.lease_table import LeaseTable
from farandole.launch.leases.scheduler import CallRefused, CallUnanswered, Looked, Scheduler, answered

PATIENCE_S = 60.0
"""Timeout for the looks at the queue."""


def dry_run(folder: RunFolder, scheduler: Scheduler, now_s: float) -> list[LeaseDecision]:
    """Look at the queue and decide; raises ``UsageError`` if there is no run, or the scheduler does not answer."""
    folder.check()
    try:
        found = last(folder)
    except OSError as error:
        raise UsageError(f"{folder.path / JOURNAL} cannot be read: {error.strerror}; try again") from error
    if found is None:
        raise UsageError(f"there is no journal of leases in {folder.path}: nothing has been decided there yet")
    supply = read_supply(folder)
    limits = limits_in(folder, supply, found.limits.min_np, found.limits.max_np)
    book = LeaseTable()
    book.restore(found.seen.leases, found.seen.node_hours, found.seen.now_s)
    arrays, _ = arrays_of(folder, supply)
    for array in arrays:
        scheduler.look(array)
    for answer in answered(scheduler, len(arrays), PATIENCE_S):
        if isinstance(answer, CallRefused | CallUnanswered):
            raise UsageError(f"a look at {answer.subject} failed: {answer.words}")
        if isinstance(answer, Looked):
            book.look(answer.array, answer.jobs, now_s)
    orders = (*found.asked, *book.orders())
    seen = msgspec.structs.replace(
        found.seen, now_s=now_s, leases=book.leases, orders=orders, refusals=(), looked_s=0.0
    )
    _, decisions = decide(limits, found.after, seen)
    return [decision for decision in decisions if not isinstance(decision.action, LOOKS)]
