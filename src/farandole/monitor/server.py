"""Server of the live page: the page itself, which is no secret, and a WebSocket for viewers with a key.

    server = PageServer(hub, keys, on_order)
    port = server.listen("127.0.0.1", 0, None)
    server.push()                   # a few times a second, while there are viewers
    await server.close()

A viewer's first message is its key, as {"key": "..."}, within a few seconds; the server reads nothing else before.
Cookies, query strings and the header ``Origin`` are ignored: a proxy may change them. Every later message is checked
against its type; the first invalid message ends the connection.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from importlib import resources
from typing import Any, TypeAlias, final

import msgspec
import tornado.httpserver
import tornado.netutil
import tornado.web
import tornado.websocket

from farandole.control.watch_messages import OF_TRIALS
from farandole.monitor.access import PageKeys, Role
from farandole.monitor.hub import Hub
from farandole.monitor.importance import importance

logger = logging.getLogger("farandole.monitor")

IDLE_S = 10.0
"""Longest time that a connection may be silent, or take for a request."""

KEY_S = 5.0
"""Time in which a viewer must send its key."""

MOST_VIEWERS, MOST_STRANGERS = 64, 32

MOST_CONNECTIONS = 128
"""Most connections without a key; a further one closes the oldest, so that silent connections block no viewer."""

LONGEST_MESSAGE = 4096
MOST_BEHIND_BYTES = 2**24
"""Most bytes that a viewer has not received; beyond that it is disconnected, and reconnects for a snapshot."""

ANSWER_S = 5.0
"""Time to finish an answer about importance when the run ends."""

POLICY = "; ".join((
    "default-src 'none'", "script-src 'self'", "style-src 'self'", "connect-src 'self'", "img-src 'self' data: blob:",
    "base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'",
))  # fmt: skip

FILES = {
    "": ("index.html", "text/html; charset=utf-8"),
    "page.js": ("page.js", "text/javascript; charset=utf-8"),
    "live.js": ("live.js", "text/javascript; charset=utf-8"),
    "live.css": ("live.css", "text/css; charset=utf-8"),
    "page.css": ("page.css", "text/css; charset=utf-8"),
    "icon.svg": ("icon.svg", "image/svg+xml"),
}

OnOrder: TypeAlias = Callable[[str, int], int]
"""Function that gives an order, a verb with its argument: the workers for ``scale``, the trial for ``pause-trial``.

Returns the number of the order.
"""


@final
class ViewerOrder(msgspec.Struct, frozen=True, tag="order", tag_field="t", forbid_unknown_fields=True):
    """Order of a viewer; see ``WatchOrder``."""

    verb: str
    workers: int = 0
    trial: int = -1

    @property
    def argument(self) -> int:
        """Argument of the verb: a trial, or a number of workers."""
        return self.trial if self.verb in OF_TRIALS else self.workers


@final
class ViewerRanks(msgspec.Struct, frozen=True, tag="ranks", tag_field="t", forbid_unknown_fields=True):
    """Ranks whose own curves a viewer wants in addition to the band."""

    ranks: list[int]


@final
class ViewerPing(msgspec.Struct, frozen=True, tag="ping", tag_field="t", forbid_unknown_fields=True):
    """Question of a viewer whether the server is still alive."""


@final
class ViewerImportance(msgspec.Struct, frozen=True, tag="importance", tag_field="t", forbid_unknown_fields=True):
    """Question of a viewer how much each hyper-parameter of a search matters."""


class _Key(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    key: str


_keys = msgspec.json.Decoder(_Key)
_messages = msgspec.json.Decoder(ViewerOrder | ViewerRanks | ViewerPing | ViewerImportance)
_orders = msgspec.json.Decoder(ViewerOrder)


def built() -> bool:
    """True if this installation has the page's script, which is created when the wheel is built."""
    return resources.files("farandole.monitor").joinpath("static", "live.js").is_file()


