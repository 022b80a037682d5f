"""The process of a stager: its start, the connections of its workers, and its exit.

Threads: see ``stager``. ``Entrance._lock`` guards the number of connections.
"""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
import socket
import sys
import threading
import time
from typing import final

import msgspec

from farandole.control import process
from farandole.control.local_peer import is_own
from farandole.control.sockets import MOST_DESCRIPTORS
from farandole.control.wakeup import Wakeup
from farandole.data.staging.folder_lock import leave_to, name_of
from farandole.data.staging.protocol import StagerConfig
from farandole.data.staging.stager import TICK_S, Stager
from farandole.data.storage.manifest import Manifest
from farandole.errors import DataError

MODULE = "farandole.data.staging.stager_process"
BACKLOG = 1024


def listen(name: str) -> socket.socket | None:
    """Listen at an abstract name; ``None`` if another stager listens there."""
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        listening.bind(f"\0{name}")
    except OSError:
        listening.close()
        return None
    listening.listen(BACKLOG)
    return listening


@final
class Entrance:
    """Accepts workers, each in a thread, and detects that the last one has disconnected.

    Without workers it leaves the folder to the stager of another job that asks for it; a new stager, whose worker is
    about to connect, does not: two jobs that start at once would end each other's.
    """

    def __init__(self, stager: Stager, listening: socket.socket, linger_s: float) -> None:
        self._stager, self._listening, self._linger_s = stager, listening, linger_s
        self._lock, self._wakeup = threading.Lock(), Wakeup()
        self._connections, self._alone_since, self._is_over = 0, time.monotonic(), False
        self._leaves = self._has_served = False
        self._successors = [each for each in [listen(name_of(stager.locked))] if each is not None]

    def on_sigterm(self) -> None:
        """Handle SIGTERM: with workers connected, hand over pieces that only this host holds; else exit at once."""
        self._leaves = self._leaves or (self._connections > 0 and self._stager.hands_over)
        if not self._leaves:
            os._exit(0)
        self._stager.hand_over()

    def serve(self) -> None:
        """Accept connections until no worker is connected any more."""
        while not self._is_done():
            others = [each.fileno() for each in self._successors]
            ready, _, _ = select.select([self._listening.fileno(), self._wakeup.fd, *others], [], [], TICK_S)
            if not set(others).isdisjoint(ready):
                self._on_successor(*self._successors)
            self._wakeup.clear()
            if self._listening.fileno() in ready:
                with contextlib.suppress(OSError):  # it has disconnected again, or no descriptor is left
                    self._accept()
            self._stager.tick()

    def _accept(self) -> None:
        connection, _ = self._listening.accept()
        if not is_own(connection):
            connection.close()
            return
        with self._lock:
            self._connections, self._has_served = self._connections + 1, True
        threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _on_successor(self, listening: socket.socket) -> None:
        with contextlib.suppress(OSError), listening.accept()[0] as other, self._lock:
            if is_own(other) and self._has_served and not self._connections and not self._leaves:
                leave_to(other)

    def _serve(self, connection: socket.socket) -> None:
        is_bye = False
        try:
            with connection:
                is_bye = self._stager.serve(connection)
        finally:
            with self._lock:
                self._connections -= 1
                self._alone_since = time.monotonic()
                self._is_over = is_bye and not self._connections
            self._wakeup.signal()  # wakes the main thread

    def _is_done(self) -> bool:
        with self._lock:
            if self._connections or (self._leaves and self._stager.is_owing(self._alone_since)):
                return False
            return self._leaves or self._is_over or time.monotonic() - self._alone_since > self._linger_s


def main() -> None:
    """Entry point: listen, then detach by a fork, so that the parent returns. Prints an error on standard output."""
    text = sys.stdin.buffer.read()
    try:
        config = msgspec.msgpack.decode(text, type=StagerConfig)
        manifest = Manifest.load(config.index, is_held=True)
    except (msgspec.MsgspecError, DataError) as error:
        sys.exit(f"farandole: the stager got no config ({error}): a training script starts it, not you")
    listening = listen(config.name)
    if listening is None:
        sys.exit(0)
    if os.fork():
        os._exit(0)
    os.setsid()
    listening.listen(BACKLOG)  # again, so that SO_PEERCRED names this process
    process.name_this("farandole stage")
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the workers, whose exit ends the stager
    raise_descriptor_limit()
    try:
        stager = Stager(config, manifest)
    except (DataError, OSError) as error:
        print(error, flush=True)
        os._exit(1)
    silence = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(silence, fd)
    os.close(silence)
    for _ in range(config.readers):
        stager.start_reader()
    entrance = Entrance(stager, listening, config.linger_s)
    signal.signal(signal.SIGTERM, lambda *_: entrance.on_sigterm())
    with contextlib.suppress(OSError):
        entrance.serve()
    listening.close()  # a worker that connects now gets an error, and starts another stager
    stager.close()
    os._exit(0)


def raise_descriptor_limit() -> None:
    """Raise the descriptor limit as far as allowed, up to ``MOST_DESCRIPTORS``: each thread of a worker takes one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MOST_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


if __name__ == "__main__":
    main()
