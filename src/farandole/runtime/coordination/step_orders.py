"""Orders that all ranks of a generation obey after the same step; without any I/O.

    orders = StepOrders(tell, news)
    orders.begin(1, {0, 1})                     # a generation is formed
    orders.add_order(7, "pause")                # sends Prepare to all ranks
    orders.prepared(0, 7, 120)
    orders.prepared(1, 7, 121)                  # sends ActAt(step=122) to all ranks: none is past that step
    orders.acted(0, 7, 122)
    orders.acted(1, 7, 122)                     # news: acted after step 122
    orders.cell_over(0, 8)                      # news: refused; ranks of a notebook take no steps between cells

One order at a time; later orders wait. While the ranks pause, the order that ends the pause needs no step. All ranks
count the same steps if they share the optimizers; a pause that some do not obey (they may be in ``join()``) can end.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection
from typing import TypeAlias, final

import msgspec

from farandole.control.message import Message
from farandole.control.watch_messages import AT_STEPS, ActAt, Prepare
from farandole.runtime.coordination.rank_set import RankSet

News: TypeAlias = Callable[[int, str, str, str, int], object]
"""Called with an order's number, verb, state and text, and the step after which it was obeyed, or -1."""

MOST = 16
"""Largest number of waiting orders."""

OVERDUE_S = 5.0
"""Time from the first rank that pauses after which *resume* and *stop* need not wait for the others."""

DONE = {
    "stop": "the training has ended after step {}",
    "pause": "paused after step {}",
    "resume": "resumed after step {}",
    "checkpoint": "a checkpoint is due after step {}; the script saves it where it asks hvd.checkpoint_due()",
}


@final
class _Order(msgspec.Struct):
    number: int
    verb: str
    missing: set[int]
    steps: list[int] = []
    step: int = -1
    shown: int = -1
    """Step of the training at which it was obeyed."""
    since_s: float = 0.0
    """Time at which the first rank obeyed; 0: none has."""


