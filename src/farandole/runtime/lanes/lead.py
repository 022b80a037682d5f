"""Lead of the negotiated lane: one thread at a time receives orders, for all threads that wait.

    lead = Lead(receive, interrupt, fail_all)
    lead.drive(lambda: handle.finished)     # leads: calls ``receive``, or sleeps while another thread leads
    with lead.lock:                         # the lane's own fields are guarded by it, too
        lead.unattended += 1                # a collective is in flight that perhaps no thread waits for
        lead.wake_background()

A synchronous collective needs no second thread this way: the thread that waits receives its own order.

Threads. User threads drive. A background thread, started with the first asynchronous collective, leads while some are
``unattended`` and no thread waits. One thread leads at a time: ``_leader`` is its identifier (0: none). Only the leader
calls ``receive``, without holding ``lock``. Any thread, a signal handler too, may ``end``. ``lock`` guards all fields
but ``ended``, which is set once. It is an ``RLock``, because a handler that shuts down may have interrupted its holder.

A thread that gives up the lead wakes the sleeping threads, and does so in ``finally``: an exception from a signal
handler may be raised between any two lines. So ``_leader`` is an identifier and no flag: a thread that finds its own
there gives up the lead, even if an exception kept it from knowing that it leads.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol, final

from farandole.runtime.lanes.failure import Failure


class Awaited(Protocol):
    """A collective that ends while its thread leads."""

    finished: bool


@final
class Lead:
    """See the module. ``interrupt`` wakes a leader in ``receive``; ``fail_all`` fails all that threads wait for."""

    def __init__(
        self,
        receive: Callable[[float | None], None],
        interrupt: Callable[[], None],
        fail_all: Callable[[Failure], None],
    ) -> None:
        self.lock = lock = threading.RLock()
        self.ended: Failure | None = None
        self.unattended = 0
        """Number of collectives in flight for which perhaps no thread waits."""
        self.asleep = 0
        """Number of threads that ``wake`` would wake."""
        self._receive, self._interrupt, self._fail_all = receive, interrupt, fail_all
        self._changed = threading.Condition(lock)
        self._wanted = threading.Condition(lock)  # for the background thread alone: it need not wake for all others
        self._leader = 0
        self._background: threading.Thread | None = None

    def drive(self, enough: Callable[[], bool]) -> None:
        """Lead until ``enough()``, or sleep while another thread leads."""
        me = threading.get_ident()
        try:
            while not enough():
                if self._take(me, enough):
                    while not enough() and self.ended is None:
                        self._receive(None)
        finally:
            if self._leader == me:  # without the lock: no other thread sets it to ``me``, or changes it from ``me``
                self._give_up()

    def progress(self, pending: Awaited, limit_s: float) -> None:
        """Lead until ``pending`` is finished, for up to ``limit_s``, unless another thread leads; saves a wake-up."""
        me, deadline = threading.get_ident(), time.monotonic() + limit_s
        try:
            with self.lock:
                if self._leader or self.ended is not None:
                    return
                self._leader = me
            while not pending.finished and self.ended is None and (left_s := deadline - time.monotonic()) > 0:
                self._receive(left_s)
        finally:
            if self._leader == me:  # without the lock, as in ``drive``
                self._give_up()

    def wake(self) -> None:
        """Make sleeping threads look whether they have enough; with the lock, if any are ``asleep``."""
        self._changed.notify_all()

    def wake_background(self) -> None:
        """Make the background thread lead if no other thread does; with the lock."""
        if self._background is None and self.ended is None:
            # A daemon: the interpreter joins other threads before ``atexit``, but a script that never calls shutdown()
            # leaves the job only in ``atexit``, and this thread ends only then.
            self._background = threading.Thread(target=self._attend, name="farandole-negotiated", daemon=True)
            self._background.start()
        elif not self._leader:
            self._wanted.notify()

    def end(self, failure: Failure) -> None:
        """Fail all that threads wait for, now and later; only the first ``failure`` counts."""
        if self.ended is None:  # without the lock: the thread below a handler, or a leader, sees it at once
            self.ended = failure
        self._interrupt()  # after ``ended``: a leader that wakes must see it, or it would receive again
        with self.lock:
            self._fail_all(self.ended)
            self._changed.notify_all()
            self._wanted.notify()

    def await_exit(self, timeout_s: float | None) -> bool:
        """After ``end``, wait until no thread leads: one may be leaving an engine, or be below a signal handler."""
        with self.lock:
            self.asleep += 1  # else no thread would notify
            try:
                return self._changed.wait_for(lambda: not self._leader, timeout_s)
            finally:
                self.asleep -= 1

    def close(self) -> None:
        """Join the background thread, after ``end``."""
        if self._background is not None:
            self._background.join()

    def _take(self, me: int, enough: Callable[[], bool]) -> bool:
        """Sleep until the lead is free, and take it; False if ``enough()`` became true first."""
        with self.lock:
            while not enough():
                if self.ended is not None:
                    self._fail_all(self.ended)  # a signal handler ended the lane while this thread was submitting
                elif self._leader and self._leader != me:
                    self.asleep += 1
                    try:
                        # A signal handler that calls ``end`` between ``enough()`` and here notifies no thread. But then
                        # there is a leader; it needs the lock that this thread holds to give up the lead, and notifies.
                        self._changed.wait()
                    finally:
                        self.asleep -= 1
                else:  # free, or still this thread's because an exception kept it from giving up the lead
                    self._leader = me
                    return True
        return False

    def _give_up(self) -> None:
        with self.lock:
            self._leader = 0
            if self.asleep:
                self._changed.notify_all()
            if self.unattended:
                self._wanted.notify()

    def _attend(self) -> None:
        """Body of the background thread: lead while a collective is outstanding for which no thread waits."""
        me = threading.get_ident()
        while True:
            with self.lock:
                while self.ended is None and (self._leader or not self.unattended):
                    self._wanted.wait()
                if self.ended is not None:
                    return
                self._leader = me
            try:
                while self.unattended and self.ended is None:
                    self._receive(None)
            finally:
                self._give_up()
