"""Gate at the end of every step: there all ranks of a job obey an order, after the same step.

    gate = StepGate(send, generation=1, training=training)
    gate.watch(Prepare(1, 4))               # the control thread: whoever comes to the end of a step now waits there
    gate.watch(ActAt(1, 4, "pause", 120))   # all are known to wait before the end of step 121: obey after step 120
    gate.passes()                           # the thread that trains, at the end of each of its steps

What is counted are the steps that came to this gate, from the beginning of the session on, and so by all ranks alike:
steps of optimizers that all ranks share. Where ranks have unequally many, ``join`` makes the counts equal again.

Why two messages: ranks hear of an order at different times, and one that acted at once would leave the others in a
collective. After ``Prepare`` no rank gets past the end of its next step, so the step that the controller names, one
more than the furthest rank had ended, is ahead of all of them. Without an order a step costs one look.

Threads. The control thread calls ``watch``, the one that trains ``passes``, and whoever ends the session ``open``; a
signal handler may call that, and runs on top of a thread that waits here: hence a ``Condition``, whose lock is
reentrant, and waits in slices, as a handler notifies nobody. ``_changed`` guards all fields. ``_number`` is also read
without it, in ``passes``: an order that comes in that moment is met at the end of the next step, which is what
``Prepared`` has promised, as it tells the steps that had ended when ``_number`` was set.

In a notebook steps are those of cells. An order that comes while no cell runs, or that no step of the cell obeys, is
withdrawn: each rank forgets it where its cell ends, and the first to say so has the controller tell the others. None
has obeyed it then, as all end a cell after the same step, and the one that was named is later.

No wait has a limit of its own: a rank that gave up its promise would leave the others in a collective. It ends by an
order, or with the session, or by ``forget``: where the controller is gone, or this process is told to end.
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
"""Steps that a newcomer may make before it takes part, as to compile what it will train with."""


@final
class StepGate:
    """Gate of one session. ``beat`` is called now and then by a thread that pauses: it is no stall.

    In ``cells`` of a notebook an order to stop ends the cell.
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
        """Steps that have come to this gate."""
        self._number = NONE
        self._heard = NONE  # number of the last order of this cell, also one that was obeyed
        self._order: ActAt | None = None
        self._open = False

    def watch(self, message: Prepare | ActAt) -> None:
        """Take in a message of the controller."""
        with self._changed:
            if isinstance(message, Prepare):
                self._number = self._heard = message.number
                self._order = None
                at_rest = self._cells is not None and self._cells.rest is not None
                self._say(Prepared(self._generation, message.number, self.steps, at_rest))
            elif message.number == self._number and message.step >= 0:
                self._order = message
            elif message.number == self._number:
                self._number = NONE
            elif self._order is not None and self._order.verb == "pause":  # one that follows a pause comes unprepared
                self._number, self._order = message.number, message
            self._changed.notify_all()

    def open(self) -> None:
        """Let everybody through: the session is over."""
        with self._changed:
            self._open, self._number = True, NONE
            self._changed.notify_all()

    def forget(self) -> None:
        """Forget the order, and end a pause: nobody may be there who ends it, or no time to wait for that."""
        with self._changed:
            self._number, self._order = NONE, None
            self._changed.notify_all()

    def cell_over(self) -> None:
        """Forget, at the end of a cell, what none of its steps has obeyed; the rank is at rest already."""
        if self._heard == NONE:
            return
        with self._changed:
            heard, self._heard = self._heard, NONE
            self._number, self._order = NONE, None
            self._say(CellOver(self._generation, heard))

    def passes(self) -> None:
        """Come to the end of a step; returns when the next one may begin. Raises ``SystemExit`` where that was all.

        Raises ``StartError`` in a newcomer to an elastic job that trains, alone, and so will never take part.
        """
        self.steps += 1  # first: see the module
        if self._generation == 0 and self.steps > MOST_ALONE:
            raise StartError(
                f"this worker came to a training that goes on, and has made {MOST_ALONE} steps alone: the script "
                "trains outside of @hvd.elastic.run, where alone workers can come and go. Decorate the function that "
                "trains, or start the job with -np N in place of --min-np, --max-np and --lease"
            )
        if self._number == NONE:
            return
        with self._changed:
            self._await(lambda: self._order is not None)
            order = self._order
            if order is not None and self._number != NONE and self.steps >= order.step:
                self._obey(order)

    def _obey(self, order: ActAt) -> None:
        """Obey, with ``_changed``; after a pause also the order that ends it."""
        self._say(Acted(self._generation, order.number, self._training.step))
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

    def _say(self, message: Message) -> None:
        with contextlib.suppress(ControlError):  # closed: the session has ended, which the next collective tells
            self._send(message)


def _stop(step: int, in_cells: bool) -> None:
    events.logger.info("the training ends after step %d, as somebody who watches it has ordered", step)
    if threading.current_thread() is not threading.main_thread():
        # Of a compiled graph: nothing that is raised here gets to the script. Its main thread gets a Ctrl-C instead.
        import _thread

        _thread.interrupt_main()
        return
    if in_cells:
        raise KeyboardInterrupt(f"somebody who watches has stopped all ranks after step {step}")
    raise SystemExit(0)
