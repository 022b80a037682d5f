"""Bridge between a job's live view in a notebook and its monitor: messages of views pass through the kernel.

    bridge = Bridge(job, widget.send)
    bridge.handle_view_message({"view": "a1", "open": True})  # a message of a view; answers are sent by ``widget.send``

So the browser needs no port of this host, and no key: a user who may run cells here may give all orders. Each view has
a connection of its own to the monitor, over a socket in the file system. After the end of the job its record is shown.
"""

# Threads. Each open view has one, with an event loop of its own: the loop of the kernel stands still while a cell runs,
# and curves should not. ``handle_view_message`` runs in the kernel's main thread or in that of a subshell, so ``_lock``
# guards ``_pipes``. It reaches a pipe's loop by ``call_soon_threadsafe``. All threads call ``tell``: ipykernel passes
# messages of any thread to the thread that writes to its socket.

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, final

import msgspec
import tornado.httpclient
import tornado.netutil
import tornado.websocket

from farandole.control.monitor_messages import UNIX
from farandole.control.private_file import NotPrivateError, read_private
from farandole.control.watch_messages import OrderNews
from farandole.errors import UsageError
from farandole.monitor.folder import RunInfo
from farandole.monitor.hub import Hub
from farandole.monitor.runs import loaded

logger = logging.getLogger("farandole.monitor")

MOST_VIEWS = 16
"""Most views at a time; a further view closes the oldest, because pages may close without a message."""

MOST_UNSEEN = 2**24
"""Most characters that a view has not confirmed. Confirmations wait while the kernel runs a cell."""

LOOK_S, BEAT_S = 0.1, 4.0
"""Polling interval for the link of a page that starts, and interval of signs of life to views."""

UNREACHED = (
    OSError,
    NotPrivateError,
    asyncio.TimeoutError,
    tornado.httpclient.HTTPClientError,  # the monitor accepts no more connections, or is too slow
    tornado.websocket.WebSocketClosedError,
)

LONGEST_VIEW = 40
GOODBYE_S = 10.0


class ViewedJob(Protocol):
    """Interface of a job for its views."""

    link_file: Path
    record: Path | None

    @property
    def done(self) -> bool:
        """True when the job has ended."""

    @property
    def status(self) -> int:
        """Exit status, after the end of the job."""

    def when_over(self, call: Callable[[], None]) -> None:
        """Call ``call`` when the job has ended."""

    def resize(self, np: int) -> None:
        """Go on with ``np`` workers."""


@final
class ToBridge(msgspec.Struct, frozen=True):
    """Message of a view: it asks how to connect, opens, sends, confirms ``seen`` characters, or closes (``gone``)."""

    view: str
    ask: str = ""
    open: bool = False
    send: str = ""
    seen: int = 0
    gone: bool = False


@final
class _Scale(msgspec.Struct, frozen=True, tag="order", tag_field="t"):
    verb: str
    workers: int = 0


@final
class Bridge:
    """Views of one job."""

    def __init__(self, job: ViewedJob, tell: Callable[[dict[str, Any]], None]) -> None:
        self._job, self._send_to_view = job, tell
        self._lock = threading.Lock()
        self._pipes: dict[str, _Pipe] = {}

    def handle_view_message(self, content: object) -> None:
        """Handle a message of a view; ignore everything that is no ``ToBridge``."""
        try:
            message = msgspec.convert(content, ToBridge)
        except msgspec.ValidationError:
            return
        if len(message.view) <= LONGEST_VIEW:
            with self._lock:
                self._dispatch(message)

    def _dispatch(self, message: ToBridge) -> None:
        view = message.view
        pipe = self._pipes.get(view)
        if message.ask:
            self._send_to_view({"view": view, "contact": {"kernel": True}})
        elif message.open:
            self._open(view)
        elif pipe is not None and message.gone:
            self._pipes.pop(view).close()
        elif pipe is not None and message.seen:
            pipe.seen(message.seen)
        elif pipe is not None and not self._is_resize(view, message.send):
            pipe.send(message.send)

    def close(self) -> None:
        """Close the connections of all views."""
        with self._lock:
            while self._pipes:
                self._pipes.popitem()[1].close()

    def _open(self, view: str) -> None:
        if view in self._pipes:
            self._pipes.pop(view).close()
        while len(self._pipes) >= MOST_VIEWS:
            self._pipes.pop(next(iter(self._pipes))).close()
        self._pipes[view] = _Pipe(self._job, lambda said: self._send_to_view({"view": view, **said}))

    def _is_resize(self, view: str, text: str) -> bool:
        """Carry out an order for another number of workers, for which this job, not the monitor, sets the slots."""
        try:
            order = msgspec.json.decode(text, type=_Scale)
        except msgspec.DecodeError:
            return False
        if order.verb != "scale":
            return False
        state, said = "acted", f"{order.workers} workers from the next commit on"
        try:
            self._job.resize(order.workers)
        except (OSError, UsageError) as error:
            state, said = "refused", str(error)
        news = OrderNews(0, "scale", state, said, -1, time.time())
        self._send_to_view({"view": view, "text": _encoded([{"t": "order", "order": msgspec.to_builtins(news)}])})
        return True


