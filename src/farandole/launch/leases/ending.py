"""End of a run: what its scheduler still has of it is cancelled, by its own numbers and no other.

for line in cancelled(SlurmScheduler(os.environ), ["812", "815"]): print(line)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from farandole.launch.hosts.run_folder import RunFolder
from farandole.launch.leases.folder_thread import last
from farandole.launch.leases.scheduler import CallDone, CallRefused, CallUnanswered, Scheduler, answered
from farandole.launch.leases.supply import LeaseSupply

PATIENCE_S = 60.0
"""Time for the scheduler to cancel what is left."""


def arrays_of(folder: RunFolder, supply: LeaseSupply) -> list[str]:
    """Numbers of the arrays that a run has submitted."""
    found = last(folder)
    leases = found.seen.leases if found is not None else ()
    arrays = [supply.array, *(lease.job.partition("_")[0] for lease in leases if "_" in lease.job)]
    return [array for array in dict.fromkeys(arrays) if array]


def cancelled(scheduler: Scheduler, arrays: Iterable[str], patience_s: float = PATIENCE_S) -> Iterator[str]:
    """Cancel what is left of these arrays; yields what could not be cancelled, in words."""
    left = list(arrays)
    for array in left:
        scheduler.cancel(array)
    for answer in answered(scheduler, len(left), patience_s):
        if isinstance(answer, CallDone):
            left.remove(answer.job)
        elif isinstance(answer, CallRefused | CallUnanswered):
            left.remove(answer.subject)
            yield f"leases {answer.subject} may be left: {answer.words}; look with squeue --me"
    for array in left:
        yield f"leases {array} may be left: the scheduler has not answered for {patience_s:g} s; look with squeue --me"