@final
class PageServer:
    """Server of one run's page, in the running event loop. ``on_order`` is ``None`` if no orders are possible."""

    def __init__(self, hub: Hub, keys: PageKeys, on_order: OnOrder | None, is_reachable: bool = True) -> None:
        self.hub, self.keys, self.on_order = hub, keys, on_order
        self.is_reachable = is_reachable
        """True if it has an address that browsers can open."""
        self.viewers: set[_Socket] = set()
        self.strangers: set[_Socket] = set()
        told = {"server": self}
        application = tornado.web.Application(
            [(r"/socket", _Socket, told), (r"/order", _Order, told), (r"/([a-z.]*)", _Page)],
            websocket_max_message_size=LONGEST_MESSAGE,
            websocket_ping_interval=20,
            log_function=lambda _: None,
            default_handler_class=_Nothing,
        )
        self._importance: asyncio.Task[None] | None = None
        self._application = application
        self._server: _CappedServer | None = None

    def listen(self, host: str, port: int, tls: ssl.SSLContext | None) -> int:
        """Listen at this address; returns the port. Raises ``OSError`` if this fails."""
        sockets = tornado.netutil.bind_sockets(port, host, reuse_port=False)
        self._serve(sockets, tls)
        return int(sockets[0].getsockname()[1])

    def listen_unix(self, path: str) -> None:
        """Listen at a socket in the file system, for this user alone. Raises ``OSError`` if this fails."""
        self._serve([tornado.netutil.bind_unix_socket(path, mode=0o600)], None)

    def _serve(self, sockets: list[socket.socket], tls: ssl.SSLContext | None) -> None:
        self._server = _CappedServer(
            self._application,
            ssl_options=tls,
            max_buffer_size=2**20,
            max_header_size=2**14,
            max_body_size=LONGEST_MESSAGE,
            idle_connection_timeout=IDLE_S,
            body_timeout=IDLE_S,
        )
        self._server.add_sockets(sockets)

    def push(self) -> None:
        """Send the changes to all viewers."""
        news, curves = self.hub.changes()
        if not self.viewers:
            return
        common = [msgspec.json.encode(each) for each in news]
        encoded = {key: msgspec.json.encode(each) for key, each in curves.items()}
        for viewer in tuple(self.viewers):
            own = [text for key, text in encoded.items() if self.hub.is_shown(key[1], viewer.ranks)]
            if common or own:
                viewer.send([*common, *own])

    def tell_importance(self) -> None:
        """Send the importance of each hyper-parameter to all viewers; one answer at a time is computed."""
        if self._importance is None or self._importance.done():
            self._importance = asyncio.get_running_loop().create_task(self._tell_importance())

    async def _tell_importance(self) -> None:
        study = self.hub.at_first_rung()
        # In a thread, because Optuna takes seconds to load.
        shares = await asyncio.to_thread(importance, study)
        told = {"t": "importance", "shares": shares, "epoch": study.epoch, "trials": len(study.trials)}
        for viewer in tuple(self.viewers):
            viewer.send([msgspec.json.encode(told)])

    async def close(self) -> None:
        """Send the last changes to the viewers, and close all connections."""
        self.push()
        if self._importance is not None:  # the viewer that has asked still waits for it
            await asyncio.wait({self._importance}, timeout=ANSWER_S)
            self._importance.cancel()
        for viewer in (*self.viewers, *self.strangers):
            viewer.close(1001, "the run has ended")
        if self._server is not None:
            self._server.stop()
            await self._server.close_all_connections()


@final
class _CappedServer(tornado.httpserver.HTTPServer):
    """Server with a maximum number of connections that are no viewers, so that silent ones use up no descriptors."""

    def initialize(self, *args: Any, **kwargs: Any) -> None:
        self._streams: dict[Any, None] = {}
        super().initialize(*args, **kwargs)

    def handle_stream(self, stream: Any, address: Any) -> None:
        self._streams = {each: None for each in self._streams if not each.closed()}
        while len(self._streams) >= MOST_CONNECTIONS:
            oldest = next(iter(self._streams))
            self.keep(oldest)
            oldest.close()
        self._streams[stream] = None
        super().handle_stream(stream, address)

    def keep(self, stream: Any) -> None:
        """Stop counting a connection, because it belongs to a viewer."""
        self._streams.pop(stream, None)


class _Guarded(tornado.web.RequestHandler):
    def set_default_headers(self) -> None:
        self.set_header("Content-Security-Policy", POLICY)
        self.set_header("X-Content-Type-Options", "nosniff")
        self.set_header("Referrer-Policy", "no-referrer")
        self.set_header("Cross-Origin-Opener-Policy", "same-origin")
        self.set_header("Cross-Origin-Resource-Policy", "same-origin")
        self.set_header("Cache-Control", "no-store")
        self.set_header("Server", "farandole")

    def write_error(self, status_code: int, **_: Any) -> None:
        self.set_header("Content-Type", "text/plain; charset=utf-8")
        self.finish(f"{status_code} {self._reason}\n")


@final
class _Nothing(_Guarded):
    def prepare(self) -> None:
        raise tornado.web.HTTPError(404)


@final
class _Page(_Guarded):
    def get(self, name: str) -> None:
        if name not in FILES:
            raise tornado.web.HTTPError(404)
        file, kind = FILES[name]
        path = resources.files("farandole.monitor").joinpath("static", file)
        if not path.is_file():
            raise tornado.web.HTTPError(404, reason="This installation was built without Node, and has no live view")
        self.set_header("Content-Type", kind)
        self.finish(path.read_bytes())