@final
class _Pipe:
    """Connection of one view to the monitor, by a thread of its own."""

    def __init__(self, job: ViewedJob, tell: Callable[[dict[str, Any]], None]) -> None:
        self._job, self._send_to_view = job, tell
        self._lock = threading.Lock()
        self._unseen, self._is_closed, self._is_over = 0, False, False
        self._loop = asyncio.new_event_loop()
        self._said: asyncio.Queue[tuple[bool, str | bytes | None]] = asyncio.Queue()
        """Messages: from the view if the first item is true, else from the monitor; ``None`` for the end."""
        threading.Thread(target=self._serve_page, name="farandole-view", daemon=True).start()

    def send(self, text: str) -> None:
        """Pass on a message of the view."""
        self._put(text)

    def seen(self, count: int) -> None:
        """Record that the view has received ``count`` characters."""
        with self._lock:
            self._unseen = max(0, self._unseen - count)

    def close(self) -> None:
        """Close the connection; ``tell`` is not called after that."""
        self._is_closed = True
        self._put(None)

    def _put(self, text: str | None) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended by itself
            self._loop.call_soon_threadsafe(self._said.put_nowait, (True, text))

    def _serve_page(self) -> None:
        try:
            self._loop.run_until_complete(self._serve())
        except Exception:  # the view opens another connection
            logger.warning("a live view has lost its connection", exc_info=True)
        finally:
            self._loop.close()
            if not self._is_closed:
                self._send_to_view({"closed": 1001})

    async def _serve(self) -> None:
        connection = await self._connected()
        if connection is not None:
            await self._pass_on(connection)
            await self._end(connection)
        elif not self._is_closed:
            self._show(_encoded(self._last()))

    async def _pass_on(self, connection: Any) -> None:
        while not self._is_closed and self._unseen < MOST_UNSEEN:
            try:
                of_view, text = await asyncio.wait_for(self._said.get(), BEAT_S)
            except asyncio.TimeoutError:
                self._show("[]")
                continue
            if text is None:
                self._is_over = not of_view
                return
            if not of_view:
                self._show(text if isinstance(text, str) else text.decode())
                continue
            try:
                await connection.write_message(text)
            except tornado.websocket.WebSocketClosedError:
                return

    async def _end(self, connection: Any) -> None:
        """Close the connection, and wait until it is closed: its descriptor would outlive the loop."""
        connection.close()
        with contextlib.suppress(asyncio.TimeoutError):
            while not self._is_over:
                self._is_over = await asyncio.wait_for(self._said.get(), GOODBYE_S) == (False, None)

    async def _connected(self) -> Any:
        """A connection that has sent its key; ``None`` if the job has ended."""
        while not self._is_closed:
            is_over = self._job.done  # before the link is read: a link that is missing then never appears
            try:
                link = read_private(self._job.link_file).decode().strip()
                address, _, key = link.partition("/#key=")
                connection = await tornado.websocket.websocket_connect(
                    "ws://monitor/socket",
                    on_message_callback=lambda text: self._said.put_nowait((False, text)),
                    max_message_size=2**28,
                    resolver=_UnixResolver(address.removeprefix(UNIX)),
                )
                await connection.write_message(_encoded({"key": key}))
            except UNREACHED:
                if is_over:
                    return None
                await asyncio.sleep(LOOK_S)  # no event announces the file
            else:
                return connection
        return None

    def _last(self) -> list[dict[str, Any]]:
        """Messages with the whole state of a job that has ended."""
        hub = last_state(self._job, self._job.done)
        return [{"t": "hello", "role": "look", "orders": False}, *hub.snapshot(()), {"t": "ready"}]

    def _show(self, text: str) -> None:
        with self._lock:
            self._unseen += len(text)
        self._send_to_view({"text": text})


def last_state(job: ViewedJob, is_over: bool) -> Hub:
    """State of a job as far as it is recorded."""
    try:
        hub = loaded(job.record or "")
    except UsageError:
        hub = Hub(RunInfo(time.time(), ["training"]))
    if is_over and hub.state != "ended":
        hub.end(job.status, "The record ends before the job did.", hub.info.ended_s or time.time())
    return hub


@final
class _UnixResolver(tornado.netutil.Resolver):
    """Resolver of every name to one socket in the file system."""

    def initialize(self, path: str) -> None:
        self._path = path

    async def resolve(self, host: str, port: int, family: int = socket.AF_UNSPEC) -> list[tuple[int, Any]]:
        return [(socket.AF_UNIX, self._path)]


def _encoded(message: object) -> str:
    return msgspec.json.encode(message).decode()
