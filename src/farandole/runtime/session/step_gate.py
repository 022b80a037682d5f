"""Gate at the end of every step: it makes all ranks of a job obey an order after the same step.

    gate = StepGate(send, generation=1, training=training)
    gate.watch(Prepare(1, 4))               # control thread: a rank at the end of a step now waits there
    gate.watch(ActAt(1, 4, "pause", 120))   # all ranks wait before the end of step 121: obey after step 120
    gate.passes()                           # training thread, at the end of each step

The gate counts the steps that reach it since the beginning of the session: steps of optimizers shared by all ranks, so
all ranks count alike. If ranks have unequal numbers of steps, ``join`` makes the counts equal again.

Why two messages: ranks receive an order at different times, and a rank that acted at once would leave the others
blocked in a collective. After ``Prepare`` no rank passes the end of its next step, so the step that the controller
names, one more than the furthest rank had ended, is ahead of all ranks. Without an order a step costs one comparison.

Threads. The control thread calls ``watch``, the training thread ``passes``, and the thread that ends the session
``open``, possibly in a signal handler on top of a thread that waits here: hence a ``Condition``, whose lock is
reentrant, and waits in slices, because a handler cannot notify its own thread. ``_changed`` guards all fields.
``passes`` reads ``_number`` without it: an order that arrives at that moment is met at the end of the next step, as
``Prepared`` promised, which reports the steps that had ended when ``_number`` was set.

In a notebook steps belong to cells. An order that arrives while no cell runs, or that no step of the cell obeys, is
withdrawn: each rank drops it at the end of its cell, and after the first report of that the controller tells the
others. No rank has obeyed it then, because all ranks end a cell after the same step, and the named step is later.

No wait has a timeout: a rank that broke its promise would leave the others blocked in a collective. A wait ends by an
order, by the end of the session, or by ``forget``, when the controller is lost or this process is told to end.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import final

from farandole import events
from farandole.control.message import Message
from farandole.control.watch_messages import ActAt, Acted, CellOver, Prepare, Prepared
from farandole.errors import ControlError, StartError
from farandole.runtime.session.cell_state import CellState
from farandole.runtime.session.training import Training

SLICE_S = 0.25

NONE = -1

MOST_ALONE = 50
"""Number of steps that a worker may make before it is admitted, for example to compile its model."""


@final
class StepGate:
    """Gate of one session. A paused thread calls ``beat`` regularly, so that the pause does not count as a stall.

    With ``cells`` (a notebook) an order to stop ends the cell.
    """

    def __init__(
        self,
        send: Callable[[Message], object],
        generation: int,
        training: Training,
        beat: Callable[[], object] = lambda: None,
        cells: CellState | None = None,
    ) -> None:
        self._send, self._generation, self._training, self._beat = send, generation, training, beat
        self._cells = cells
        self._changed = threading.Condition()
        self.steps = 0
        """Number of steps that have reached this gate."""
        self._number = NONE
        self._heard = NONE  # number of the last order of this cell, obeyed or not
        self._order: ActAt | None = None
        self._open = False

    def watch(self, message: Prepare | ActAt) -> None:
        """Handle a message of the controller."""
        with self._changed:
            if isinstance(message, Prepare):
                self._number = self._heard = message.number
                self._order = None
                at_rest = self._cells is not None and self._cells.rest is not None
                self._send_if_open(Prepared(self._generation, message.number, self.steps, at_rest))
            elif message.number == self._number and message.step >= 0:
                self._order = message
            elif message.number == self._number:
                self._number = NONE
            elif self._order is not None and self._order.verb == "pause":  # after a pause: no ``Prepare`` before it
                self._number, self._order = message.number, message
            self._changed.notify_all()

    def open(self) -> None:
        """Release all waiting threads, for good: the session is over."""
        with self._changed:
            self._open, self._number = True, NONE
            self._changed.notify_all()

    def forget(self) -> None:
        """Drop the order and end a pause, because the controller is lost or this process must end."""
        with self._changed:
            self._number, self._order = NONE, None
            self._changed.notify_all()

    def cell_over(self) -> None:
        """Drop, at the end of a cell, an order that none of its steps obeyed; the rank is at rest already."""
        if self._heard == NONE:
            return
        with self._changed:
            heard, self._heard = self._heard, NONE
            self._number, self._order = NONE, None
            self._send_if_open(CellOver(self._generation, heard))

    def passes(self) -> None:
        """End a step; return when the next one may begin. Raises ``SystemExit`` if the order is to stop.

        Raises ``StartError`` in a new worker of an elastic job that trains alone, and so will never be admitted.
        """
        self.steps += 1  # first: see the module docstring
        if self._generation == 0 and self.steps > MOST_ALONE:
            raise StartError(
                f"this worker was started for a training that already runs, and has made {MOST_ALONE} steps alone: the "
                "script trains outside of @hvd.elastic.run, where alone workers join and leave. Decorate the function "
                "that trains, or start the job with -np N in place of --min-np, --max-np and --lease"
            )
        if self._number == NONE:
            return
        with self._changed:
            self._await(lambda: self._order is not None)
            order = self._order
            if order is not None and self._number != NONE and self.steps >= order.step:
                self._obey(order)

    def _obey(self, order: ActAt) -> None:
        """Obey an order, holding ``_changed``; after a pause also the order that ends it."""
        self._send_if_open(Acted(self._generation, order.number, self._training.step))
        if order.verb == "pause":
            self._await(lambda: self._order is not order)
            following = self._order
            self._training.rested()
            if following is not None and following is not order and not self._open:
                self._obey(following)
                return
        elif order.verb == "checkpoint":
            self._training.checkpoint_due = True
        self._number, self._order = NONE, None
        if order.verb == "stop":
            _stop(self._training.step, self._cells is not None and self._cells.gate is not None)

    def _await(self, enough: Callable[[], bool]) -> None:
        while not (enough() or self._open or self._number == NONE):
            self._changed.wait(SLICE_S)
            self._beat()

    def _send_if_open(self, message: Message) -> None:
        with contextlib.suppress(ControlError):  # closed: the session has ended; the next collective raises
            self._send(message)


def _stop(step: int, in_cells: bool) -> None:
    events.logger.info("the training ends after step %d, by an order from the live view", step)
    if threading.current_thread() is not threading.main_thread():
        # Called from a compiled graph: an exception here would not reach the script, so its main thread gets a Ctrl-C.
        import _thread

        _thread.interrupt_main()
        return
    if in_cells:
        raise KeyboardInterrupt(f"an order from the live view has stopped all ranks after step {step}")
    raise SystemExit(0)
