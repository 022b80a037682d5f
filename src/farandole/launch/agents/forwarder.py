"""Forwarder of the connections of one host's workers: they connect to a fixed address, whichever leader runs the job.

    forwarder = Forwarder("10.0.0.7")
    forwarder.address                           # "tcp://10.0.0.7:41023": address for the workers
    forwarder.follow("tcp://10.0.0.1:7000")     # forwards connections there from now on
    forwarder.follow("")                        # closes all connections, and refuses new ones
    forwarder.close()

So only the agent decides which leader its host follows. Bytes are forwarded unchanged: workers and controller
authenticate each other with the job's key, and the forwarder cannot read their messages.

Threads. One thread runs the loop and owns every socket and ``_ends``. ``follow`` and ``close`` set ``_target`` and
``_closing``, which ``_lock`` guards, and wake the thread up.
"""

from __future__ import annotations

import contextlib
import errno
import selectors
import socket
import threading
from typing import final

from farandole.control.wakeup import Wakeup

CHUNK_BYTES = 2**16
MOST_WAITING_BYTES = 2**20
"""Bytes waiting for one end of a connection above which no more are read from the other end."""

CLOSE_S = 1.0
"""Time for the thread to end."""


@final
class _End:
    """One end of a connection: its socket, and the bytes still to be written to it."""

    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock
        self.waiting = bytearray()
        self.other: _End = self
        self.is_connecting = False


@final
class Forwarder:
    """Forwarder that listens on ``host``, an address of this machine; it refuses connections until ``follow``."""

    def __init__(self, host: str) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        # A second socket keeps the port while none listens: then connections are refused at once, and retried.
        self._keeper = self._bound(family, host, 0)
        self._place = self._keeper.getsockname()[:2]
        self._family = family
        shown = f"[{host}]" if family == socket.AF_INET6 else host
        self.address = f"tcp://{shown}:{self._place[1]}"
        self._listener: socket.socket | None = None
        self._leads_to = self._target = ""
        self._closing = False
        self._lock = threading.Lock()
        self._wakeup = Wakeup()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._wakeup.fd, selectors.EVENT_READ)
        self._ends: set[_End] = set()
        self._thread = threading.Thread(target=self._serve, name="farandole-forward", daemon=True)
        self._thread.start()

    def follow(self, address: str) -> None:
        """Forward to the controller at ``address`` (numeric host); "": refuse connections. Never blocks."""
        with self._lock:
            if address != self._target and not self._closing:
                self._target = address
                self._wakeup.signal()

    def close(self) -> None:
        """Close all connections. Idempotent."""
        with self._lock:
            if not self._closing:
                self._closing = True
                self._wakeup.signal()
        self._thread.join(CLOSE_S)

    # -- the thread ---------------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        while True:
            for key, mask in self._selector.select():
                if key.fd == self._wakeup.fd:
                    if self._heed():
                        return
                elif key.data is None:
                    self._accept()
                elif key.data in self._ends:  # not closed meanwhile, with its other end
                    self._pass_on(key.data, mask)

    def _heed(self) -> bool:
        """Apply ``_target`` and ``_closing``; True at the end."""
        with self._lock:
            self._wakeup.clear()  # under the lock, so that no change is missed between read and copy
            target, closing = self._target, self._closing
        if target != self._leads_to or closing:
            for end in tuple(self._ends):
                self._drop(end)
            self._leads_to = target
            self._listen(bool(target) and not closing)
        if closing:
            self._selector.close()
            self._keeper.close()
            self._wakeup.close()
        return closing

    def _listen(self, wanted: bool) -> None:
        if self._listener is not None:
            self._selector.unregister(self._listener)
            self._listener.close()
            self._listener = None
        if wanted:
            self._listener = self._bound(self._family, *self._place)
            self._listener.listen(socket.SOMAXCONN)
            self._selector.register(self._listener, selectors.EVENT_READ)

    def _accept(self) -> None:
        if self._listener is None:
            return
        host, _, port = self._leads_to.removeprefix("tcp://").rpartition(":")
        host = host.strip("[]")
        try:
            near, _ = self._listener.accept()
        except OSError:  # connection closed, or out of descriptors
            return
        try:
            far = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
        except OSError:
            near.close()
            return
        ends = _End(near), _End(far)
        ends[0].other, ends[1].other = ends[1], ends[0]
        for end in ends:
            end.socket.setblocking(False)
            end.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._ends.add(end)
        ends[1].is_connecting = True
        self._selector.register(near, selectors.EVENT_READ, ends[0])
        self._selector.register(far, selectors.EVENT_WRITE, ends[1])
        if far.connect_ex((host, int(port))) not in (0, errno.EINPROGRESS):
            self._drop(ends[0])

    def _pass_on(self, end: _End, mask: int) -> None:
        try:
            if mask & selectors.EVENT_WRITE:
                if end.is_connecting and end.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                    raise ConnectionError
                end.is_connecting = False
                self._write(end)
            if mask & selectors.EVENT_READ:
                text = end.socket.recv(CHUNK_BYTES)
                if not text:
                    raise ConnectionError
                end.other.waiting += text
                if not end.other.is_connecting:
                    self._write(end.other)
        except BlockingIOError:
            pass
        except OSError:
            self._drop(end)
            return
        for each in (end, end.other):
            self._watch(each)

    def _write(self, end: _End) -> None:
        with contextlib.suppress(BlockingIOError):
            while end.waiting:
                del end.waiting[: end.socket.send(end.waiting)]

    def _watch(self, end: _End) -> None:
        """Register the events that an end can handle next."""
        wanted = selectors.EVENT_WRITE if end.waiting or end.is_connecting else 0
        if len(end.other.waiting) < MOST_WAITING_BYTES and not end.is_connecting:
            wanted |= selectors.EVENT_READ
        registered = self._selector.get_map().get(end.socket)
        if registered is None:
            if wanted:
                self._selector.register(end.socket, wanted, end)
        elif not wanted:
            self._selector.unregister(end.socket)
        elif registered.events != wanted:
            self._selector.modify(end.socket, wanted, end)

    def _drop(self, end: _End) -> None:
        """Close a connection, both ends of it."""
        for each in (end, end.other):
            if each in self._ends:
                self._ends.discard(each)
                with contextlib.suppress(KeyError):
                    self._selector.unregister(each.socket)
                each.socket.close()

    @staticmethod
    def _bound(family: int, host: str, port: int) -> socket.socket:
        bound = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        bound.bind((host, port))
        return bound
