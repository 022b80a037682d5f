"""Bridge between a job's live view in a notebook and its monitor: what views say comes and goes by the kernel.

    bridge = Bridge(job, widget.send)
    bridge.take({"view": "a1", "open": True})       # what a view sends; answers go by ``widget.send``

So the browser needs no port of this host, and no key: whoever runs cells here may order what they like. Each view has a
connection of its own to the monitor, over a socket in the file system. Once the job has ended its record is shown.
"""

# Threads. One for each view that is open, with an event loop of its own: the loop of the kernel stands still while a
# cell runs, and curves should not. ``take`` comes in the kernel's main thread or in that of a subshell, so ``_lock``
# guards ``_pipes``. It reaches a pipe's loop by ``call_soon_threadsafe``. ``tell`` is called by all of them: ipykernel
# hands messages of any thread to the one that writes to its socket.

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
"""Views at a time: a page that was closed at once has not said goodbye, so that the oldest one goes."""

MOST_UNSEEN = 2**24
"""Characters that a view has not confirmed. Confirmations wait for the cell that the kernel runs."""

LOOK_S, BEAT_S = 0.1, 4.0
"""Intervals of looks for a page that begins, and of signs of life to views."""

UNREACHED = (
    OSError,
    NotPrivateError,
    asyncio.TimeoutError,
    tornado.httpclient.HTTPClientError,  # it takes no more connections, or is too slow
    tornado.websocket.WebSocketClosedError,
)

LONGEST_VIEW = 40
GOODBYE_S = 10.0


class ViewedJob(Protocol):
    """Job as its views need it."""

    link_file: Path
    record: Path | None

    @property
    def done(self) -> bool:
        """True when it has ended."""

    @property
    def status(self) -> int:
        """Exit status, where it has ended."""

    def when_over(self, call: Callable[[], None]) -> None:
        """Call this when it has ended."""

    def resize(self, np: int) -> None:
        """Go on with so many workers."""


@final
class ToBridge(msgspec.Struct, frozen=True):
    """Message of a view: it asks how to connect, opens, sends, has seen so many characters, or is gone."""

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
        self._job, self._tell = job, tell
        self._lock = threading.Lock()
        self._pipes: dict[str, _Pipe] = {}

    def take(self, content: object) -> None:
        """Take in what a view has sent; of what is none of its messages, nothing."""
        try:
            message = msgspec.convert(content, ToBridge)
        except msgspec.ValidationError:
            return
        if len(message.view) <= LONGEST_VIEW:
            with self._lock:
                self._take(message)

    def _take(self, message: ToBridge) -> None:
        view = message.view
        pipe = self._pipes.get(view)
        if message.ask:
            self._tell({"view": view, "contact": {"kernel": True}})
        elif message.open:
            self._open(view)
        elif pipe is not None and message.gone:
            self._pipes.pop(view).close()
        elif pipe is not None and message.seen:
            pipe.seen(message.seen)
        elif pipe is not None and not self._is_resize(view, message.send):
            pipe.send(message.send)

    def close(self) -> None:
        """End all views' connections."""
        with self._lock:
            while self._pipes:
                self._pipes.popitem()[1].close()

    def _open(self, view: str) -> None:
        if view in self._pipes:
            self._pipes.pop(view).close()
        while len(self._pipes) >= MOST_VIEWS:
            self._pipes.pop(next(iter(self._pipes))).close()
        self._pipes[view] = _Pipe(self._job, lambda said: self._tell({"view": view, **said}))

    def _is_resize(self, view: str, text: str) -> bool:
        """Obey an order for another number of workers: here the slots of this host are the job's to say."""
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
        self._tell({"view": view, "text": _encoded([{"t": "order", "order": msgspec.to_builtins(news)}])})
        return True


@final
class _Pipe:
    """Connection of one view to the monitor, by a thread of its own."""

    def __init__(self, job: ViewedJob, tell: Callable[[dict[str, Any]], None]) -> None:
        self._job, self._tell = job, tell
        self._lock = threading.Lock()
        self._unseen, self._is_closed, self._is_over = 0, False, False
        self._loop = asyncio.new_event_loop()
        self._said: asyncio.Queue[tuple[bool, str | bytes | None]] = asyncio.Queue()
        """What has come: from the view if the first is true, else from the monitor; ``None`` for its end."""
        threading.Thread(target=self._run, name="farandole-view", daemon=True).start()

    def send(self, text: str) -> None:
        """Pass a message of the view on."""
        self._put(text)

    def seen(self, count: int) -> None:
        """Take in that the view has taken so many characters."""
        with self._lock:
            self._unseen = max(0, self._unseen - count)

    def close(self) -> None:
        """End it; nothing more is told."""
        self._is_closed = True
        self._put(None)

    def _put(self, text: str | None) -> None:
        with contextlib.suppress(RuntimeError):  # it has ended by itself
            self._loop.call_soon_threadsafe(self._said.put_nowait, (True, text))

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._serve())
        except Exception:  # the view asks for another one
            logger.warning("a live view has lost its connection", exc_info=True)
        finally:
            self._loop.close()
            if not self._is_closed:
                self._tell({"closed": 1001})

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
        """Close the connection, and wait until it is: its descriptor would outlive the loop."""
        connection.close()
        with contextlib.suppress(asyncio.TimeoutError):
            while not self._is_over:
                self._is_over = await asyncio.wait_for(self._said.get(), GOODBYE_S) == (False, None)

    async def _connected(self) -> Any:
        """A connection that has shown its key; ``None`` if the job has ended."""
        while not self._is_closed:
            is_over = self._job.done  # before the look: what is not there then, does not come any more
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
                await asyncio.sleep(LOOK_S)  # nothing announces a file
            else:
                return connection
        return None

    def _last(self) -> list[dict[str, Any]]:
        """Messages that tell all of a job that has ended."""
        hub = last_state(self._job, self._job.done)
        return [{"t": "hello", "role": "look", "orders": False}, *hub.snapshot(()), {"t": "ready"}]

    def _show(self, text: str) -> None:
        with self._lock:
            self._unseen += len(text)
        self._tell({"text": text})


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
