"""End of a session: the failure that every later operation raises, and who learns of it in which order.

    end = SessionEnd(topology, link, active, engine_pool, gate, metrics)
    end.waiters += [control.end, lane.end]
    end.abort("its script raised ValueError: ...")
    end.failure                                     # not None from now on

Threads. Users' threads, the thread that leads the lane, the control thread and a signal handler on top of any line may
end the session. So there is no lock: ``_end`` does nothing the second time, and the parts that it ends have their own
``RLock``s, because the interrupted thread below a handler may hold them. ``explain`` blocks the thread whose engine
failed until the control thread has ended the session with the controller's reason.

Order. ``failure`` is set first: a thread woken by a later action reads there what to raise. Then ``waiters`` fail; then
the controller is told; the engines are aborted last, because that makes other ranks fail, which ask the controller for
the cause.

Wait for the controller's abort reason, on a rank whose engine only knows which connection was lost.

    await_news(told, lambda: active.older_than(0.0, generation), link.up)

When a rank dies, engines often notice before the controller knows which rank and why: a connection breaks, or a
neighbour gives up because its own connection broke. Errors should name the cause.

Threads. The thread whose engine failed waits here; the control thread receives the reason and ends the session, which
sets ``told`` and so wakes the waiter. The session stores the failure to raise before it sets ``told``. A signal handler
may end the session on top of the waiting thread: hence no ``threading.Event``.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from typing import final

from farandole import events
from farandole.control.channel import Dealer
from farandole.control.messages import Blocked, Leave
from farandole.control.reentrant_event import ReentrantEvent
from farandole.errors import AbortError, ControlError, DivergenceError, FarandoleError, MismatchError
from farandole.runtime.lanes.active_collectives import ActiveCollectives
from farandole.runtime.lanes.failure import Failure
from farandole.runtime.session.engine_pool import EnginePool
from farandole.runtime.session.link import Link
from farandole.runtime.session.metric_sender import MetricSender
from farandole.runtime.session.planned_collective import CONSEQUENCES
from farandole.runtime.session.step_gate import StepGate
from farandole.topology import Topology

REASON_WAIT_S = 2.0
"""Longest wait for the reason. It only lasts that long if no rank has ended: an engine failed by itself."""

ASK_AGAIN_S = 0.1


def await_news(told: ReentrantEvent, blocked: Callable[[], Sequence[Blocked]], up: Dealer) -> None:
    """Wait for the controller's abort reason, which sets ``told``, at most ``REASON_WAIT_S``.

    The controller reports a death to every rank, and a ``shutdown()`` only to the ranks that are ``blocked`` by it.
    """
    until_s = time.monotonic() + REASON_WAIT_S
    while not told.is_set() and time.monotonic() < until_s:
        with contextlib.suppress(ControlError):  # closed: the session has ended here, and ``told`` is set
            for message in blocked():
                up.send(message)
        told.wait(ASK_AGAIN_S)


@final
class SessionEnd:
    """End of one session. ``link``: ``None`` in a job of one rank without launcher."""

    def __init__(
        self,
        topology: Topology,
        link: Link | None,
        active: ActiveCollectives,
        engines: EnginePool,
        gate: StepGate,
        metrics: MetricSender,
    ) -> None:
        self.failure: Failure | None = None
        """What operations raise after the end; ``None`` before."""
        self.has_left = False
        """True if this worker was told to end, and has told the controller."""
        self.waiters: list[Callable[[Failure], object]] = []
        """Called with the failure, in this order, in any thread: each makes threads that wait raise it."""
        self._generation, self._name = topology.generation, f"rank {topology.rank} on {topology.host}"
        self._link, self._active, self._engines, self._gate, self._metrics = link, active, engines, gate, metrics
        self._told = ReentrantEvent()
        self._struck = False  # an engine failed here: this rank is not the first to leave
        self._subscribers: list[Callable[[], object]] = []

    @property
    def reason(self) -> str:
        """Reason why the generation has ended; "" while it lasts."""
        return "" if self.failure is None else self.failure.text

    def subscribe(self, work: Callable[[], object]) -> None:
        """Call ``work`` when the generation has ended, in any thread; it must not block."""
        self._subscribers.append(work)

    # -- causes -------------------------------------------------------------------------------------------------------

    def abort(self, reason: str, *, ending: bool = False) -> None:
        """End the generation for all ranks, because this rank gave up; ``ending``: it joins no later generation."""
        reason = f"{self._name} gave up: {reason}"
        self._end(Failure(AbortError, reason), reason, reason, ending)

    def give_up_start(self, error: BaseException) -> None:
        """End the generation for all ranks, because ``error`` ended the constructor of the session."""
        # An error that ends the start on all ranks names its cause, maybe another rank, in the same words on each.
        if isinstance(error, CONSEQUENCES):
            self._end(Failure(AbortError, str(error)), str(error), str(error))
        else:
            self.abort(f"it could not start: {error}")

    def shut_down(self) -> None:
        """End the session in order; ranks that need this one from now on raise an error."""
        reason = f"shutdown() was called on {self._name}"
        self._end(Failure(AbortError, reason), reason, "")

    def leave_for_good(self) -> None:
        """Tell the controller that this worker was told to end and will not rejoin, so that no rank waits for its exit.

        The session stays open for a script that reads its rank while it saves a last checkpoint; collectives raise.
        """
        self._tell_leave("", told=True)
        self.has_left = True
        reason = f"{self._name} was told to end, and has left"
        self._end(Failure(AbortError, reason), reason, "")

    def raise_everywhere(self, error: MismatchError | DivergenceError) -> None:
        """End the generation with the ``error`` that ended the script, so that all ranks raise the same error."""
        failure = Failure.named(type(error).__name__, f"{error} (raised on {self._name}, whose script has ended)")
        self._end(failure, failure.text, failure.text, ending=True, kind=failure.kind)

    def generation_over(self, failure: Failure) -> None:
        """End the session because its generation is over, or its controller lost."""
        self._end(failure, failure.text)

    def tear(self, failure: Failure) -> None:
        """End the generation for all ranks, because a collective failed midway here and the others wait for it."""
        if self.failure is None:
            known = failure.kind is AbortError  # then another rank is the cause, named in the text
            reason = failure.text if known else f"{self._name} could not go on: {failure.text}"
            self._end(failure, reason, reason)

    def explain(self) -> None:
        """After an engine noticed the loss of a rank, raise the controller's reason, if it gives one."""
        self._struck = True  # before the wait: from now on this rank is not the first to leave
        if self._link is not None:
            await_news(self._told, lambda: self._active.older_than(0.0, self._generation), self._link.up)
        if self.failure is not None:
            raise self.failure.fresh()

    # -- consequences -------------------------------------------------------------------------------------------------

    def _end(
        self,
        failure: Failure,
        reason: str,
        leave: str | None = None,
        ending: bool = False,
        kind: type[FarandoleError] = AbortError,
    ) -> None:
        """End the generation here: this rank raises ``failure``; engines send ``reason`` to their peers.

        Before the peers can fail because of it, the controller learns that this rank was the first to ``leave``; the
        others raise a ``kind``.
        """
        if self.failure is not None:  # two threads may both pass: then either failure may be raised, and is true
            return
        self._engines.stop_fast_path()  # before calls fail: later calls of these names mean other collectives
        self.failure = failure
        self._told.set()  # after ``failure``, which ``explain`` reads after this wakes it
        self._gate.open()
        for waiter in self.waiters:
            waiter(failure)
        if leave is not None:
            self._tell_leave(leave, ending, kind)
        self._engines.abort(reason, orderly=leave == "")
        for work in self._subscribers:
            work()
        self._metrics.flush()  # now, not at exit: a launcher may kill this process before

    def _tell_leave(
        self, reason: str, ending: bool = False, kind: type[FarandoleError] = AbortError, told: bool = False
    ) -> None:
        if self._link is None or self.has_left:
            return
        self._metrics.flush()  # first: the last metrics may explain the failure, and the next generation forms at once
        try:
            worker_id, number = self._link.worker_id, self._generation
            self._link.up.send(Leave(number, reason, self._struck, ending, worker_id, kind.__name__, told))
        except ControlError as error:
            events.logger.debug("%s leaves without saying so: %s", self._name, error)
