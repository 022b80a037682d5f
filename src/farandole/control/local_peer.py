"""User of the process at the other end of a Unix socket, as the kernel knows it.

    if not is_own(connected): ...               # user_of(connected) says whose it is
    admit_own(router_socket)                    # the same for whoever connects to a ZeroMQ socket at ipc://

Every user of a host can bind a name of the abstract namespace that is free, and connect to one that is not.
"""

from __future__ import annotations

import os
import socket
import struct

import zmq

_CREDENTIALS = struct.Struct("3i")


def user_of(connected: socket.socket) -> int:
    """Number of the user whose process connected, or listened when this one did."""
    _, uid, _ = _CREDENTIALS.unpack(connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return int(uid)


def process_of(connected: socket.socket) -> int:
    """Number of the process that connected, or listened when this one did; 0 if it is not to be seen from here."""
    pid, _, _ = _CREDENTIALS.unpack(connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return int(pid)


def is_own(connected: socket.socket) -> bool:
    """True if the other process is of this user, or of root."""
    return user_of(connected) in _own()


def admit_own(listening: zmq.Socket[bytes]) -> None:
    """Have a ZeroMQ socket close what other users connect to it at ``ipc://``; before it listens."""
    for uid in _own():
        listening.setsockopt(zmq.IPC_FILTER_UID, uid)


def _own() -> set[int]:
    return {os.geteuid(), 0}
