"""Control thread of a worker: handles the controller's messages (exchanges, aborts, questions, the timeline).

    thread = ControlThread(link, generation, hooks)
    payloads = thread.exchange("shm.0", ranks=(0, 1), payload=b"...", timeout_s=30.0)

It also reports that this process has been in a collective for too long, and sends heartbeats, which show that the
interpreter runs whatever other threads do. With ``stay`` the thread outlives the controller, and sends ``stay`` to the
next one.

Threads. Only the control thread receives from ``control``; any thread sends. ``exchange`` and ``set_timeline`` block in
threads of the user, or in the thread that makes an engine, until the control thread has the answer. Any thread may call
``end``, also a signal handler on top of a thread that waits here, hence a ``Condition`` on an ``RLock``.

``_came`` guards ``_payloads``, ``_timeline_set``, ``_ended``, ``_waiting`` and ``away``, the last two together. A new
controller must know whether a thread waits: it then ends the generation at once, and otherwise at the next commit. So
either ``_outlive`` counts an earlier waiter, or the waiter finds ``away`` set and reports itself.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, final

import msgspec

from farandole import events
from farandole.control.channel import Dealer
from farandole.control.message import Message
from farandole.control.messages import (
    Abort,
    AskProgress,
    AskWaits,
    ChangeDue,
    ControllerLost,
    Exchange,
    Exchanged,
    Notice,
    Progress,
    SetTimeline,
    TimelineSet,
    Waits,
)
from farandole.control.watch_messages import ActAt, Prepare, SendMetrics
from farandole.errors import AbortError, ControlError, StartError
from farandole.runtime.coordination.after_fault import NOTICE_S
from farandole.runtime.coordination.stall import Limits
from farandole.runtime.lanes.active_collectives import ActiveCollectives
from farandole.runtime.lanes.failure import Failure

TICKS_PER_WARNING = 4
LONGEST_TICK_S = 3600.0

WAITS_LOOK_S = 2.0
"""Interval of the surveys of waits of all threads; waits found by two surveys in a row are reported."""

INTERACTIVE_LOOK_S = 0.2
"""The same in a notebook: users learn within a second of ranks that will never meet."""

LOOK_S = 0.5
"""Slice of a sleep: a signal handler that ends the session just before its own thread sleeps cannot notify it."""


class Hooks(Protocol):
    """Calls from the control thread to its session. They must return quickly: no message is received meanwhile."""

    @property
    def is_interactive(self) -> bool:
        """True in a notebook: a user waits for each cell."""

    def generation_ended(self, failure: Failure) -> None:
        """End the session because its generation is over. The control thread goes on receiving."""

    def change(self, reason: str) -> None:
        """Note that a change of the membership is due."""

    def progress(self) -> tuple[str, str]:
        """The last collective finished, and the active ones ("" for none)."""

    def waits(self) -> Waits:
        """Waits of all threads that could begin a collective; empty if one of them does not wait."""

    def timeline(self, path: str, mark_cycles: bool) -> None:
        """Start writing the timeline to ``path``, or stop if ``path`` is ""; done on return."""

    def watch(self, message: SendMetrics | Prepare | ActAt) -> None:
        """Obey an order of the live view."""

    def forget_orders(self) -> None:
        """End a pause, and drop pending orders: the controller that gave them is lost."""


def show(text: str) -> None:
    """Print a line into the output of the running cell."""
    print(f"farandole: {text}", file=sys.stderr, flush=True)


@final
class ControlThread:
    """Control thread of a session. It reads ``control`` until interrupted, and replies on ``up``; ``stop`` joins it."""

    def __init__(
        self,
        control: Dealer,
        up: Dealer,
        generation: int,
        hooks: Hooks,
        active: ActiveCollectives,
        limits: Limits,
        stay: ControllerLost | None = None,
        waits_look_s: float = WAITS_LOOK_S,
    ) -> None:
        self.away = False
        """True after the controller that formed the generation was lost."""
        self._control, self._up, self._generation, self._stay = control, up, generation, stay
        self._waiting = 0
        self._hooks, self._active = hooks, active
        self._warning_s, self._sign_s = limits.warning_s or math.inf, limits.sign_s or math.inf
        self._looks, self._waits_look_s = limits.warning_s > 0, waits_look_s
        self._looked_s = self._alert_until_s = -math.inf
        self._seen = self._told = Waits(generation)  # of the last survey, and as last reported
        self._came = threading.Condition()
        self._payloads: dict[str, list[bytes]] = {}
        self._timelines, self._questions = itertools.count(1), itertools.count(1)
        self._timeline_set = 0
        self._ended: Failure | None = None
        self._is_aborted = False  # by an ``Abort``, which may arrive after ``_ended``
        # A daemon: the interpreter joins other threads before ``atexit``, where a script that never calls shutdown()
        # leaves the job. Started last, because it uses all fields at once.
        self._thread = threading.Thread(target=self._listen, name="farandole-control", daemon=True)
        self._thread.start()

    def exchange(self, key: str, ranks: Sequence[int], payload: bytes, timeout_s: float) -> list[bytes]:
        """All-gather of small bytes among ``ranks``; a key serves once. Raises ``StartError`` after ``timeout_s``."""
        with self._waits(), self._came:
            self._send_to_controller(Exchange(self._generation, key, list(ranks), payload))
            self._await(lambda: key in self._payloads or self._ended is not None, timeout_s)
            if key in self._payloads:  # first: a result is valid even if the generation has ended since
                return self._payloads.pop(key)
            if self._ended is not None:
                raise self._ended.fresh()
        raise StartError(
            f"ranks {list(ranks)} could not connect with each other: not all of them reached {key!r} within "
            f"{timeout_s:g} s. Every member must do this at the same point of the program. Is one slow? Raise "
            "FARANDOLE_STALL_SHUTDOWN_S"
        )

    def sync_with_controller(self, rank: int, timeout_s: float) -> None:
        """Wait, at most ``timeout_s``, until all messages that the controller had sent to this ``rank`` are handled.

        The controller replies in order: the reply to an exchange of this rank alone, or an ``Abort``, comes after them.
        """
        key = f"sync {next(self._questions)}"
        with self._came:
            self._send_to_controller(Exchange(self._generation, key, [rank], b""))
            self._await(lambda: key in self._payloads or self._is_aborted, timeout_s)
            self._payloads.pop(key, None)

    def set_timeline(self, path: str, mark_cycles: bool, timeout_s: float) -> bool:
        """Make the other ranks write to ``path``, or stop if it is ""; False if not all have within ``timeout_s``.

        It does not wait for ranks that have left, nor after the end of the generation.
        """
        number = next(self._timelines)
        with self._waits(), self._came:
            self._send_to_controller(SetTimeline(self._generation, number, path, mark_cycles))
            return self._await(lambda: self._timeline_set >= number or self._ended is not None, timeout_s)

    def end(self, failure: Failure) -> None:
        """Make exchanges in progress and later ones fail; only the first ``failure`` counts."""
        with self._came:
            self._ended = self._ended or failure
            self._came.notify_all()

    def stop(self) -> None:
        """Interrupt the thread and join it; ``control`` may be closed then."""
        self._control.interrupt()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _await(self, enough: Callable[[], bool], timeout_s: float) -> bool:
        """Sleep, holding ``_came``, until ``enough()`` or the timeout; return ``enough()``."""
        until_s = time.monotonic() + timeout_s
        while not enough() and (left_s := until_s - time.monotonic()) > 0:
            self._came.wait(min(left_s, LOOK_S))
        return enough()

    @contextlib.contextmanager
    def _waits(self) -> Iterator[None]:
        """Count the calling thread as waiting for the controller; if that was lost, tell its successor."""
        with self._came:
            self._waiting += 1
            if self.away and self._stay is not None:
                with contextlib.suppress(ControlError):  # the generation has ended: the caller sees it next
                    self._control.send(msgspec.structs.replace(self._stay, wait=True))
        try:
            yield
        finally:
            with self._came:
                self._waiting -= 1

    def _send_to_controller(self, message: Message) -> None:
        """Send to the controller. If the generation has ended and closed the socket, the caller's wait raises."""
        try:
            self._up.send(message)
        except ControlError:
            if self._ended is None:
                raise

    def _listen(self) -> None:
        look_s = self._waits_look_s if self._looks else math.inf
        signed_s = -math.inf
        while not self._control.interrupted:
            is_alert = time.monotonic() < self._alert_until_s
            warning_s = min(self._warning_s, NOTICE_S) if is_alert else self._warning_s
            tick_s = min(LONGEST_TICK_S, warning_s / TICKS_PER_WARNING, self._sign_s, look_s)
            try:
                message = self._control.recv(tick_s)  # limited: the checks below need no message
                if message is not None:
                    self._handle_controller_message(message)
                for blocked in self._active.older_than(warning_s, self._generation):
                    self._up.send(blocked)
                if time.monotonic() >= self._looked_s + look_s:
                    self._look_at_waits()
                if time.monotonic() >= signed_s + self._sign_s:
                    signed_s = time.monotonic()
                    self._up.send(self._progress())
            except ControlError as error:  # also raised on a closed socket: see ``interrupted``
                if self._stay is not None and not self._control.interrupted:
                    self._outlive(self._stay)
                    continue
                if not self._control.interrupted:
                    self._over(Failure(AbortError, f"this rank lost the controller: {error}", error))
                with self._came:
                    self._is_aborted = True  # no answer will come
                    self._came.notify_all()
                return

    def _outlive(self, stay: ControllerLost) -> None:
        """Go on without a controller, and send ``stay`` to the next one; collectives that need no controller go on."""
        with self._came:
            self.away = True
            self._control.renew()
            self._control.send(msgspec.structs.replace(stay, wait=self._waiting > 0))
        self._hooks.forget_orders()

    def _handle_controller_message(self, message: object) -> None:
        if isinstance(message, Exchanged):
            with self._came:  # kept: the reply may arrive before the wait begins
                self._payloads[message.key] = message.payloads
                self._came.notify_all()
        elif isinstance(message, Abort):
            self._over(Failure.named(message.kind, message.reason))
            with self._came:  # last: waiters then find the session ended
                self._is_aborted = True
                self._came.notify_all()
        elif isinstance(message, ChangeDue):
            self._hooks.change(message.reason)
        elif isinstance(message, AskProgress):
            self._up.send(self._progress())
        elif isinstance(message, AskWaits):
            self._told = Waits(self._generation)  # changed waits are reported again if they last
            self._up.send(msgspec.structs.replace(self._hooks.waits(), question=message.question))
        elif isinstance(message, SetTimeline):
            self._hooks.timeline(message.path, message.mark_cycles)  # before the reply, for which rank 0 waits
            self._up.send(TimelineSet(self._generation, message.number))
        elif isinstance(message, TimelineSet):
            with self._came:
                self._timeline_set = message.number
                self._came.notify_all()
        else:
            self._take_other(message)

    def _take_other(self, message: object) -> None:
        if isinstance(message, SendMetrics | Prepare | ActAt):
            self._hooks.watch(message)
        elif isinstance(message, Notice):
            self._alert_until_s = time.monotonic() + message.alert_s
            if message.text and self._hooks.is_interactive:
                show(message.text)

    def _look_at_waits(self) -> None:
        """Report to the controller if no thread can begin a collective in two surveys in a row."""
        self._looked_s, before = time.monotonic(), self._seen
        try:
            self._seen = self._hooks.waits()
        except Exception:  # it reads running threads; without this thread the job would hang
            events.logger.warning("a survey of waits has failed, and counts as none", exc_info=True)
            self._seen = Waits(self._generation)
        if self._seen.waits and self._seen == before != self._told:
            self._told = self._seen
            self._up.send(self._seen)

    def _progress(self) -> Progress:
        work = self._active.pace.count() + time.process_time()
        return Progress(self._generation, *self._hooks.progress(), work)

    def _over(self, failure: Failure) -> None:
        self.end(failure)  # the session may not have this thread's reference yet
        self._hooks.generation_ended(failure)
