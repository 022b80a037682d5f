"""The negotiated lane: named collectives in any order, from any thread.

    pending = lane.submit(Announcement(0, "allreduce.loss", Kind.ALLREDUCE, [call]), background=False)
    pending.wait()

Whoever waits *leads*: it receives the controller's orders, executes them, and completes everybody's handles, so that
a synchronous collective needs no second thread. Other waiters sleep until theirs is done or the lead is free.

What is small and has been agreed on before takes the short way, from rank to rank (``peer_lane``).

Threads. User threads submit and wait. A background thread, started with the first asynchronous collective, leads while
some are outstanding and nobody waits. One thread leads at a time: ``_leader`` is it (0: none). Only the leader touches
the orders' socket and the engines, and it holds no lock meanwhile. Any thread, a signal handler too, may ``end``.

``_lock`` guards everything below it in the constructor. It is an ``RLock``, as a handler that shuts down may have
stopped the thread that has it. A handle's ``finished`` is set last, after all that its owner reads without the lock.
The peer lane has a lock of its own, which may be held while a socket is full; none is taken inside of the other.

Interleavings. Between ``enter`` and ``offer`` a submission has no lock, as ``offer`` may send. Orders of *other* names
are executed meanwhile; its own cannot come before all ranks have heard of it. A join is not sent while anything in
flight may yet have to be announced (``to_announce``), as the controller would refuse that. It is not enough to ask
whether the peer lane is through: it has ended a round before the leader has announced what came of it.

Whoever gives up the lead wakes those that sleep, and does so in ``finally``: an exception from a signal handler may
come between any two lines. So ``_leader`` is a thread and no flag: what a thread has it gives up, whatever it knows.

Signal handlers run in the main thread, on top of whatever it does. If that is this lane, the frame below may lead, hold
the lock or the receiving end, or be in the middle of an order, and goes on only when the handler has returned. So a
collective in there could only wait for itself: it is refused (``UsageError``), and a thread tells the other ranks.
To lead again in the handler would work where the frame below is in ``poll``, and nowhere else.
"""

from __future__ import annotations

import _thread
import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Sequence
from typing import TypeAlias, final

from farandole import events
from farandole.collective import Kind
from farandole.control.message import Message
from farandole.control.messages import ControllerLost, Entry, Order, Orders, Resend, Submit
from farandole.errors import AbortError, CollectiveError, ControlError, MismatchError
from farandole.runtime.lanes import phase_events
from farandole.runtime.lanes.announcement import Announcement, Key
from farandole.runtime.lanes.call import CallResult
from farandole.runtime.lanes.failure import Failure
from farandole.runtime.lanes.inline_payload import contribution
from farandole.runtime.lanes.lane import PendingCollectives, Performer, interrupting
from farandole.runtime.lanes.native_threads import StartedThreads
from farandole.runtime.lanes.peer_lane import PeerLane
from farandole.runtime.lanes.reentry import Reentry
from farandole.runtime.lanes.submissions import Submissions, offer

Send: TypeAlias = Callable[[Message], None]
OnLocalFailure: TypeAlias = Callable[[Failure], None]
"""Called with the failure of a collective that broke on this rank only, so that the generation cannot go on."""


@final
class NegotiatedHandle:
    """Handle of this lane. Fields below ``announcement`` change under the lane's lock, ``finished`` last."""

    __slots__ = (
        "_lane", "announcement", "asked_again", "background", "begin_s", "failure", "finished", "grant", "observer",
        "outcomes", "sent_s", "to_announce",
    )  # fmt: skip

    def __init__(self, lane: NegotiatedLane, announcement: Announcement, background: bool, begin_s: float) -> None:
        self._lane, self.announcement, self.background = lane, announcement, background
        self.outcomes: list[CallResult] = []
        self.failure: Failure | None = None
        self.finished = self.to_announce = False
        self.grant = 0  # by which it has gone from rank to rank, unless it was ``asked_again``
        self.asked_again = False
        self.observer: Callable[[], None] | None = None
        self.begin_s, self.sent_s = begin_s, 0.0

    def done(self) -> bool:
        """True once ``wait`` would return or raise at once."""
        return self.finished

    def when_done(self, observer: Callable[[], None]) -> None:
        """See ``Handle``."""
        if not self._lane.observe(self, observer):
            observer()

    def wait(self) -> list[CallResult]:
        """Block until it is done; every call raises a new instance of the error that ended it."""
        if not self.finished:
            self._lane.drive(self.announcement, lambda: self.finished)
        if self.failure is not None:
            raise self.failure.fresh()
        return self.outcomes


