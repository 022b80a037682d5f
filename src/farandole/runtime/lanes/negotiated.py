"""The negotiated lane: named collectives in any order, from any thread.

    pending = lane.submit(Ask(0, "allreduce.loss", Kind.ALLREDUCE, [call]), background=False)
    pending.wait()

Whoever waits *leads*: it receives the controller's orders, executes them, and completes everybody's handles, so that
a synchronous collective needs no second thread. Other waiters sleep until theirs is done or the lead is free. A
background thread, started with the first asynchronous collective, leads while some are outstanding and nobody waits.

What is small and has been agreed on before takes the short way, from rank to rank (``direct``).
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias, final

from farandole import events
from farandole.collective import Kind
from farandole.control.message import Message
from farandole.control.messages import Entry, Order, Orders, Resend, Stay, Submit
from farandole.errors import AbortError, CollectiveError, ControlError, DuplicateNameError, MismatchError
from farandole.runtime.coordination.process_groups import GLOBAL
from farandole.runtime.lanes.ask import Ask, Key
from farandole.runtime.lanes.call import Call, Handle, Outcome
from farandole.runtime.lanes.direct import DirectLane
from farandole.runtime.lanes.eager import contribution
from farandole.runtime.lanes.failure import Failure
from farandole.runtime.lanes.phases import LANE
from farandole.runtime.lanes.presence import Presence

LEAVE_S = 5.0
"""How long ``close`` waits for a thread that leads; an engine that was aborted lets it go at once."""


class Performer(Protocol):
    """Executes an order on whatever engine its process set has."""

    def __call__(self, order: Order, mine: Sequence[Sequence[Call] | None]) -> list[list[Outcome]]:
        """One list of outcomes per name; errors leave every later collective undone, except ``MismatchError``."""


Send: TypeAlias = Callable[[Message], None]
Torn: TypeAlias = Callable[[Failure], None]
"""Told that a collective broke on this rank only, so that the generation cannot go on."""


class Lane(Protocol):
    """Where the session submits to. ``last`` is the order executed last, ``inside`` the one being executed now."""

    last: Order | None
    inside: Order | None

    def submit(self, ask: Ask, background: bool) -> Handle:
        """Announce that this rank is ready; ``background`` if nobody may wait for it soon."""

    def refuse(self, ask: Ask) -> None:
        """Tell the others that this rank has come and cannot do it, so that they raise; nobody waits here."""

    def end(self, failure: Failure) -> None:
        """Fail everything in flight and all that comes later."""

    def close(self) -> None:
        """Return when no thread is in the lane any more."""


@final
class Pending:
    """A handle of this lane. Fields below ``ask`` change under the lane's lock, and ``finished`` last of them."""

    __slots__ = ("_lane", "ask", "background", "begin_s", "failure", "finished", "outcomes", "sent_s")

    def __init__(self, lane: NegotiatedLane, ask: Ask, background: bool, begin_s: float) -> None:
        self._lane, self.ask, self.background = lane, ask, background
        self.outcomes: list[Outcome] = []
        self.failure: Failure | None = None
        self.finished = False
        self.begin_s, self.sent_s = begin_s, 0.0

    def done(self) -> bool:
        """True once ``wait`` would return or raise at once."""
        return self.finished

    def wait(self) -> list[Outcome]:
        """Block until it is done; every call raises a new instance of the error that ended it."""
        if not self.finished:
            self._lane.drive(lambda: self.finished)
        if self.failure is not None:
            raise self.failure.fresh()
        return self.outcomes


@dataclass(slots=True)
class _Known:
    """How a name was last meant here, and how it is announced by number."""

    fingerprint: object
    entry: Entry


