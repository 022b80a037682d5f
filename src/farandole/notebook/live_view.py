r"""Live view of a notebook's ranks, across their cells: a monitor that is a child of the kernel, and its widget.

    view = begin_view(live=None, record="")
    view.follow(["ipc://@a1"], secret)          # the controller of the ranks; again when they are a new job
    view.begins(3, "cell 3: train(9)")
    view.shown(0, "[stdout:1] loss 0.5\n")
    view.over(3)
    view.close()                                # a picture takes its place

It is the view of ``farandole.launch`` and of the page: ranks send numbers to the controller, which passes them on.
"""

# Threads. The kernel's main thread calls everything except ``over``, which the client's own thread calls: hence
# ``_lock``. The monitor reads a pipe; a message that does not fit is dropped, so the kernel never waits for the pipe.

from __future__ import annotations

import contextlib
import os
import select
import threading
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, final

import msgspec

from farandole.control.monitor_messages import MonitorCell, MonitorOutput
from farandole.errors import UnsupportedError, UsageError
from farandole.events import logger
from farandole.launch.function.job_record import folder_of_sockets, monitor_config, own_folder
from farandole.launch.job.monitor_process import MonitorProcess
from farandole.monitor.launching import can_show, missing

LONGEST_TEXT = select.PIPE_BUF // 8
"""Most characters of a line for the monitor: in JSON a character takes six bytes at most."""

NO_VIEW = (
    "these ranks have no live view: they were attached outside of a notebook, or with live=False, or it could not "
    "start: farandole.notebook.attach(rc, live=True) says what it lacks"
)

NO_RESIZE = (
    "the ranks are the engines that were attached: start others, or end some, and farandole.notebook.attach(rc) makes "
    "ranks of those that are there"
)


@final
class RanksView:
    """Live view of the ranks of one ``attach``, if it ``is_shown``, and their record.

    The record is in the folder ``record``, or in a folder that is removed with this object.
    """

    status = 0
    """See ``ViewedJob``: 0, because failures of cells are reported elsewhere."""

    def __init__(self, record: str, is_shown: bool, is_optional: bool) -> None:
        folder = own_folder(self)
        self.link_file = (folder_of_sockets(self, folder) if is_shown else folder) / "live.link"
        self.record: Path | None = Path(os.path.abspath(record)) if record else folder / "run"
        self._is_shown, self._is_optional, self._is_ready = is_shown, is_optional, False
        config = monitor_config("ranks of a notebook", self.record, self.link_file if is_shown else None, is_optional)
        held = contextlib.ExitStack()
        self._monitor = held.enter_context(MonitorProcess(msgspec.structs.replace(config, in_cells=True)))
        self._monitor.result = 0, ""
        self._end = weakref.finalize(self, held.close)
        self._lock = threading.Lock()
        self._running: set[int] = set()
        self._unsaid = 0  # lines for which there was no room
        self._calls: list[Callable[[], None]] = []
        self._widget: Any = None

    # -- the ranks ----------------------------------------------------------------------------------------------------

    def follow(self, addresses: Sequence[str], secret: str) -> None:
        """Watch the job of this controller from now on; raises ``UsageError`` as ``await_ready`` does."""
        self.await_ready()
        if self.done:
            return
        with self._lock:
            self._running.clear()
            self._monitor.contact(addresses, secret)
            self._send_news(MonitorCell(""))

    def await_ready(self) -> None:
        """Wait until the monitor records; raises ``UsageError`` if it cannot and the user has asked for it."""
        if self._is_ready or self.done:
            return
        try:
            self._monitor.await_ready()
            self._is_ready = True
        except UsageError as error:
            self.give_up(str(error))

    def give_up(self, why: str) -> None:
        """End the view before it has begun; raises ``UsageError`` if the user has asked for it."""
        self.close()
        self._is_shown = False
        if not self._is_optional:
            raise UsageError(why)
        logger.warning("the ranks have no live view: %s", why)

    def begins(self, serial: int, text: str) -> None:
        """Send the monitor that a cell begins."""
        with self._lock:
            self._running.add(serial)
            self._send_news(MonitorCell(text[:LONGEST_TEXT]))

    def over(self, serial: int) -> None:
        """Send the monitor that a cell has ended on all ranks."""
        with self._lock:
            if self._running:
                self._running.discard(serial)
                if not self._running:
                    self._send_news(MonitorCell(""))

    def follow_cell(self, serial: int, results: Sequence[Any]) -> None:
        """Call ``over`` when all of these ``AsyncResult`` are done."""

        def look(_: object) -> None:
            if all(result.done() for result in results):
                self.over(serial)

        for result in results:
            result.add_done_callback(look)

    def shown(self, stream: int, text: str) -> None:
        """Send whole lines that were shown to the monitor; if there is no room for some lines, send their number."""
        with self._lock:
            for line in text.splitlines(keepends=True):
                left_out = f"({self._unsaid} lines left out: they arrived too fast)\n"
                if self._unsaid and self._send_news(MonitorOutput(stream, left_out)):
                    self._unsaid = 0
                short = line if len(line) <= LONGEST_TEXT else f"{line[:LONGEST_TEXT]}…\n"
                if self._unsaid or not self._send_news(MonitorOutput(stream, short)):
                    self._unsaid += 1

    def close(self) -> None:
        """End the view: a picture replaces its widgets, and the record is complete. Idempotent."""
        with self._lock:
            if not self._end.alive:
                return
            self._end()
            calls, self._calls = self._calls, []
        for call in calls:
            try:
                call()
            except Exception:
                logger.warning("the picture of a live view could not be shown", exc_info=True)

    def _send_news(self, news: MonitorCell | MonitorOutput) -> bool:
        return not self._end.alive or self._monitor.send_news(news)

    # -- the widget ---------------------------------------------------------------------------------------------------

    @property
    def widget(self) -> Any:
        """The widget; it can be shown any number of times, and after the end, too."""
        if not self._is_shown:
            raise UnsupportedError(NO_VIEW)
        if self._widget is None:
            from farandole.monitor.widget import LiveWidget  # notebooks have what it needs

            self._widget = LiveWidget(self)
        return self._widget

    def wait(self, until: Callable[[], bool]) -> None:
        """Carry out orders of the widget until ``until()`` is true; without a widget, or after the end, do nothing."""
        if self._widget is not None and not self.done:
            self._widget.wait(until)

    @property
    def done(self) -> bool:
        """True when the view has ended."""
        return not self._end.alive

    def when_over(self, call: Callable[[], None]) -> None:
        """Call ``call`` when the view has ended; at once if it has ended already."""
        with self._lock:
            if self._end.alive:
                self._calls.append(call)
                return
        call()

    def resize(self, np: int) -> None:
        """Refuse: the ranks are engines that the user has started."""
        raise UsageError(NO_RESIZE)


def begin_view(live: bool | None, record: str) -> RanksView | None:
    """Begin the view for these arguments of ``attach``; ``None`` if neither a view nor a record is wanted.

    By default a notebook that can show a view has one; if the view fails, there is a warning and no view.
    """
    if live and (lacking := missing()):
        raise UsageError(f"a live view needs {lacking}, which is not here: pip install 'farandole[notebook]'")
    is_shown = live or (live is None and can_show())
    if not is_shown and not record:
        return None
    is_optional = not (live or record)
    try:
        return RanksView(record, is_shown, is_optional)
    except (OSError, UsageError) as error:
        if not is_optional:
            raise
        logger.warning("the ranks have no live view: %s", error)
        return None
