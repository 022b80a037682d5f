"""Thread that accesses the run folder for a controller: it claims generations and notices a new leader.

    thread = LeaderThread(folder, contact)            # publishes the contact, and again if it was overwritten
    thread.claim(LeaderEntry(2, generation=7, members=...))
    thread.claimed()            # [7], after it is in the log; thread.fd is readable then
    thread.superseded           # why this leader was replaced; "" while it leads
    thread.look()               # check now, and signal fd

A controller that waited for a file server would serve no worker, and would not react to Ctrl-C, so a thread waits. It
takes entries from the queue ``_entries``, and sets the numbers in ``_claimed``, the sentence in ``superseded`` and the
time in ``sure_s``, which only the thread writes; after a change it signals ``fd``. The thread is a daemon: stuck in the
kernel it cannot be joined.

A folder that does not answer does not end the job: the current generation trains on, and no other one is formed
meanwhile. The contact file is written last, so that a delay there delays no claim.
"""

from __future__ import annotations

import math
import queue
import threading
import time
from collections import deque
from typing import Final, final

from farandole.control.wakeup import Wakeup
from farandole.events import logger
from farandole.launch.hosts.leader_log import LeaderEntry, LeaderLog, SupersededError
from farandole.launch.hosts.run_folder import RunContact, RunFolder

LOOK_S = 1.0
"""Pause between two checks for another leader, and between two attempts to claim."""

UNSURE_S = 5 * LOOK_S
"""Time without a check after which a leader does not decide about leases: another leader may have them."""

_LOOK: Final = LeaderEntry(0)
"""Sentinel that makes the thread check at once."""


@final
class LeaderThread:
    """Thread of one controller; ``contact``: that of its leader."""

    def __init__(self, folder: RunFolder, contact: RunContact, every_s: float = LOOK_S) -> None:
        self.superseded = ""
        """Sentence that names the new leader; "" while this one leads."""
        self.sure_s = -math.inf
        """Last time (``time.monotonic``) at which this leader was certainly current; ``-inf`` before any check."""
        self._log, self._folder, self._contact, self._every_s = LeaderLog(folder.path), folder, contact, every_s
        self._entries: queue.Queue[LeaderEntry | None] = queue.Queue()
        self._claimed: deque[int] = deque()
        self._told: set[str] = set()
        """Parts of the folder about which a warning was logged."""
        self._closed = False
        self._wakeup = Wakeup()
        self._thread = threading.Thread(target=self._serve, name="farandole-lead", daemon=True)
        self._thread.start()

    @property
    def fd(self) -> int:
        """Descriptor that is readable after a change."""
        return self._wakeup.fd

    def claim(self, entry: LeaderEntry) -> None:
        """Append an entry, without waiting."""
        self._entries.put(entry)

    def claimed(self) -> list[int]:
        """Numbers of the generations that were added to the log since the last call."""
        self._wakeup.clear()  # before the queue is read: a later entry signals again
        return [self._claimed.popleft() for _ in range(len(self._claimed))]

    def look(self) -> None:
        """Check for another leader, without waiting; ``fd`` becomes readable with the result."""
        self._entries.put(_LOOK)

    def close(self, patience_s: float) -> None:
        """End the thread; wait at most ``patience_s`` for it."""
        self._entries.put(None)
        self._thread.join(patience_s)  # it may be stuck in the kernel
        self._closed = True
        self._wakeup.close()

    def _serve(self) -> None:
        waiting: deque[LeaderEntry] = deque()
        self._work(waiting, is_asked=False)
        while not self.superseded:
            is_asked = False
            try:
                entry = self._entries.get(timeout=self._every_s)
                if entry is None or self._closed:
                    return
                is_asked = entry is _LOOK
                waiting.extend(() if is_asked else (entry,))
            except queue.Empty:
                pass
            self._work(waiting, is_asked=is_asked)

    def _work(self, waiting: deque[LeaderEntry], *, is_asked: bool) -> None:
        """Check for another leader, append waiting claims, publish the contact. The next call retries failures."""
        try:
            self._look(is_asked=is_asked)
            while waiting and not self._closed:  # if it was stuck, its controller may have been replaced meanwhile
                self._log.append(waiting[0])
                self._claimed.append(waiting.popleft().generation)
                self._wakeup.signal()
        except SupersededError as error:
            self.superseded = str(error)
            self._wakeup.signal()
            return
        except Exception as error:
            after = "training goes on, but the next generation waits until it can be used"
            self._complain("log", f"the log of leaders in the run folder cannot be used ({error}): {after}")
            return  # the contact file may belong to another leader
        self._told.discard("log")
        try:
            self._folder.ensure(self._contact)
        except Exception as error:
            after = "training goes on, but until it can be, no leases join, and farandole ps and stop may not reach it"
            self._complain("contact", f"the contact of this run cannot be published ({error}): {after}")
        else:
            self._told.discard("contact")

    def _look(self, *, is_asked: bool) -> None:
        began_s, last_s = time.monotonic(), self.sure_s
        self._log.check(self._contact.epoch)
        self.sure_s = began_s
        if is_asked or began_s - last_s > UNSURE_S:
            self._wakeup.signal()

    def _complain(self, what: str, text: str) -> None:
        """Warn that a part of the folder cannot be used; once until it can be used again."""
        if what not in self._told:
            self._told.add(what)
            logger.warning("%s", text)
