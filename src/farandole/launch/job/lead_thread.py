"""Thread of a controller that keeps its place in the log of leads: it claims generations, and sees when another leads.

    thread = LeadThread(folder.path, epoch=2)
    thread.claim(LeadEntry(2, generation=7, members=...))
    thread.claimed()            # [7], once that stands in the log; thread.fd is readable then
    thread.superseded           # why this lead is none any more; "" while it is
    thread.is_hidden()          # True, once, if the contact in the folder is not this lead's

A controller that waited for a file server would be killed as hung, so a thread does. It takes entries from
``_entries``, a queue, and leaves numbers in ``_claimed``, a sentence in ``superseded``, a time in ``sure_s``, each
of which is written by the thread alone; for news of these it rings ``fd``. It is a daemon: stuck in the kernel it
cannot be joined. ``_lock`` guards ``_closed`` and, with it, the number of that descriptor, which may be somebody
else's once it is closed.

A folder that does not answer is no reason to end: the generation that there is trains on. No other is formed meanwhile.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections import deque
from pathlib import Path
from typing import final

from farandole.errors import FarandoleError
from farandole.events import logger
from farandole.launch.hosts.lead_log import LeadEntry, LeadLog, SupersededError
from farandole.launch.hosts.run_folder import RunFolder

LOOK_S = 1.0
"""Pause between two looks for another lead, and between two attempts to claim."""

UNSURE_S = 5 * LOOK_S
"""Time without a look after which a lead does not decide about leases, which may be another's."""


@final
class LeadThread:
    """Thread of one controller of the lead with this ``epoch``."""

    def __init__(self, folder: Path, epoch: int, every_s: float = LOOK_S) -> None:
        self.superseded = ""
        """Sentence that says that another one leads."""
        self.sure_s = time.monotonic()
        """Time, of ``time.monotonic``, at which this lead was the last one for certain."""
        self._log, self._epoch, self._every_s = LeadLog(folder), epoch, every_s
        self._folder = RunFolder(folder)
        self._hidden: deque[bool] = deque(maxlen=1)
        self._entries: queue.Queue[LeadEntry | None] = queue.Queue()
        self._claimed: deque[int] = deque()
        self._told = self._closed = False
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

    def is_hidden(self) -> bool:
        """True if the contact that was found last is not this lead's, which is the last one in the log."""
        return bool(self._hidden) and self._hidden.pop()

    def close(self, patience_s: float) -> None:
        """End the thread, if that takes no longer than ``patience_s``."""
        self._entries.put(None)
        self._thread.join(patience_s)
        with self._lock:
            self._closed = True
            os.close(self.fd)

    def _serve(self) -> None:
        waiting: deque[LeadEntry] = deque()
        while not self.superseded:
            try:
                entry = self._entries.get(timeout=self._every_s)
                if entry is None:
                    return
                waiting.append(entry)
            except queue.Empty:
                pass
            try:
                self._work(waiting)
            except SupersededError as error:
                self.superseded = str(error)
                self._ring()
            except (OSError, FarandoleError) as error:
                self._complain(error)

    def _work(self, waiting: deque[LeadEntry]) -> None:
        """Look, and claim what waits."""
        began_s, last_s = time.monotonic(), self.sure_s
        self._log.check(self._epoch)
        self.sure_s = began_s
        if began_s - last_s > UNSURE_S:
            self._ring()
        if not self._folder.is_led_by(self._epoch):  # one that was late has overwritten it
            self._hidden.append(True)
            self._ring()
        while waiting:
            self._log.append(waiting[0])
            self._claimed.append(waiting.popleft().generation)
            self._ring()

    def _complain(self, error: Exception) -> None:
        """Say once that the folder cannot be used."""
        if not self._told:
            self._told = True
            logger.warning(
                "the log of leads in the run folder cannot be used (%s): training goes on, but the next generation "
                "waits until it can be used",
                error,
            )

    def _ring(self) -> None:
        with self._lock:
            if not self._closed:
                os.eventfd_write(self.fd, 1)
