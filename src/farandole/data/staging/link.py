"""``StagerLink``: a worker's connections to the stager of its host, which it starts if none is running.

    link = StagerLink(config)
    link.request(Need(piece=3, first=0, last=4))    # (InCache(), b"")

Threads. Each thread of the worker has its own connection, with one request at a time. A thread holds ``_starting``
while it starts a stager and sends the assignment, so only one thread of a process does that. Two processes may start
a stager each: only one of the two can bind the name, and the other exits.

A stager that was killed while one of its threads is in uninterruptible sleep keeps its sockets: it sends no answer, and
its connections are not closed. A waiting thread checks for such a stager every ``LOOK_S``, and then starts another one,
which listens at the next name.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import weakref
from typing import Any, final

import msgspec

from farandole.control import process
from farandole.control.entry import entry_command
from farandole.control.local_peer import is_own, process_of
from farandole.data.staging.protocol import (
    Answer,
    Ask,
    Assign,
    Bye,
    Failed,
    Request,
    StagerConfig,
    Statistics,
    receive_answer,
    send,
)
from farandole.errors import DataError

MODULE = "farandole.data.staging.stager_process"
ATTEMPTS = 5
"""How often a stager that exits is started again for one request."""


NAMES = 8
"""Names to try: one for each stager of a host that the kernel keeps from exiting, and one for a live stager."""

LOOK_S = 5.0
"""Interval at which a waiting thread checks whether the stager can still answer."""


@final
class _Connection(socket.socket):
    """A connection that is closed with its thread, without a ``ResourceWarning``."""

    def __del__(self) -> None:
        self.close()

    def recv_into(self, *args: Any) -> int:
        """Receive; 0 if no more bytes can arrive."""
        while True:
            try:
                return super().recv_into(*args)
            except TimeoutError:
                if self.is_stuck():
                    return 0

    def is_stuck(self) -> bool:
        """True if the peer process was killed, and the kernel still waits for one of its threads."""
        with contextlib.suppress(OSError), open(f"/proc/{process_of(self)}/stat", "rb") as file:
            return file.read().rpartition(b") ")[2][:1] in b"ZX"
        return False


@final
class StagerLink:
    """Connections of a process to the stager that ``config`` describes; a forked or pickled copy opens its own."""

    def __init__(self, config: StagerConfig, assigned: Assign | None = None) -> None:
        self.config = config
        self._assigned = assigned
        self._number = 0
        self._local = threading.local()
        self._starting = threading.Lock()
        self._pid = os.getpid()
        self._all: weakref.WeakSet[socket.socket] = weakref.WeakSet()

    def __reduce__(self) -> tuple[type[StagerLink], tuple[StagerConfig, Assign | None]]:
        return StagerLink, (self.config, self._assigned)

    def assign(self, assigned: Assign) -> None:
        """Send the stager its assignment; a stager that is started later gets the same one."""
        self._assigned = assigned
        self.request(assigned)

    def remember(self, assigned: Assign) -> None:
        """Keep the assignment for a stager that this process may start; another worker sends it to the present one."""
        self._assigned = assigned

    def request(self, request: Request) -> tuple[Answer, bytearray]:
        """Send a request; returns the answer and its bytes. Raises ``DataError`` if the stager cannot fulfil it."""
        try:
            answer, data = self._answer_to(request)
        except DataError as error:
            error.is_outage = True
            raise
        if isinstance(answer, Failed):
            failure = DataError(answer.error)
            failure.is_outage = not answer.is_damaged
            raise failure
        return answer, data

    def _answer_to(self, request: Request) -> tuple[Answer, bytearray]:
        for _ in range(ATTEMPTS):
            try:
                connection = self._connected()
                send(connection, request)
                found = receive_answer(connection)
            except OSError:
                found = None
            if found is None:  # the stager was killed
                self._forget()
                continue
            return found
        raise DataError(
            f"the stager on {self.config.host} ended {ATTEMPTS} times in one request: is there memory for it, and room "
            f"in {self.config.cache}?"
        )

    def statistics(self) -> Statistics:
        """Pieces that the stager holds, and its counters."""
        answer, _ = self.request(Ask())
        if not isinstance(answer, Statistics):
            raise DataError(f"the stager on {self.config.host} answered {type(answer).__name__} to a question")
        return answer

    def close(self) -> None:
        """Send ``Bye`` on all connections; the stager exits after the last worker."""
        for connection in list(self._all) if self._pid == os.getpid() else ():  # a fork leaves them to its parent
            with contextlib.suppress(OSError):
                send(connection, Bye())
            connection.close()
        self._local = threading.local()

    def _connected(self) -> socket.socket:
        if self._pid != os.getpid():  # a fork: the connections belong to the parent
            self._local, self._starting = threading.local(), threading.Lock()
            self._all, self._pid = weakref.WeakSet(), os.getpid()
        connection: socket.socket | None = getattr(self._local, "connection", None)
        if connection is None:
            connection = self._local.connection = self._dial() or self._start()
            self._all.add(connection)
        return connection

    def _forget(self) -> None:
        if (connection := getattr(self._local, "connection", None)) is not None:
            connection.close()
            self._local.connection = None

    def _dial(self) -> socket.socket | None:
        for _ in range(NAMES):
            connection = _Connection(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
            try:
                connection.connect(f"\0{self._name}")
            except OSError:
                connection.close()
                return None
            connection.settimeout(LOOK_S)
            if is_own(connection) and not connection.is_stuck():
                return connection
            is_own_one = is_own(connection)
            connection.close()
            if not is_own_one:
                raise DataError(f"another user listens at the name of this job's stager on {self.config.host}")
            self._number += 1
        raise DataError(f"{NAMES} stagers on {self.config.host} were killed, and cannot end: its storage is stuck")

    @property
    def _name(self) -> str:
        return f"{self.config.name}.{self._number}" if self._number else self.config.name

    def _start(self) -> socket.socket:
        """Start a stager, which detaches from this process as soon as it listens."""
        with self._starting:
            for _ in range(ATTEMPTS):
                if (connection := self._dial()) is not None:
                    return connection
                self._launch()
                if (connection := self._dial()) is not None:
                    if self._assigned is not None:
                        send(connection, self._assigned)
                        receive_answer(connection)
                    return connection
                # Another process started its stager first, and that stager has exited or was killed already: try again.
            raise DataError(f"the stager on {self.config.host} does not start")

    @property
    def _port(self) -> int:
        """Port at which other hosts expect the stager of this host, if an earlier stager used one; else 0."""
        entries = self._assigned.hosts if self._assigned is not None else []
        found = [entry.addresses[0] for entry in entries if entry.name == self.config.host and entry.addresses]
        return int(found[0].rpartition(":")[2]) if found else 0

    def _launch(self) -> None:
        reader, writer = os.pipe()
        said, says = os.pipe()
        try:
            pid = process.spawn(entry_command(MODULE), stdin=reader, stdout=says)
        finally:
            os.close(reader)
            os.close(says)
        with contextlib.suppress(BrokenPipeError), os.fdopen(writer, "wb") as stdin:
            stdin.write(msgspec.msgpack.encode(msgspec.structs.replace(self.config, name=self._name, port=self._port)))
        with os.fdopen(said, errors="backslashreplace") as stdout:
            words = stdout.read().strip()
        _, status = os.waitpid(pid, 0)
        if words:
            raise DataError(words)
        if code := os.waitstatus_to_exitcode(status):
            raise DataError(f"the stager on {self.config.host} {process.describe(code)}: its words are above")
