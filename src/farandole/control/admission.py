"""Admission to the control plane by key (ZAP, CURVE), and the events that ZeroMQ reports of connections.

door = Door(context, keys.client.public)     # before the first socket of the context listens
monitor = Monitor(socket)
strangers = Admissions()
...
door.serve()                                 # when door.fd is readable
strangers.update(monitor.drain())            # when monitor.fd is readable: how many were turned away, or left
"""

# No thread of ours: everything here is called by the thread that owns the watched socket. ZeroMQ's own threads run on
# the other side of these descriptors, which are edge-triggered: they become readable once for all that has come. So
# both loops below go on until nothing is left; who stopped after one message might never be woken for the next.

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
"""Events of a socket that connects: somebody listens, or nobody does. A host that is cut off answers neither way."""


@final
class Monitor:
    """The events of a socket's connections, and what they say of the peer of a socket that has one."""

    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        self._watched = socket
        self._socket = socket.get_monitor_socket(
            ANSWERED | zmq.EVENT_ACCEPTED | zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED | HANDSHAKE_FAILED
        )
        self._socket.poll(0)  # ZeroMQ signals the descriptor only to a reader that has once found nothing
        self.fd: int = self._socket.fileno()
        self.connected = False
        """True while the peer is connected, by the events that have been drained."""
        self.refused = False
        """True if the peer broke the last handshake off: our key is none of its, or it died meanwhile."""
        self.reached = False
        """True if the peer's host has answered since the last connection ended, be it that nobody listens there."""

    def drain(self) -> list[tuple[int, int]]:
        """All events since the last call, each with its value: a descriptor for accepted and disconnected ones."""
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

    Some of them simply went away, as peers do that reach the controller by several addresses and need only one. ZeroMQ
    does not say which connection succeeded, so the oldest open one is taken; the total is right all the same, and the
    others are given the benefit of the doubt.
    """

    def __init__(self) -> None:
        self._unproven: dict[int, bool] = {}
        """Connections whose handshake has not succeeded, by descriptor: True if that is certain."""
        self._last = 0

    def update(self, events: list[tuple[int, int]]) -> tuple[int, int]:
        """Count the strangers among ``events``, and the connections that went away."""
        strangers = quitters = 0
        for event, value in events:
            if event == zmq.EVENT_ACCEPTED:
                self._unproven[value] = True
            elif event == zmq.EVENT_HANDSHAKE_SUCCEEDED and self._unproven:  # the descriptor is not in this event
                self._unproven.pop(next(iter(self._unproven)))
                self._unproven = dict.fromkeys(self._unproven, False)
            elif event == zmq.EVENT_DISCONNECTED and value in self._unproven:
                certain = self._unproven.pop(value)
                left = self._last == zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL  # said just before, of this connection
                quitters += left or not certain
                strangers += certain and not left
            self._last = event
        return strangers, quitters


@final
class Door:
    """Answers ZeroMQ's question for every newcomer (ZAP, RFC 27): only the clients' key of this job is let in."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], client_public: bytes) -> None:
        self._key = z85.decode(client_public)
        self._socket = context.socket(zmq.REP)
        self._socket.bind("inproc://zeromq.zap.01")
        self.fd: int = self._socket.fileno()

    def serve(self) -> None:
        """Answer every newcomer that waits."""
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
