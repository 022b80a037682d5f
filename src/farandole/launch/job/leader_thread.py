"""Thread of a controller that keeps its place in the run folder: it claims generations, and sees when another leads.

    thread = LeadThread(folder, contact)            # publishes the contact, and again where another one has hidden it
    thread.claim(LeadEntry(2, generation=7, members=...))
    thread.claimed()            # [7], once that stands in the log; thread.fd is readable then
    thread.superseded           # why this lead is none any more; "" while it is
    thread.look()               # look now, and ring

A controller that waited for a file server would be killed as hung, and a launcher that did would hear no Ctrl-C, so a
thread does. It takes entries from ``_entries``, a queue, and leaves numbers in ``_claimed``, a sentence in
``superseded``, a time in ``sure_s``, each of which is written by the thread alone; for news of these it rings ``fd``.
It is a daemon: stuck in the kernel it cannot be joined. ``_lock`` guards ``_closed`` and, with it, the number of that
descriptor, which may be somebody else's once it is closed.

A folder that does not answer is no reason to end: the generation that there is trains on. No other is formed meanwhile.
The contact comes last: what holds it up holds up no claim.
"""

from __future__ import annotations

import math
import os
import queue
import threading
import time
from collections import deque
from typing import Final, final

from farandole.events import logger
from farandole.launch.hosts.leader_log import LeadEntry, LeaderLog, SupersededError
from farandole.launch.hosts.run_folder import RunContact, RunFolder

LOOK_S = 1.0
"""Pause between two looks for another lead, and between two attempts to claim."""

UNSURE_S = 5 * LOOK_S
"""Time without a look after which a lead does not decide about leases, which may be another's."""

_LOOK: Final = LeadEntry(0)
"""Entry that is none, and has the thread look at once."""


@final
class LeaderThread:
    """Thread of one controller of the lead with this ``contact``."""

    def __init__(self, folder: RunFolder, contact: RunContact, every_s: float = LOOK_S) -> None:
        self.superseded = ""
        """Sentence that says that another one leads."""
        self.sure_s = -math.inf
        """Time, of ``time.monotonic``, at which this lead was the last one for certain: never, before a look."""
        self._log, self._folder, self._contact, self._every_s = LeaderLog(folder.path), folder, contact, every_s
        self._entries: queue.Queue[LeadEntry | None] = queue.Queue()
        self._claimed: deque[int] = deque()
        self._told: set[str] = set()
        """Parts of the folder of which people know that they cannot be used."""
        self._closed = False
        self._lock = threading.Lock()
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        """Readable when there is something new."""
        self._thread = threading.Thread(target=self._serve, name="farandole-lead", daemon=True)
        self._thread.start()

    def claim(self, entry: LeadEntry) -> None:
        """Have an entry appended, without waiting."""
        self._entries.put(entry)

    def claimed(self) -> list[int]:
        """Numbers of the generations that stand in the log since this was last asked."""
        try:
            os.eventfd_read(self.fd)  # before the queue is looked at: what comes later rings again
        except BlockingIOError:
            return []
        return [self._claimed.popleft() for _ in range(len(self._claimed))]

    def look(self) -> None:
        """Look whether another one leads, without waiting; ``fd`` is readable once that is known."""
        self._entries.put(_LOOK)

    def close(self, patience_s: float) -> None:
        """End the thread, if that takes no longer than ``patience_s``."""
        self._entries.put(None)
        self._thread.join(patience_s)  # it may be stuck in the kernel: then ``_closed`` keeps it from ringing
        with self._lock:
            self._closed = True
            os.close(self.fd)

    def _serve(self) -> None:
        waiting: deque[LeadEntry] = deque()
        self._work(waiting, is_asked=False)
        while not self.superseded:
            is_asked = False
            try:
                entry = self._entries.get(timeout=self._every_s)
                if entry is None:
                    return
                is_asked = entry is _LOOK
                waiting.extend(() if is_asked else (entry,))
            except queue.Empty:
                pass
            self._work(waiting, is_asked=is_asked)

    def _work(self, waiting: deque[LeadEntry], *, is_asked: bool) -> None:
        """Look, claim what waits, and see to the contact. Whatever fails is tried again: nobody else would."""
        try:
            self._look(is_asked=is_asked)
            while waiting:
                self._log.append(waiting[0])
                self._claimed.append(waiting.popleft().generation)
                self._ring()
        except SupersededError as error:
            self.superseded = str(error)
            self._ring()
            return
        except Exception as error:
            after = "training goes on, but the next generation waits until it can be used"
            self._complain("log", f"the log of leads in the run folder cannot be used ({error}): {after}")
            return  # it is not known whether the contact may be this lead's
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
            self._ring()

    def _complain(self, what: str, text: str) -> None:
        """Say that something cannot be used, once until it can be."""
        if what not in self._told:
            self._told.add(what)
            logger.warning("%s", text)

    def _ring(self) -> None:
        with self._lock:
            if not self._closed:
                os.eventfd_write(self.fd, 1)
