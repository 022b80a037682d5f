"""The negotiated lane: named collectives in any order, from any thread.

    pending = lane.submit(Announcement(0, "allreduce.loss", Kind.ALLREDUCE, [call]), background=False)
    pending.wait()

The thread that *leads* (``lead``) receives the controller's orders, executes them, and completes the handles of all
threads. A small all-reduce whose name all ranks already know goes from rank to rank instead (``peer_lane``).

Threads. User threads submit and wait, and any of them may lead, or a background thread. Only the leader uses the
orders' socket and the engines, without holding a lock. Any thread, a signal handler too, may ``end``.

``_lock``, which is that of the lead, guards ``_submissions`` and the handles in them. A handle's ``finished`` is set
last, after all fields that its owner reads without the lock. The peer lane has its own lock, which may be held while a
socket is full; neither is acquired while the other is held.

Interleavings. Between ``enter`` and ``offer`` a submission holds no lock, because ``offer`` may send. Orders of *other*
names are executed meanwhile; its own order cannot arrive before all ranks have announced it. A join is not sent while
any collective in flight may still need an announcement (``to_announce``), because the controller refuses those after a
join. An idle peer lane does not suffice: it ends a round before the leader announces the messages that follow from it.

Signal handlers run in the main thread, on top of any frame. If the frame below is in this lane, it may lead, hold the
lock or the receiving end, or be in the middle of an order, and continues only after the handler returns. So a
collective in the handler would wait for itself: it is refused (``UsageError``), and a thread informs the other ranks.
Leading again in the handler would work only if the frame below is in ``poll``.
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
from farandole.runtime.lanes.lead import Lead
from farandole.runtime.lanes.native_threads import StartedThreads
from farandole.runtime.lanes.peer_lane import PeerLane
from farandole.runtime.lanes.reentry import Reentry
from farandole.runtime.lanes.submissions import Submissions, offer

Send: TypeAlias = Callable[[Message], None]
OnLocalFailure: TypeAlias = Callable[[Failure], None]
"""Called with the failure of a collective that failed on this rank only, so that the generation cannot continue."""


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
        self.grant = 0  # the grant under which the peer lane executed it, unless it was ``asked_again``
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
        """Block until the collective is done; every call raises a new instance of the error that ended it."""
        if not self.finished:
            self._lane.drive(self.announcement, lambda: self.finished)
        if self.failure is not None:
            raise self.failure.fresh()
        return self.outcomes


@final
class NegotiatedLane:
    """See the module. ``perform`` runs in the leading thread; ``torn`` is called there if it fails on this rank.

    If the lane is ``eager``, small contributions travel with the announcements. ``stay`` is the message to a
    replacement controller, if one may start after this one is lost: it says that a thread waits here.
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
        self._lead = Lead(self._receive, direct.interrupt, self._fail_all)
        self._lock = self._lead.lock
        self._submissions: Submissions[NegotiatedHandle] = Submissions(cache_capacity)
        self._tokens = itertools.count(1)
        self._waits: dict[int, tuple[int, Announcement]] = {}  # by thread, which alone writes its own
        self._started = StartedThreads()

    def submit(self, announcement: Announcement, background: bool, progress_s: float = 0.0) -> NegotiatedHandle:
        """See ``Lane``; raises ``DuplicateNameError``, or the failure that ended the lane."""
        if self._reentry.here():  # checked before entering: afterwards it is true for every thread in here
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
                self._lead.progress(pending, progress_s)
            if background and not pending.finished:
                with self._lock:
                    self._lead.wake_background()
        except BaseException as error:  # a signal handler's, too
            if has_spoken:  # some ranks may have received it, or none, and the background thread may not run yet
                self._tear(error)
            else:
                self._take_back(pending, Failure.of(error))
            raise
        return pending

    def _enter(self, pending: NegotiatedHandle) -> Entry | None:
        """Put it in flight, a join as soon as allowed; returns the cached entry of its name, if all ranks know it."""
        submissions, is_join = self._submissions, pending.announcement.kind is Kind.JOIN
        while True:
            with self._lock:
                # ``end`` sets ``ended`` before it acquires the lock to fail all collectives in flight. So a collective
                # that enters here is either failed by ``end``, or never enters.
                if self._lead.ended is not None:
                    raise self._lead.ended.fresh()
                if not is_join or submissions.may_join():
                    known = submissions.enter(pending)
                    if self._peer_lane.fast is not None:
                        self._peer_lane.fast.give_way(pending.announcement)
                    self._lead.unattended += pending.background
                    return known
            # Without the lock, because it receives. Another thread may submit before it is reacquired: hence the loop.
            self._peer_lane.release()
            self._lead.drive(lambda: submissions.may_join() or self._lead.ended is not None)

    def _take_back(self, pending: NegotiatedHandle, failure: Failure) -> None:
        """Remove a collective that an exception kept from being announced, so that its name is free again."""
        with self._lock:
            inflight = self._submissions.inflight
            if inflight.get(pending.announcement.key) is pending:
                self._finish(pending, [], failure)
                # Counted anew: it may not have been counted.
                self._lead.unattended = sum(each.background for each in inflight.values())
            elif pending.announcement.kind is Kind.JOIN:
                self._peer_lane.come_back()

    def refuse(self, announcement: Announcement) -> None:
        """See ``Lane``."""
        if self._reentry.here():  # not ``threading``: the frame below may hold its lock
            _thread.start_new_thread(self._refuse, (announcement,))
        else:
            with self._reentry:
                self._refuse(announcement)

    def _refuse(self, announcement: Announcement) -> None:
        with self._lock:
            if self._peer_lane.fast is not None:
                # First: calls of this name after a refusal do not match the calls of other ranks.
                self._peer_lane.fast.detach(announcement.name)
            if self._lead.ended is not None or not self._submissions.refuse(announcement):
                return
        try:
            self._peer_lane.withdraw(announcement.key)
            self._announce(announcement.entry())
        except BaseException as error:
            self._tear(error)
            raise

    def observe(self, pending: NegotiatedHandle, observer: Callable[[], None]) -> bool:
        """Call ``observer`` when ``pending`` is done, in any thread and with the lock; False if it is already done."""
        with self._lock:
            if not pending.finished:
                pending.observer = observer
            return not pending.finished

    def drive(self, announcement: Announcement, enough: Callable[[], bool]) -> None:
        """Wait for ``announcement`` until ``enough()``: lead, or sleep while another thread leads."""
        if self._reentry.here():
            raise interrupting(announcement)
        me = threading.get_ident()
        with self._reentry:
            try:
                # A join waits as long as the others train, and its rank takes part in that: it is no deadlock.
                if announcement.kind is not Kind.JOIN:
                    self._waits[me] = next(self._tokens), announcement
                self._lead.drive(enough)
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
            # A finished collective releases its thread, which may not have run since; its name may be in flight again.
            pending = inflight.get(announcement.key)
            if pending is None or pending.announcement is not announcement:
                return None
        grants = self._peer_lane.grants()
        return None if grants is None else PendingCollectives(list(inflight), *grants)

    def end(self, failure: Failure) -> None:
        """See ``Lane``. Any thread may call it; the caller must also abort the engines, in which a leader may wait."""
        self._lead.end(failure)

    def await_exit(self, timeout_s: float | None) -> bool:
        """See ``Lane``."""
        return self._lead.await_exit(timeout_s)

    def close(self) -> None:
        """See ``Lane``."""
        self._lead.close()
        self._peer_lane.close()

    def _tear(self, error: BaseException) -> None:
        """End the generation after an interruption such as Ctrl-C, which may leave ranks in different states."""
        self._torn(Failure.of(error))

    def _announce(
        self, entry: Entry, announcement: Announcement | None = None, pending: NegotiatedHandle | None = None
    ) -> None:
        part = contribution(announcement.calls) if announcement is not None and self._eager else b""
        with contextlib.suppress(ControlError):  # closed: end() has already failed this handle with a better reason
            self._send(Submit(self._generation, entry, part))
        if pending is not None:
            with self._lock:
                pending.to_announce = False  # after sending: a join, allowed from here on, must not overtake it
                if self._lead.asleep:  # a join may wait for this announcement
                    self._lead.wake()

    def _receive(self, limit_s: float | None) -> None:
        has_come = False
        try:
            try:
                message = self._peer_lane.recv(limit_s)
            except ControlError as error:
                self._lose(error)
                return
            has_come = True
            try:
                heard = self._peer_lane.receive()
            except CollectiveError as error:
                self._tear(error)
                return
            for each in (*heard, message):
                if each is not None:
                    self._handle_orders(each)
        except BaseException as error:
            # These messages are lost, and the other ranks wait in the collectives that they order; so is a message that
            # had left the socket and not reached this frame. A thread interrupted in its sleep has lost none.
            if has_come or self._peer_lane.is_taking:
                self._tear(error)
            raise

    def _lose(self, error: ControlError) -> None:
        """Continue without the controller if another may replace it, else end the generation."""
        if self._stay is None:
            self._torn(Failure(AbortError, f"this rank lost the controller: {error}", error))
        else:
            self._peer_lane.renew(self._stay)  # the other socket may not know yet; a message sent there would be lost

    def _handle_orders(self, message: Message) -> None:
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
            # Checked last: ``end`` sets it before it removes the collectives in flight, in another thread or in a
            # handler on top of this frame. A removed one does not mean that this rank joined: never send zeros for it.
            if self._lead.ended is not None:
                return
        if received_s:
            asked = [None if p is None else (p.begin_s, p.sent_s) for p in mine]
            phase_events.waited(order.names, Kind(order.kind), asked, received_s)
        failure: Failure | None = None
        outcomes: list[list[CallResult]] = [[]] * len(mine)  # one shared list, never modified
        if order.error:
            failure = Failure.named(order.error_kind, order.error)
        else:
            self.inside = order
            try:
                outcomes = self._perform(order, calls)
                if order.direct:  # inside ``try``: the first time it connects all ranks, and one rank alone may fail
                    self._peer_lane.open(order)
            except MismatchError as error:  # raised on every member: all stay in step
                failure = Failure.of(error)
            except Exception as error:
                failure = Failure.of(error)
                self._torn(failure)
            self.inside, self.last = None, order  # two writes without a lock: the control thread only reports them
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
            if self._lead.asleep:
                self._lead.wake()

    def _fail_all(self, failure: Failure) -> None:
        for pending in list(self._submissions.inflight.values()):  # a copy: ``_finish`` removes each
            self._finish(pending, [], failure)

    def _finish(self, pending: NegotiatedHandle, outcomes: list[CallResult], failure: Failure | None) -> None:
        pending.outcomes, pending.failure = outcomes, failure
        try:
            self._submissions.finish(pending)
            self._lead.unattended -= pending.background
            if pending.announcement.kind is Kind.JOIN:
                self._peer_lane.come_back()
            pending.announcement.release()
        finally:  # no longer in flight, it could not be failed later: its owner would hang if a handler raised above
            pending.finished = True  # last: its owner reads it without the lock, and then the fields above
            if pending.observer is not None:
                pending.observer()

    def _resend(self, key: Key) -> None:
        with self._lock:
            if self._lead.ended is not None:
                return
            pending = self._submissions.forget(key)
            if pending is not None:
                pending.asked_again = True
        if pending is not None:
            self._announce(pending.announcement.entry(), pending.announcement, pending)