@final
class _Order(_Guarded):
    """Orders of programs: a POST with the key as ``Authorization: Bearer``."""

    def initialize(self, server: PageServer) -> None:
        self._page = server

    def post(self) -> None:
        scheme, _, key = self.request.headers.get("Authorization", "").partition(" ")
        if scheme != "Bearer" or self._page.keys.role(key) is not Role.CONTROL:
            raise tornado.web.HTTPError(403)
        if self._page.on_order is None:
            raise tornado.web.HTTPError(409, reason="The run is over")
        try:
            order = _orders.decode(self.request.body)
        except msgspec.DecodeError:
            raise tornado.web.HTTPError(400) from None
        self.finish({"number": self._page.on_order(order.verb, order.argument)})


@final
class _Socket(tornado.websocket.WebSocketHandler):
    """Connection of a viewer, or of a client that has not sent a key yet."""

    def initialize(self, server: PageServer) -> None:
        self._page = server
        self.ranks: set[int] = set()
        self._role: Role | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._is_cut = False

    def check_origin(self, origin: str) -> bool:
        return True  # a key is needed, which no other page has; and proxies change this header

    def get_compression_options(self) -> dict[str, Any]:
        return {"compression_level": 1}

    def open(self, *_: str, **__: str) -> None:
        if len(self._page.strangers) >= MOST_STRANGERS or self.request.query:
            self._cut(4403, "no")
            return
        self._page.strangers.add(self)
        self._deadline = asyncio.get_running_loop().call_later(KEY_S, self._cut, 4401, "no key came")

    def on_message(self, message: str | bytes) -> None:
        if self._is_cut:  # sent before the client has read that the connection is closed
            return
        try:
            if self._role is None:
                self._admit(_keys.decode(message))
            else:
                self._handle_viewer_message(_messages.decode(message))
        except msgspec.DecodeError:
            self._cut(4400 if self._role else 4401, "that is no message")

    def _cut(self, code: int, why: str) -> None:
        self._is_cut = True
        self._page.viewers.discard(self)
        self.close(code, why)

    def on_close(self) -> None:
        self._page.viewers.discard(self)
        self._page.strangers.discard(self)
        if self._deadline is not None:
            self._deadline.cancel()

    def send(self, texts: list[bytes]) -> None:
        """Send messages as one JSON array; disconnect a viewer that is too far behind."""
        stream = getattr(self.ws_connection, "stream", None)
        if stream is not None and len(getattr(stream, "_write_buffer", ())) > MOST_BEHIND_BYTES:
            self._cut(4408, "too far behind")
            return
        try:
            self.write_message(b"[" + b",".join(texts) + b"]")
        except tornado.websocket.WebSocketClosedError:
            self.on_close()

    def _admit(self, shown: _Key) -> None:
        page = self._page
        self._role = page.keys.role(shown.key)
        page.strangers.discard(self)
        if self._role is None or len(page.viewers) >= MOST_VIEWERS:
            self._cut(4401 if self._role is None else 4429, "wrong key" if self._role is None else "too many viewers")
            return
        if self._deadline is not None:
            self._deadline.cancel()
        if page._server is not None and self.ws_connection is not None:
            page._server.keep(getattr(self.ws_connection, "stream", None))
        page.push()  # to the other viewers first: this viewer gets changes from here on
        may = self._role is Role.CONTROL
        hello = {"t": "hello", "role": self._role.value, "orders": may and page.on_order is not None}
        if may and page.is_reachable:
            hello["look"] = page.keys.fragment(Role.LOOK)
        self.send([msgspec.json.encode(each) for each in (hello, *page.hub.snapshot(()), {"t": "ready"})])
        page.viewers.add(self)

    def _handle_viewer_message(self, message: ViewerOrder | ViewerRanks | ViewerPing | ViewerImportance) -> None:
        page = self._page
        if isinstance(message, ViewerPing):
            self.send([b'{"t":"pong"}'])
        elif isinstance(message, ViewerImportance):
            page.tell_importance()
        elif isinstance(message, ViewerRanks):
            new = set(message.ranks[:64]) - self.ranks
            self.ranks = set(message.ranks[:64])
            curves = [msgspec.json.encode(each) for rank in sorted(new) for each in page.hub.curves_of(rank)]
            if curves:
                self.send(curves)
        elif self._role is not Role.CONTROL or page.on_order is None:
            self.send([b'{"t":"refused","text":"this link is view-only"}'])
        else:
            number = page.on_order(message.verb, message.argument)
            self.send([msgspec.json.encode({"t": "ordered", "number": number, "verb": message.verb})])
