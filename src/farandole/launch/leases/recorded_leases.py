"""Lease manager of a run folder, whose journal and policy file a thread reads and writes.

    leases = RecordedLeases(folder, supply, limits, read_limits, say)
    leases.attend()                                     # leases.folder_fd was readable: the journal has been read
    leases.when_read(partial(leases.manager.book.admit, offer, now_s))
    for host, why in leases.turn(now_s, have=6, own=2, training=hosts): ...     # this host must leave
    leases.close()                                      # or leases.end(), which cancels them, too

Only the loop's thread calls it. The journal has one writer: the live controller. Until the previous controller's last
line has been read, which takes as long as the file system needs, no lease is decided, and calls wait in ``_later``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from typing import final

from farandole.control.run_messages import RunReply
from farandole.launch.hosts.run_folder import RunFolder
from farandole.launch.leases.ending import end_leases, slurm
from farandole.launch.leases.folder_thread import FolderThread, append_line
from farandole.launch.leases.job_arrays import LeaseSupply
from farandole.launch.leases.limits import LeaseLimits
from farandole.launch.leases.manager import LeaseManager
from farandole.launch.leases.observation import Hold, Resume
from farandole.launch.leases.scheduler import Scheduler

CLOSE_S = 1.0
"""Time for the last lines of the journal."""


@final
class RecordedLeases:
    """Leases of one run, in one controller; ``read`` reads its ``limits`` again.

    A supply without a script has only the leases that users lend.
    """

    def __init__(
        self,
        folder: RunFolder,
        supply: LeaseSupply,
        limits: LeaseLimits,
        read: Callable[[], LeaseLimits],
        say: Callable[[str], object],
        connect: Callable[[], Scheduler] = slurm,
    ) -> None:
        self._folder, self._supply, self._connect = folder, supply, connect
        self.files = FolderThread(folder, read)
        self.manager = LeaseManager(limits, supply, connect() if supply.script else None, self.files.write, say)
        self.began_s = time.time()
        self._say = say
        self._later: list[Callable[[], object]] | None = []
        """Calls to make after the journal has been read; ``None`` afterwards."""

    @property
    def is_read(self) -> bool:
        """True after the journal has been read."""
        return self._later is None

    @property
    def folder_fd(self) -> int:
        """Descriptor that is readable when ``attend`` has something to do."""
        return self.files.fd

    @property
    def fds(self) -> tuple[int, ...]:
        """Descriptors that are readable when ``turn`` has something to do."""
        return self.manager.fds

    @property
    def deadline_s(self) -> float | None:
        """Time (of ``time.monotonic``) at which ``turn`` has something to do."""
        due_s = self.manager.due_s(time.time()) if self.is_read else None
        return None if due_s is None else time.monotonic() + due_s

    def attend(self) -> None:
        """Handle the previous controller's journal, after the thread has read it."""
        self.files.heard()
        for found in self.files.begun():
            if found is not None:  # or of the leader before this job was requeued
                self.manager.restore(found.after, found.seen, self.began_s, found.asked)
            later, self._later = self._later or [], None
            for call in later:
                call()

    def when_read(self, call: Callable[[], object]) -> None:
        """Make a call now, or after the journal has been read, in order."""
        if self._later is None:
            call()
        else:
            self._later.append(call)

    def turn(self, now_s: float, have: int | None, own: int, training: Collection[str]) -> Iterator[tuple[str, str]]:
        """See ``LeaseManager.turn``; applies a policy file that was read again, and waits for the journal."""
        found = self.files.limits()
        if isinstance(found, str):
            self._say(f"{found}; the policy stays what it was")
        elif found is not None:
            self.manager.limits = found
        if self.is_read:
            yield from self.manager.turn(now_s, have, own, training)

    def obey(self, verb: str) -> RunReply | None:
        """Obey ``hold`` or ``release``, at the next turn; ``None`` for any other order."""
        if verb == "hold":
            self.manager.order(Hold())
            return RunReply(True, "no more leases are released; go on with: farandole release")
        if verb == "release":
            self.manager.order(Resume())
            return RunReply(True, "the policy decides again")
        return None

    def close(self) -> None:
        """Stop running scheduler commands, and write the last lines of the journal."""
        self.manager.close()
        self.files.close(CLOSE_S)

    def end(self) -> list[str]:
        """Close, and cancel all leases; returns a text for each that may be left. A later call has their node-hours."""
        last = self.manager.ended(time.time()) if self.is_read else ""
        self.close()
        left = end_leases(self._folder, self._supply, connect=self._connect)[1]
        if last and not left:
            append_line(self._folder, last)
        return left