@final
class NegotiatedLane:
    """See the module. ``perform`` runs in the leading thread; ``torn`` is called there if it fails on this rank.

    If the lane is ``eager``, small contributions travel with the announcements. ``stay`` is what another controller is
    told, if one may come when this one is gone: that somebody waits here.
    """

    def __init__(
        self,
        direct: DirectLane,
        send: Send,
        generation: int,
        perform: Performer,
        torn: Torn,
        presence: Presence,
        cache_capacity: int,
        eager: bool,
        stay: Stay | None = None,
    ) -> None:
        self.last: Order | None = None
        self.inside: Order | None = None
        self._direct, self._send, self._generation = direct, send, generation
        self._perform, self._torn, self._presence = perform, torn, presence
        self._capacity, self._eager, self._stay = cache_capacity, eager, stay
        # Guards everything below; a signal handler may end the lane while its thread has it.
        self._lock = lock = threading.RLock()
        self._changed = threading.Condition(lock)
        self._wanted = threading.Condition(lock)  # the background thread's alone: it need not wake for everybody's news
        self._inflight: dict[Key, Pending] = {}
        self._known: dict[Key, _Known] = {}
        self._refused: Counter[Key] = Counter()
        self._leading = False
        self._asleep = 0
        self._unattended = 0
        self._background: threading.Thread | None = None
        self._ended: Failure | None = None

    def submit(self, ask: Ask, background: bool) -> Pending:
        """See ``Lane``; raises ``DuplicateNameError``, or the failure that ended the lane."""
        pending = Pending(self, ask, background, time.monotonic() if events.subscribers else 0.0)
        if ask.kind is Kind.JOIN:  # to what this rank has contributed it will still come
            self.drive(lambda: not self._direct.is_busy or self._ended is not None)
        with self._lock:
            if self._ended is not None:
                raise self._ended.fresh()
            if self._refused:
                ask.key = self._current(ask.name)
            if ask.key in self._inflight:
                raise DuplicateNameError(
                    f"{ask.key[1]!r} was submitted while the one before it is still in flight on this rank: "
                    "wait for that one first, or give each its own name"
                )
            self._inflight[ask.key] = pending
            known = self._known.get(ask.key)
            self._unattended += background
        self._begin(ask, known if known is not None and known.fingerprint == ask.fingerprint else None)
        if pending.begin_s:
            pending.sent_s = time.monotonic()
        if background:
            self._wake_background()
        return pending

    def refuse(self, ask: Ask) -> None:
        """See ``Lane``."""
        with self._lock:
            ask.key = self._current(ask.name)
            if self._ended is not None or ask.key in self._inflight:
                return
            self._refused[ask.name] += 1
        with self._torn_if_interrupted():
            self._direct.withdraw(ask.key)
        self._announce(ask.entry())

    def drive(self, enough: Callable[[], bool]) -> None:
        """Return when ``enough()``: lead, or sleep while somebody else does."""
        with self._presence, self._lock:
            while not enough():
                if self._ended is not None:
                    self._fail_all(self._ended)  # a signal handler ended the lane while this thread was submitting
                elif self._leading:
                    self._asleep += 1
                    try:
                        self._changed.wait()
                    finally:
                        self._asleep -= 1
                else:
                    self._lead(enough)

    def end(self, failure: Failure) -> None:
        """See ``Lane``. Any thread may call it; what a leader has in its engine must be aborted there."""
        if self._ended is None:
            self._ended = failure
        self._direct.interrupt()
        with self._lock:
            self._fail_all(self._ended)
            self._changed.notify_all()
            self._wanted.notify()

    def close(self) -> None:
        """See ``Lane``; ``end`` comes first."""
        if self._background is not None:
            self._background.join()
        with self._lock:  # a user's thread may still be on its way out of an engine
            self._asleep += 1
            self._changed.wait_for(lambda: not self._leading, LEAVE_S)
            self._asleep -= 1
        self._direct.close()

    def _current(self, name: Key) -> Key:
        """What a name is called on the wire now.

        A rank that refuses does not wait for the others. So that what it does next under this name meets what they do
        next, every member counts the times that the name was refused.
        """
        times = self._refused[name]
        return (name[0], f"{name[1]} (after {times} refused)") if times else name

    def _begin(self, ask: Ask, known: _Known | None) -> None:
        """Contribute to what all know, or ask the controller."""
        with self._torn_if_interrupted():
            if ask.kind is Kind.JOIN:
                self._direct.leave()
            if known is None:
                self._direct.withdraw(ask.key)
            if ask.key[0] != GLOBAL:  # others may mean the other one, and wait for it
                self._direct.withdraw((GLOBAL, ask.key[1]))
            if known is not None and self._direct.give(ask):
                return
        self._announce(known.entry if known else ask.entry(), self._given(ask))

    @contextlib.contextmanager
    def _torn_if_interrupted(self) -> Iterator[None]:
        """For what must be done to its end: by Ctrl-C, some of the others have heard of it, and some have not."""
        try:
            yield
        except BaseException as error:
            self._torn(Failure.of(error))
            raise

    def _given(self, ask: Ask) -> bytes:
        return contribution(ask.calls) if self._eager else b""

    def _announce(self, entry: Entry, contribution: bytes = b"") -> None:
        with contextlib.suppress(ControlError):  # closed, after end() has failed this handle with a better reason
            self._send(Submit(self._generation, entry, contribution))

    def _lead(self, enough: Callable[[], bool]) -> None:
        """Receive and execute until ``enough()``. Called with the lock, which is free meanwhile."""
        self._leading = True
        self._lock.release()
        try:
            while not enough() and self._ended is None:
                self._receive()
        finally:
            self._lock.acquire()
            self._leading = False
            if self._asleep:
                self._changed.notify_all()
            if self._unattended:
                self._wanted.notify()

    def _receive(self) -> None:
        try:
            message = self._direct.recv()
        except ControlError as error:
            if self._stay is None:
                self._torn(Failure(AbortError, f"this rank lost the controller: {error}", error))
            else:
                self._direct.renew(self._stay)  # the other socket may not have noticed, and what it sends would be lost
            return
        with self._torn_if_interrupted():
            try:
                heard = self._direct.hear()
            except CollectiveError as error:
                self._torn(Failure.of(error))
                return
            for each in (*heard, message):
                self._take(each)

    def _take(self, message: Message | None) -> None:
        if isinstance(message, Orders):
            received_s = time.monotonic() if events.subscribers else 0.0
            if received_s:
                events.emit(events.Phase(LANE, "orders", "", "cycle", received_s, received_s))
            for order in message.orders:
                self._execute(order, received_s)
        elif isinstance(message, Resend):
            for name in message.names:
                self._resend((message.process_set, name))

    def _execute(self, order: Order, received_s: float) -> None:
        mine = [self._find(order, name) for name in order.names]
        if received_s:
            _tell(mine, order, received_s)
        failure: Failure | None = None
        outcomes: list[list[Outcome]] = [[]] * len(mine)
        if order.error:
            failure = Failure.named(order.error_kind, order.error)
        else:
            self.inside = order
            try:
                outcomes = self._perform(order, [None if p is None else p.ask.calls for p in mine])
                if order.direct:
                    self._direct.open(order)
            except MismatchError as error:  # every member has it, and none is out of step
                failure = Failure.of(error)
            except Exception as error:
                failure = Failure.of(error)
                self._torn(failure)
            self.inside, self.last = None, order
        self._complete(order, mine, outcomes, failure)

    def _find(self, order: Order, name: str) -> Pending | None:
        if order.kind != Kind.JOIN:
            return self._inflight.get((order.process_set, name))
        return next((p for p in list(self._inflight.values()) if p.ask.kind is Kind.JOIN), None)

    def _complete(
        self, order: Order, mine: Sequence[Pending | None], outcomes: Sequence[list[Outcome]], failure: Failure | None
    ) -> None:
        with self._lock:
            for i, pending in enumerate(mine):
                if pending is None or pending.finished:
                    continue
                self._finish(pending, outcomes[i], failure)
                if order.refused:
                    self._refused[pending.ask.name] += 1
                number = order.cached[i] if order.cached else -1
                if number >= 0:
                    self._remember(pending.ask, number)
            if self._asleep:
                self._changed.notify_all()

    def _fail_all(self, failure: Failure) -> None:
        for pending in list(self._inflight.values()):
            self._finish(pending, [], failure)

    def _finish(self, pending: Pending, outcomes: list[Outcome], failure: Failure | None) -> None:
        self._inflight.pop(pending.ask.key, None)
        self._unattended -= pending.background
        pending.outcomes, pending.failure = outcomes, failure
        if pending.ask.kind is Kind.JOIN:
            self._direct.come_back()
        pending.ask.release()
        pending.finished = True

    def _remember(self, ask: Ask, number: int) -> None:
        known = self._known.get(ask.key)
        if known is not None and known.entry.cached == number:
            return
        self._known[ask.key] = _Known(ask.fingerprint, Entry(ask.key[0], ask.key[1], number))
        if len(self._known) > self._capacity:
            del self._known[next(iter(self._known))]

    def _resend(self, key: Key) -> None:
        with self._lock:
            if self._ended is not None:
                return
            if self._asleep:  # somebody may wait until nothing is left in the direct lane
                self._changed.notify_all()
            self._known.pop(key, None)
            pending = self._inflight.get(key)
        if pending is not None:
            self._announce(pending.ask.entry(), self._given(pending.ask))

    def _wake_background(self) -> None:
        with self._lock:
            if self._background is None and self._ended is None:
                self._background = threading.Thread(target=self._attend, name="farandole-negotiated", daemon=True)
                self._background.start()
            elif not self._leading:
                self._wanted.notify()

    def _attend(self) -> None:
        """The background thread: lead while something is outstanding that nobody waits for."""
        with self._lock:
            while self._ended is None:
                if self._leading or not self._unattended:
                    self._wanted.wait()
                else:
                    self._lead(lambda: not self._unattended)


def _tell(mine: Sequence[Pending | None], order: Order, received_s: float) -> None:
    """Emit what happened before the execution of an order."""
    now = time.monotonic()
    kind = Kind(order.kind).label
    for name, pending in zip(order.names, mine, strict=True):
        if pending is not None and pending.sent_s:
            events.emit(events.Phase(LANE, name, kind, "submit", pending.begin_s, pending.sent_s))
            events.emit(events.Phase(LANE, name, kind, "negotiate", pending.sent_s, received_s))
        events.emit(events.Phase(LANE, name, kind, "queue", received_s, now))