@final
class StepOrders:
    """Orders of one job. ``tell`` sends a message to ranks."""

    def __init__(
        self,
        tell: Callable[[RankSet, Message], object],
        news: News,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tell, self._news, self._clock = tell, news, clock
        self._generation = 0
        self._ranks: set[int] = set()
        self._current: _Order | None = None
        self._waiting: deque[tuple[int, str]] = deque()
        self._paused: tuple[int, int] | None = None
        """Number of the order by which the ranks pause, and the step after which they do."""

    def begin(self, generation: int, ranks: Collection[int]) -> None:
        """Begin a generation; a pause of the previous generation continues in it."""
        paused, self._paused = self._paused, None
        self._generation, self._ranks = generation, set(ranks)
        if paused is not None:
            self._waiting.appendleft((paused[0], "pause"))
        self._next()

    def end(self, why: str = "") -> None:
        """End the generation; unfinished orders wait for the next generation or, with ``why``, are refused."""
        current, self._current = self._current, None
        self._ranks = set()
        if why:
            left = [(current.number, current.verb)] if current is not None else []
            left += self._waiting
            self._paused = None
            self._waiting.clear()
            for number, verb in left:
                self._refuse(number, verb, why)
            return
        if current is not None and current.verb == "stop" and current.step >= 0:
            shown = current.shown if current.shown >= 0 else current.step
            self._news(current.number, "stop", "acted", DONE["stop"].format(shown), shown)
        elif current is not None:
            self._waiting.appendleft((current.number, current.verb))

    def add_order(self, number: int, verb: str) -> None:
        """Add an order, or refuse it."""
        if verb in ("resume", "stop"):
            self._take_back()
        planned = [each for _, each in reversed(self._waiting)] + ([self._current.verb] if self._current else [])
        will_pause = next(  # after the last pause or resume before this order
            (each == "pause" for each in planned if each in ("pause", "resume")), self._paused is not None
        )
        if verb not in AT_STEPS:
            self._refuse(number, verb, f"unknown order {verb!r}")
        elif len(self._waiting) >= MOST:
            self._refuse(number, verb, f"{MOST} orders wait already")
        elif verb == "resume" and not will_pause:
            self._refuse(number, verb, "nothing is paused")
        elif verb in ("pause", "checkpoint") and will_pause:
            self._refuse(number, verb, "the training is paused: resume it first")
        else:
            self._waiting.append((number, verb))
            self._next()

    def prepared(self, rank: int, number: int, step: int, at_rest: bool = False) -> None:
        """Process ``Prepared``: a rank will wait at the end of its next step, and has completed ``step`` steps.

        A rank that is ``at_rest`` makes no step before another cell: then the order is withdrawn on all ranks.
        """
        current = self._current
        if at_rest and current is not None and current.number == number and current.step < 0:
            said = "no cell runs" if len(current.missing) == len(self._ranks) else f"no cell runs on rank {rank}"
            self._withdraw(current, f"{said}, and it is obeyed at the end of a step, in a cell of all ranks")
        elif current is not None and current.number == number and current.step < 0 and rank in current.missing:
            current.missing.discard(rank)
            current.steps.append(step)
            self._set_step(current)

    def acted(self, rank: int, number: int, step: int) -> None:
        """Process ``Acted``: a rank has obeyed after ``step`` steps."""
        current = self._current
        if current is not None and current.number == number and current.step >= 0:
            current.missing.discard(rank)
            current.since_s = current.since_s or self._clock()
            current.shown = max(step, current.shown)
            self._conclude(current)

    def cell_over(self, rank: int, number: int) -> None:
        """Process ``CellOver``: the cell has ended in which a rank received this order, its latest one.

        If the rank has already obeyed the order, it stands: the other ranks obey it after the same step. An order that
        arrived during a pause, which ended with the cell, is withdrawn on all ranks.
        """
        current = self._current
        if self._paused is not None and self._paused[0] == number:
            self._paused = None
        elif current is None or current.number != number:
            return
        if current is not None and (current.step < 0 or rank in current.missing):
            self._withdraw(current, f"the cell has ended on rank {rank}, and no step has ended before")

    def gone(self, rank: int) -> None:
        """Stop waiting for ``rank``, which has left."""
        self._ranks.discard(rank)
        current = self._current
        if current is not None and rank in current.missing:
            current.missing.discard(rank)
            if current.step < 0:
                self._set_step(current)
            else:
                self._conclude(current)

    def _take_back(self) -> None:
        """Withdraw a pause that some ranks have obeyed and others do not, maybe because they are in ``join()``."""
        pause = self._current
        if pause is None or pause.verb != "pause" or not 0 < pause.since_s < self._clock() - OVERDUE_S:
            return
        ranks = ", ".join(map(str, sorted(pause.missing)))
        self._forget(pause, f"ranks {ranks} reached no such step; they may be in join(). All ranks go on")

    def _withdraw(self, order: _Order, why: str) -> None:
        self._forget(order, why)
        self._next()

    def _forget(self, order: _Order, why: str) -> None:
        """Send all ranks the withdrawal of the order, and refuse it."""
        self._current = None
        self._tell(RankSet.of(sorted(self._ranks)), ActAt(self._generation, order.number, order.verb, -1))
        self._refuse(order.number, order.verb, why)

    def _next(self) -> None:
        while self._current is None and self._waiting and self._ranks:
            number, verb = self._waiting.popleft()
            self._current = _Order(number, verb, set(self._ranks))
            if self._paused is None:
                self._news(number, verb, "taken", "waits for the end of the step", -1)
                self._tell(RankSet.of(sorted(self._ranks)), Prepare(self._generation, number))
            else:
                self._act(self._current, self._paused[1])

    def _set_step(self, order: _Order) -> None:
        """Choose the step after which to obey, once all ranks are prepared."""
        if not order.missing and order.steps:
            order.missing = set(self._ranks)
            self._act(order, max(order.steps) + 1)

    def _act(self, order: _Order, step: int) -> None:
        order.step = step
        self._tell(RankSet.of(sorted(self._ranks)), ActAt(self._generation, order.number, order.verb, step))

    def _conclude(self, order: _Order) -> None:
        if order.missing:
            return
        self._current = None
        if order.verb == "pause":
            self._paused = order.number, order.shown
        elif order.verb in ("resume", "stop"):
            self._paused = None
        self._news(order.number, order.verb, "acted", DONE[order.verb].format(order.shown), order.shown)
        self._next()

    def _refuse(self, number: int, verb: str, why: str) -> None:
        self._news(number, verb, "refused", why, -1)
