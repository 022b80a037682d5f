"""Admission to the control plane by key (ZAP, CURVE), and the events that ZeroMQ reports about connections.

door = Door(context, keys.client.public)     # before the first socket of the context listens
monitor = Monitor(socket)
strangers = Admissions()
...
door.serve()                                 # when door.fd is readable
strangers.update(monitor.drain())            # when monitor.fd is readable: how many were refused, or disconnected
"""

# Threads. This file starts none: the thread that owns the watched socket makes all calls. ZeroMQ's own threads run on
# the other side of these descriptors, which are edge-triggered: they become readable once for all pending messages. So
# both loops below run until nothing is left; a loop that stopped after one message might never be woken for the next.

from __future__ import annotations

import hmac
import struct
from typing import final

import zmq
from zmq.utils import z85

HANDSHAKE_FAILED = (
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)
ANSWERED = zmq.EVENT_CONNECTED | zmq.EVENT_CLOSED
"""Events of a connecting socket: the port is open, or it is closed. A host that is cut off causes neither event."""


@final
class Monitor:
    """Events of a socket's connections, and the state of its peer if the socket has only one."""

    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        self._watched = socket
        self._socket = socket.get_monitor_socket(
            ANSWERED | zmq.EVENT_ACCEPTED | zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED | HANDSHAKE_FAILED
        )
        self._socket.poll(0)  # ZeroMQ signals the descriptor only after a reader has once found no event
        self.fd: int = self._socket.fileno()
        self.connected = False
        """True while the peer is connected, according to the events drained so far."""
        self.refused = False
        """True if the peer broke off the last handshake: it rejects our key, or died meanwhile."""
        self.reached = False
        """True if the peer's host has answered since the last connection ended, even by a refused connection."""

    def drain(self) -> list[tuple[int, int]]:
        """Return the events since the last call, each with its value: a descriptor for accepted and disconnected."""
        events: list[tuple[int, int]] = []
        while True:
            try:
                frame, _ = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return events
            event, value = struct.unpack("=Hi", frame)
            events.append((event, value))
            self._note(event)

    def _note(self, event: int) -> None:
        if event & ANSWERED:
            self.reached = True
        elif event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self.connected, self.refused = True, False
        elif event == zmq.EVENT_DISCONNECTED:
            self.connected = self.reached = False
        elif event & HANDSHAKE_FAILED:
            self.refused = True

    def close(self) -> None:
        self._watched.disable_monitor()
        self._socket.close(0)


@final
class Admissions:
    """Counts the connections that ended before their handshake succeeded.

    Some of them are harmless: a peer that reaches the controller by several addresses closes all but one. ZeroMQ does
    not say which connection succeeded, so the oldest open one is assumed; the total is still right, and the other open
    connections then no longer count as certain strangers.
    """

    def __init__(self) -> None:
        self._unproven: dict[int, bool] = {}
        """Connections without a successful handshake, by descriptor: True if that is certain."""
        self._last = 0

    def update(self, events: list[tuple[int, int]]) -> tuple[int, int]:
        """Count the strangers among ``events``, and the connections that their peers closed."""
        strangers = quitters = 0
        for event, value in events:
            if event == zmq.EVENT_ACCEPTED:
                self._unproven[value] = True
            elif event == zmq.EVENT_HANDSHAKE_SUCCEEDED and self._unproven:  # the descriptor is not in this event
                self._unproven.pop(next(iter(self._unproven)))
                self._unproven = dict.fromkeys(self._unproven, False)
            elif event == zmq.EVENT_DISCONNECTED and value in self._unproven:
                certain = self._unproven.pop(value)
                left = self._last == zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL  # the event before is of this connection
                quitters += left or not certain
                strangers += certain and not left
            self._last = event
        return strangers, quitters


@final
class Door:
    """ZAP handler (RFC 27): it answers ZeroMQ for every new connection and admits only this job's client key."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], client_public: bytes) -> None:
        self._key = z85.decode(client_public)
        self._socket = context.socket(zmq.REP)
        self._socket.bind("inproc://zeromq.zap.01")
        self.fd: int = self._socket.fileno()

    def serve(self) -> None:
        """Answer every waiting request."""
        while True:
            try:
                version, request, *_, mechanism, key = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            admitted = mechanism == b"CURVE" and hmac.compare_digest(key, self._key)
            status, text = (b"200", b"") if admitted else (b"400", b"not a key of this job")
            self._socket.send_multipart((version, request, status, text, b"", b""))

    def close(self) -> None:
        self._socket.close(0)
