"""User of the process at the other end of a Unix socket, according to the kernel.

    if not is_own(connected): ...               # user_of(connected) returns the user
    admit_own(router_socket)                    # the same check for connections to a ZeroMQ socket at ipc://

Every user of a host can bind a free name of the abstract namespace, and connect to any bound name.
"""

from __future__ import annotations

import os
import socket
import struct

import zmq

_CREDENTIALS = struct.Struct("3i")


def user_of(connected: socket.socket) -> int:
    """User ID of the process at the other end (the connecting process, or the listening one)."""
    _, uid, _ = _CREDENTIALS.unpack(connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return int(uid)


def process_of(connected: socket.socket) -> int:
    """Process ID of the other end (the connecting process, or the listening one); 0 if outside this PID namespace."""
    pid, _, _ = _CREDENTIALS.unpack(connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return int(pid)


def is_own(connected: socket.socket) -> bool:
    """True if the other process belongs to this user or to root."""
    return user_of(connected) in _own()


def admit_own(listening: zmq.Socket[bytes]) -> None:
    """Make a ZeroMQ socket refuse ``ipc://`` connections of other users; call it before the socket listens."""
    for uid in _own():
        listening.setsockopt(zmq.IPC_FILTER_UID, uid)


def _own() -> set[int]:
    return {os.geteuid(), 0}
