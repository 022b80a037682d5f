"""Watching of a search: the record of its trials, news for watchers, and orders from watchers.

    watch = SearchWatch(study, folder, router.send, time.time)
    watch.handle_viewer_message(identity, WatchOrder(1, "pause-trial", trial=3))
    watch.turn(loop)                                        # carries out orders, and reports them
    watch.changed("trial 3, epoch 7: 0.25", loop.size)
    watch.end(0, "")

The record is the log ``metrics`` in the folder of the search, as of any run; this process writes it, watched or not. A
watcher (the monitor) gets the same records, and all earlier records when it connects. Orders wait here until they are
carried out: a trial pauses at its next report.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, final

import msgspec

from farandole.control.watch_messages import OF_TRIALS, OrderNews, TrialNews, WatchJob, WatchOrder
from farandole.events import logger
from farandole.monitor.folder import MarkRecord, Record, RunWriter, TrialRecord, read_records
from farandole.runtime.controller.watching import Watching
from farandole.runtime.coordination.downlink import Send
from farandole.search.study import Study, StudyTrial
from farandole.search.trial_metrics import by_name

WHOLE = ("pause", "resume", "stop")
DONE = {
    "pause": "all trials rest",
    "resume": "trials begin and go on",
    "stop": "trials leave at their next commit, and the same call goes on",
    "pause-trial": "rests after",
    "resume-trial": "goes on after",
    "stop-trial": "has stopped after",
}
"""Text on an order that was carried out; for an order on a trial, it is put between the trial and its epoch."""

BY_HAND = "stopped by a user"


class OrderTarget(Protocol):
    """Search that carries out orders."""

    def size(self, number: int) -> int:
        """Number of workers that a trial has now."""

    def stop(self) -> None:
        """End the search: trials leave at their next commit."""

    def stop_trial(self, number: int, why: str) -> None:
        """End a trial at its next commit; a second call ends its processes."""


@final
class SearchWatch:
    """Watching of one search, in one thread. ``clock`` returns the wall-clock time.

    A full disk ends the record, with a warning, and not the search.
    """

    def __init__(self, study: Study, folder: Path, send: Send, clock: Callable[[], float]) -> None:
        self._study, self._clock = study, clock
        self._watching = Watching(send, lambda *_: None, clock)
        self._told: dict[int, TrialNews] = {}
        self._seen: dict[int, tuple[object, ...]] = {}  # by trial, all values that its news depend on
        self._points: dict[int, dict[str, dict[int, float]]] = {}  # by trial and name, "" for its value
        self._new: list[WatchOrder] = []
        self._waiting: list[WatchOrder] = []
        self._writer: RunWriter | None = RunWriter.open(folder)
        for record in read_records(folder):
            if isinstance(record, TrialRecord):
                known = self._points.setdefault(record.trial, {})
                for name, points in {"": record.points, **record.metrics}.items():
                    known.setdefault(name, {}).update(points)

    # -- messages -----------------------------------------------------------------------------------------------------

    def handle_viewer_message(self, identity: bytes, message: Any) -> None:
        """Handle a message of a watcher."""
        if isinstance(message, WatchOrder):
            self._new.append(message)
            return
        self._watching.handle_viewer_message(identity, message)
        if isinstance(message, WatchJob):
            for number, news in self._told.items():
                points = {name: sorted(known.items()) for name, known in self._points[number].items()}
                self._watching.send_to_viewers(msgspec.structs.replace(news, points=points.pop("", []), metrics=points))

    def expect(self) -> None:
        """Keep news for a watcher that has read the record and is about to connect."""
        self._watching.expect()

    def turn(self, search: OrderTarget) -> bool:
        """Begin new orders, and report orders that were carried out; true if any order is new."""
        orders, self._new = self._new, []
        for order in orders:
            refusal = self._begin(order, search)
            if refusal:
                self._send_order_news(order, "refused", refusal)
            else:
                self._waiting.append(order)
        self._waiting = [order for order in self._waiting if not self._is_done(order)]
        return bool(orders)

    def changed(self, what: str, size: Callable[[int], int]) -> None:
        """Record changes of trials, and send them to watchers; ``what`` describes the change."""
        now, is_new = self._clock(), False
        for row in self._study.rows:
            workers = size(row.number) if row.is_active else 0
            seen = row.said, row.phase, row.why, row.is_active, row.is_held, self._study.is_paused, workers
            if self._seen.get(row.number) == seen:  # few of hundreds of trials have changed
                continue
            self._seen[row.number] = seen
            news = self._row(row, workers)
            known = self._points.setdefault(row.number, {})
            fresh = {
                name: sorted(each for each in points.items() if not _is_known(known.get(name, {}), *each))
                for name, points in {"": row.values, **by_name(row.metrics)}.items()
            }
            fresh = {name: points for name, points in fresh.items() if points}
            before = self._told.get(row.number)
            if fresh or news != before:
                is_new |= before is None or (before.state, before.workers) != (news.state, news.workers)
                self._told[row.number] = news
                for name, points in fresh.items():
                    known.setdefault(name, {}).update(points)
                told = msgspec.structs.replace(news, time_s=now, points=fresh.pop("", []), metrics=fresh)
                self._record(TrialRecord(**msgspec.structs.asdict(told)))
                self._watching.send_to_viewers(told)
        if what and is_new:  # no line for each epoch
            self._record(MarkRecord(now, "note", what, -1))
            self._watching.said(what)

    def close(self) -> None:
        """Close the record. Idempotent."""
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()

    # -- orders -------------------------------------------------------------------------------------------------------

    def _begin(self, order: WatchOrder, search: OrderTarget) -> str:
        """Begin an order; returns why it is refused, or "" if it is not refused."""
        study, verb = self._study, order.verb
        if verb in WHOLE:
            if verb == "stop":
                search.stop()
            else:
                study.is_paused = verb == "pause"
        elif verb not in OF_TRIALS:
            return "a search knows no such order"
        elif not 0 <= order.trial < len(study.rows):
            return f"there is no trial {order.trial}"
        else:
            return self._begin_trial(verb, study.rows[order.trial], search)
        self._send_order_news(order, "taken", "every trial, at its next report")
        return ""

    def _begin_trial(self, verb: str, row: StudyTrial, search: OrderTarget) -> str:
        if verb == "stop-trial":
            if row.phase not in ("running", "paused") and not row.is_active:
                return f"trial {row.number} is {row.phase}"
            search.stop_trial(row.number, BY_HAND)
        elif verb == "repeat-trial":
            if row.phase in ("running", "paused") or row.is_active:
                return f"trial {row.number} is {row.phase}: stop it first"
            self._study.repeat(row.number)
        elif row.phase == "paused" and verb == "pause-trial":
            return f"trial {row.number} is paused already, and continues only if it is good enough"
        elif row.phase != "running":
            return f"trial {row.number} is {row.phase}"
        elif verb == "pause-trial":
            self._study.hold(row.number)
        elif self._study.is_paused:
            return "resume the search first"
        else:
            self._study.let_go(row.number)
        return ""

    def abandoned(self) -> None:
        """Let all trials go on that users have paused, because the page where they could resume them has ended."""
        if self._study.let_all_go():
            logger.warning("the live page has ended: all trials that were paused there go on")

    def _is_done(self, order: WatchOrder) -> bool:
        """True if an order was carried out, or never will be; watchers get the result."""
        study = self._study
        if order.verb in WHOLE:
            if order.verb == "pause" and not study.is_paused:
                self._send_order_news(order, "refused", "the search goes on again")
            elif order.verb == "pause" and any(row.is_active for row in study.rows):
                return False
            else:
                self._send_order_news(order, "acted", DONE[order.verb])
            return True
        row = study.rows[order.trial]
        if order.verb == "pause-trial" and not row.is_held:
            why = "goes on again" if row.phase == "running" else f"is {row.phase}"
            self._send_order_news(order, "refused", f"trial {row.number} {why}")
        elif order.verb == "repeat-trial":
            *_, last = (each.number for each in study.rows if each.again == row.number)
            self._send_order_news(order, "acted", f"trial {row.number} begins again as trial {last}")
        elif order.verb != "resume-trial" and row.is_active:
            return False
        else:
            self._send_order_news(order, "acted", f"trial {row.number} {DONE[order.verb]} epoch {row.epoch}", row.epoch)
        return True

    def _send_order_news(self, order: WatchOrder, state: str, text: str, step: int = -1) -> None:
        now = self._clock()
        self._watching.send_to_viewers(OrderNews(order.number, order.verb, state, text, step, now))
        if state == "acted":
            self._record(MarkRecord(now, "order", text, step))

    # -- records ------------------------------------------------------------------------------------------------------

    def _row(self, row: StudyTrial, size: int) -> TrialNews:
        finite = [value for value in row.values.values() if math.isfinite(value)]
        best = (min if self._study.plan.minimize else max)(finite) if finite else None
        values = {name: value for name, value in (("best", best), ("last", row.value)) if value is not None}
        state = str(row.phase)
        if row.phase == "running" and not row.is_active:
            state = "held" if row.is_held or self._study.is_paused else "waiting"
        elif row.phase == "running" and (row.is_held or self._study.is_paused):
            state = "pausing"
        elif row.is_active and row.phase in ("pruned", "failed"):  # it may never reach its next report
            state = "stopping"
        return TrialNews(0.0, row.number, state, dict(row.parameters), values, row.epoch, size, row.why, [])

    def _record(self, record: Record) -> None:
        if self._writer is None:
            return
        try:
            self._writer.append(record)
        except OSError as error:
            logger.warning("the record in %s ends here: %s", self._writer.path, error.strerror)
            with contextlib.suppress(OSError):
                self.close()


def _is_known(known: dict[int, float], epoch: int, value: float) -> bool:
    """True if this value was recorded before; NaN counts as equal to NaN."""
    before = known.get(epoch)
    return before is not None and (before == value or (math.isnan(before) and math.isnan(value)))