@final
class NegotiatedLane:
    """See the module. ``perform`` runs in the leading thread; ``torn`` is called there if it fails on this rank.

    If the lane is ``eager``, small contributions travel with the announcements. ``stay`` is what another controller is
    told, if one may come when this one is gone: that somebody waits here.
    """

    def __init__(
        self,
        direct: PeerLane,
        send: Send,
        generation: int,
        perform: Performer,
        torn: OnLocalFailure,
        reentry: Reentry,
        cache_capacity: int,
        eager: bool,
        stay: ControllerLost | None = None,
    ) -> None:
        self.last: Order | None = None
        self.inside: Order | None = None
        self._peer_lane, self._send, self._generation = direct, send, generation
        self._perform, self._torn, self._reentry = perform, torn, reentry
        self._eager, self._stay = eager, stay
        self._lock = lock = threading.RLock()
        self._changed = threading.Condition(lock)
        self._wanted = threading.Condition(lock)  # the background thread's alone: it need not wake for everybody's news
        self._submissions: Submissions[NegotiatedHandle] = Submissions(cache_capacity)
        self._tokens = itertools.count(1)
        self._waits: dict[int, tuple[int, Announcement]] = {}  # by thread, which alone writes its own
        self._started = StartedThreads()
        self._leader = 0
        self._asleep = 0
        self._unattended = 0
        self._background: threading.Thread | None = None
        self._ended: Failure | None = None

    def submit(self, announcement: Announcement, background: bool, progress_s: float = 0.0) -> NegotiatedHandle:
        """See ``Lane``; raises ``DuplicateNameError``, or the failure that ended the lane."""
        if self._reentry.here():  # asked before entering: afterwards it is true of every thread that is here
            raise interrupting(announcement)
        self._started.note()
        with self._reentry:
            return self._submit(announcement, background, progress_s)

    def _submit(self, announcement: Announcement, background: bool, progress_s: float) -> NegotiatedHandle:
        pending = NegotiatedHandle(self, announcement, background, time.monotonic() if events.subscribers else 0.0)
        has_spoken = False
        try:
            known = self._enter(pending)
            has_spoken = True
            grant = pending.grant = offer(self._peer_lane, announcement, known)
            if not grant:
                self._announce(known or announcement.entry(), announcement, pending)
            if pending.begin_s:
                pending.sent_s = time.monotonic()
            if grant and progress_s:
                self._progress(pending, progress_s)
            if background and not pending.finished:
                self._wake_background()
        except BaseException as error:  # a signal handler's, too
            if has_spoken:  # to some ranks, perhaps, or to none; and who could lead may not have been started
                self._tear(error)
            else:
                self._take_back(pending, Failure.of(error))
            raise
        return pending

    def _enter(self, pending: NegotiatedHandle) -> Entry | None:
        """Put it in flight, as soon as that may be; returns what all ranks know of its name."""
        submissions, is_join = self._submissions, pending.announcement.kind is Kind.JOIN
        while True:
            with self._lock:
                # ``end`` sets ``_ended`` before it takes the lock to fail what is in flight. So what enters here is
                # either failed by it, or never enters.
                if self._ended is not None:
                    raise self._ended.fresh()
                if not is_join or submissions.may_join():
                    known = submissions.enter(pending)
                    if self._peer_lane.fast is not None:
                        self._peer_lane.fast.give_way(pending.announcement)
                    self._unattended += pending.background
                    return known
            # Without the lock, as it receives. Another thread may submit before this one has it again: hence the loop.
            self._peer_lane.release()
            self._drive(lambda: submissions.may_join() or self._ended is not None)

    def _take_back(self, pending: NegotiatedHandle, failure: Failure) -> None:
        """Take out of flight what an exception has kept from being announced, so that its name is free again."""
        with self._lock:
            inflight = self._submissions.inflight
            if inflight.get(pending.announcement.key) is pending:
                self._finish(pending, [], failure)
                self._unattended = sum(each.background for each in inflight.values())  # it may not have been counted
            elif pending.announcement.kind is Kind.JOIN:
                self._peer_lane.come_back()

    def refuse(self, announcement: Announcement) -> None:
        """See ``Lane``."""
        if self._reentry.here():  # not ``threading``, whose lock the frame below may have
            _thread.start_new_thread(self._refuse, (announcement,))
        else:
            with self._reentry:
                self._refuse(announcement)

    def _refuse(self, announcement: Announcement) -> None:
        with self._lock:
            if self._peer_lane.fast is not None:
                # First: what comes after a refusal is not what others mean.
                self._peer_lane.fast.detach(announcement.name)
            if self._ended is not None or not self._submissions.refuse(announcement):
                return
        try:
            self._peer_lane.withdraw(announcement.key)
            self._announce(announcement.entry())
        except BaseException as error:
            self._tear(error)
            raise

    def observe(self, pending: NegotiatedHandle, observer: Callable[[], None]) -> bool:
        """Have ``observer`` called when it is done, in whatever thread and with the lock; False if it is already."""
        with self._lock:
            if not pending.finished:
                pending.observer = observer
            return not pending.finished

    def drive(self, announcement: Announcement, enough: Callable[[], bool]) -> None:
        """Return when ``enough()``: lead, or sleep while somebody else does. ``announcement`` is waited for."""
        if self._reentry.here():
            raise interrupting(announcement)
        me = threading.get_ident()
        with self._reentry:
            try:
                # A join waits as long as the others train, and its rank takes part in that: not what a deadlock is of.
                if announcement.kind is not Kind.JOIN:
                    self._waits[me] = next(self._tokens), announcement
                self._drive(enough)
            finally:
                self._waits.pop(me, None)

    def waits(self) -> list[tuple[int, int, Announcement]]:
        """See ``Lane``."""
        return [(thread, *wait) for thread, wait in self._waits.copy().items()]

    def in_flight(self) -> PendingCollectives | None:
        """See ``Lane``."""
        if not self._lock.acquire(blocking=False):
            return None
        try:
            inflight = dict(self._submissions.inflight)
        finally:
            self._lock.release()
        for _, announcement in list(self._waits.values()):
            # What has ended lets its thread go, though that may not have run since; its name may be in flight again.
            pending = inflight.get(announcement.key)
            if pending is None or pending.announcement is not announcement:
                return None
        grants = self._peer_lane.grants()
        return None if grants is None else PendingCollectives(list(inflight), *grants)

    def _drive(self, enough: Callable[[], bool]) -> None:
        me = threading.get_ident()
        try:
            while not enough():
                if self._take_lead(me, enough):
                    while not enough() and self._ended is None:
                        self._receive()
        finally:
            if self._leader == me:  # without the lock: no other thread makes it ``me``, or takes it from ``me``
                self._give_up_lead()

    def _progress(self, pending: NegotiatedHandle, limit_s: float) -> None:
        """Lead until it is done, for up to ``limit_s``, unless another thread leads: it need not be woken then."""
        me, deadline = threading.get_ident(), time.monotonic() + limit_s
        try:
            with self._lock:
                if self._leader or self._ended is not None:
                    return
                self._leader = me
            while not pending.finished and self._ended is None and (left_s := deadline - time.monotonic()) > 0:
                self._receive(left_s)
        finally:
            if self._leader == me:  # without the lock, as in ``_drive``
                self._give_up_lead()

    def _take_lead(self, me: int, enough: Callable[[], bool]) -> bool:
        """Sleep until the lead is free, and take it; False if there is nothing to wait for any more."""
        with self._lock:
            while not enough():
                if self._ended is not None:
                    self._fail_all(self._ended)  # a signal handler ended the lane while this thread was submitting
                elif self._leader and self._leader != me:
                    self._asleep += 1
                    try:
                        # A signal handler that calls ``end`` between ``enough()`` and here notifies nobody. There is a
                        # leader then, which needs the lock that this thread holds to give up the lead, and notifies.
                        self._changed.wait()
                    finally:
                        self._asleep -= 1
                else:  # free, or this thread's since an exception kept it from giving it up
                    self._leader = me
                    return True
        return False

    def _give_up_lead(self) -> None:
        with self._lock:
            self._leader = 0
            if self._asleep:
                self._changed.notify_all()
            if self._unattended:
                self._wanted.notify()

    def end(self, failure: Failure) -> None:
        """See ``Lane``. Any thread may call it; what a leader has in its engine must be aborted there."""
        if self._ended is None:  # without the lock: the thread below a handler, or a leader, sees it at once
            self._ended = failure
        self._peer_lane.interrupt()  # after ``_ended``: a leader that wakes must find it, or it would receive again
        with self._lock:
            self._fail_all(self._ended)
            self._changed.notify_all()
            self._wanted.notify()

    def await_exit(self, timeout_s: float | None) -> bool:
        """See ``Lane``: a user's thread may still be on its way out of an engine, or below a signal handler there."""
        with self._lock:
            self._asleep += 1  # else nobody would notify
            try:
                return self._changed.wait_for(lambda: not self._leader, timeout_s)
            finally:
                self._asleep -= 1

    def close(self) -> None:
        """See ``Lane``."""
        if self._background is not None:
            self._background.join()
        self._peer_lane.close()

    def _tear(self, error: BaseException) -> None:
        """End the generation after an interruption, as by Ctrl-C, of which some ranks have heard more than others."""
        self._torn(Failure.of(error))

    def _announce(
        self, entry: Entry, announcement: Announcement | None = None, pending: NegotiatedHandle | None = None
    ) -> None:
        part = contribution(announcement.calls) if announcement is not None and self._eager else b""
        with contextlib.suppress(ControlError):  # closed, after end() has failed this handle with a better reason
            self._send(Submit(self._generation, entry, part))
        if pending is not None:
            with self._lock:
                pending.to_announce = False  # after sending: a join that this lets through must not overtake it
                if self._asleep:  # a join may wait until this has been said
                    self._changed.notify_all()

    def _receive(self, limit_s: float | None = None) -> None:
        has_come = False
        try:
            try:
                message = self._peer_lane.recv(limit_s)
            except ControlError as error:
                self._lose(error)
                return
            has_come = True
            try:
                heard = self._peer_lane.hear()
            except CollectiveError as error:
                self._tear(error)
                return
            for each in (*heard, message):
                if each is not None:
                    self._take(each)
        except BaseException as error:
            # These messages are gone, and the other ranks wait in what they order. Also one that had left the socket
            # and was on its way here. Who is interrupted in its sleep has missed nothing, and may go on.
            if has_come or self._peer_lane.is_taking:
                self._tear(error)
            raise

    def _lose(self, error: ControlError) -> None:
        """Go on without the controller, or end the generation with it."""
        if self._stay is None:
            self._torn(Failure(AbortError, f"this rank lost the controller: {error}", error))
        else:
            self._peer_lane.renew(self._stay)  # the other socket may not have noticed, and what it sends would be lost

    def _take(self, message: Message) -> None:
        if not isinstance(message, Orders | Resend) or message.generation != self._generation:
            return
        if isinstance(message, Orders):
            received_s = time.monotonic() if events.subscribers else 0.0
            if received_s:
                phase_events.cycle(received_s)
            for order in message.orders:
                self._execute(order, received_s)
        else:
            for name in message.names:
                self._resend((message.process_set, name))

    def _execute(self, order: Order, received_s: float) -> None:
        with self._lock:
            mine = [self._submissions.find(order, name) for name in order.names]
            calls = [None if p is None else p.announcement.calls for p in mine]
            # Looked at last: ``end`` sets it before it empties what is in flight, in another thread or in a handler on
            # top of this frame. What is missing then has not joined, and the others must not get zeros for it.
            if self._ended is not None:
                return
        if received_s:
            asked = [None if p is None else (p.begin_s, p.sent_s) for p in mine]
            phase_events.waited(order.names, Kind(order.kind), asked, received_s)
        failure: Failure | None = None
        outcomes: list[list[CallResult]] = [[]] * len(mine)  # one list for all, which nobody changes
        if order.error:
            failure = Failure.named(order.error_kind, order.error)
        else:
            self.inside = order
            try:
                outcomes = self._perform(order, calls)
                if order.direct:  # in here, as the first time it connects all ranks: where that fails, it tears
                    self._peer_lane.open(order)
            except MismatchError as error:  # every member has it, and none is out of step
                failure = Failure.of(error)
            except Exception as error:
                failure = Failure.of(error)
                self._torn(failure)
            self.inside, self.last = None, order  # two writes without a lock: the control thread reports them, no more
        if received_s:
            phase_events.executed(order.names, Kind(order.kind), received_s)
        self._complete(order, mine, outcomes, failure)

    def _complete(
        self,
        order: Order,
        mine: Sequence[NegotiatedHandle | None],
        outcomes: Sequence[list[CallResult]],
        failure: Failure | None,
    ) -> None:
        with self._lock:
            for i, pending in enumerate(mine):
                if pending is None or pending.finished:  # ``end`` may have failed it while it was executed
                    continue
                is_direct = pending.grant and not pending.asked_again and failure is None
                if is_direct and self._peer_lane.fast is not None:
                    self._peer_lane.fast.attach(pending.announcement, pending.grant)
                self._finish(pending, outcomes[i], failure)
                number = order.cached[i] if order.cached else -1
                if number >= 0:
                    self._submissions.remember(pending.announcement, number)
            if order.error:
                self._submissions.note_refusal(order)
            if self._asleep:
                self._changed.notify_all()

    def _fail_all(self, failure: Failure) -> None:
        for pending in list(self._submissions.inflight.values()):  # a copy: each is taken out
            self._finish(pending, [], failure)

    def _finish(self, pending: NegotiatedHandle, outcomes: list[CallResult], failure: Failure | None) -> None:
        pending.outcomes, pending.failure = outcomes, failure
        try:
            self._submissions.finish(pending)
            self._unattended -= pending.background
            if pending.announcement.kind is Kind.JOIN:
                self._peer_lane.come_back()
            pending.announcement.release()
        finally:  # out of flight it is found by nobody, and its owner would wait for ever if a handler raised above
            pending.finished = True  # last: its owner looks at it without the lock, and then at what is above
            if pending.observer is not None:
                pending.observer()

    def _resend(self, key: Key) -> None:
        with self._lock:
            if self._ended is not None:
                return
            pending = self._submissions.forget(key)
            if pending is not None:
                pending.asked_again = True
        if pending is not None:
            self._announce(pending.announcement.entry(), pending.announcement, pending)

    def _wake_background(self) -> None:
        with self._lock:
            if self._background is None and self._ended is None:
                # A daemon: the interpreter joins other threads before ``atexit``, where a script that never calls
                # shutdown() leaves the job, and this one ends only then.
                self._background = threading.Thread(target=self._attend, name="farandole-negotiated", daemon=True)
                self._background.start()
            elif not self._leader:
                self._wanted.notify()

    def _attend(self) -> None:
        """The background thread: lead while something is outstanding that nobody waits for."""
        me = threading.get_ident()
        while True:
            with self._lock:
                while self._ended is None and (self._leader or not self._unattended):
                    self._wanted.wait()
                if self._ended is not None:
                    return
                self._leader = me
            try:
                while self._unattended and self._ended is None:
                    self._receive()
            finally:
                self._give_up_lead()
