"""End of a run: cancel the scheduler jobs of its leases, and no other jobs.

jobs, left = end_leases(folder, read_supply(folder))
for line in left: print(line)
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterator, Sequence

from farandole.errors import UsageError
from farandole.launch.hosts.run_folder import RunFolder
from farandole.launch.leases.folder_thread import JOURNAL, last
from farandole.launch.leases.job_arrays import LeaseSupply
from farandole.launch.leases.scheduler import (
    CallDone,
    CallRefused,
    CallUnanswered,
    Scheduler,
    Submitted,
    wait_for_answers,
)
from farandole.launch.leases.slurm import SlurmScheduler

PATIENCE_S = 60.0
"""Time for the scheduler to cancel the leases."""


def slurm() -> Scheduler:
    """Slurm, as the user of this process."""
    return SlurmScheduler(os.environ)


def end_leases(
    folder: RunFolder, supply: LeaseSupply, lead: Sequence[str] = (), connect: Callable[[], Scheduler] = slurm
) -> tuple[list[str], list[str]]:
    """Cancel all leases of a run, and its ``lead`` job; returns these jobs, and a text for each that may be left."""
    unknown = []
    try:
        arrays, doubted = arrays_of(folder, supply)
    except UsageError as error:  # the first array can be cancelled all the same
        arrays, doubted, unknown = [supply.array] if supply.array else [], [], [f"leases may be left: {error}"]
    scheduler = connect()
    try:
        return [*lead, *arrays], [*cancelled(scheduler, [*lead, *arrays], doubted), *unknown]
    finally:
        scheduler.close()


def arrays_of(folder: RunFolder, supply: LeaseSupply) -> tuple[list[str], list[str]]:
    """Numbers of the arrays that a run has submitted, and nonces of arrays that it may have submitted.

    Raises ``UsageError`` where its journal cannot be read.
    """
    try:
        found = last(folder)
    except OSError as error:
        raise UsageError(
            f"{folder.path / JOURNAL} cannot be read: {error.strerror}; try again, or look with squeue --me which "
            "leases there are, and cancel them with scancel"
        ) from error
    leases = found.seen.leases if found is not None else ()
    # Not those of guests: their arrays belong to other users, or to another purpose of this user.
    own = (lease.job.partition("_")[0] for lease in leases if "_" in lease.job and not lease.guest)
    answered, asked = (found.seen.arrays_answered, found.after.arrays) if found is not None else (0, 0)
    first = 1 if supply.array else 0  # submitted with the leader
    # One more nonce, because the last line of the journal may be lost with the controller.
    doubted = [supply.nonce_of(serial) for serial in range(max(answered, first) + 1, max(asked, first) + 2)]
    return [array for array in dict.fromkeys([supply.array, *own]) if array], doubted


def cancelled(
    scheduler: Scheduler, arrays: Collection[str], nonces: Collection[str] = (), patience_s: float = PATIENCE_S
) -> Iterator[str]:
    """Cancel these arrays and the arrays with these nonces; yields a text for each that may be left."""
    left = [*arrays, *nonces]
    for nonce in nonces:
        scheduler.find(nonce)
    for array in arrays:
        scheduler.cancel(array)
    until_s = time.monotonic() + patience_s
    while left and time.monotonic() < until_s:
        wait_for_answers(scheduler, until_s)
        for answer in scheduler.answers():
            if isinstance(answer, Submitted):
                left[left.index(answer.nonce)] = answer.array  # "": no such array
                _cancel(scheduler, answer.array)
            elif isinstance(answer, CallDone):
                left.remove(answer.job)
            elif isinstance(answer, CallRefused | CallUnanswered):
                left.remove(answer.subject)
                yield f"leases {answer.subject} may be left: {answer.words}; look with squeue --me"
        left = [each for each in left if each]
    for array in left:
        yield f"leases {array} may be left: the scheduler has not answered for {patience_s:g} s; look with squeue --me"


def _cancel(scheduler: Scheduler, array: str) -> None:
    if array:
        scheduler.cancel(array)
