"""The connections of a library that does not hand them out: found among this process's sockets by their addresses.

found = connections([b"...sockaddr of a member's listener..."])
to_other_hosts(found, {b"...sockaddr...": "node2"}, here="node1")   # {<socket>: "node2"}
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple


class _Name(NamedTuple):
    """An address of a socket as the kernel lays a ``sockaddr`` out, in three parts."""

    family: bytes
    port: bytes
    address: bytes


def connections(addresses: Sequence[bytes]) -> list[socket.socket]:
    """Duplicates of this process's connections to the members whose listeners' addresses appear in ``addresses``.

    Listeners are left alone: Gloo's ends the process when it is shut down.
    """
    found = []
    for candidate in _sockets():
        names = [b"".join(name) for name in _names(candidate)]
        if len(names) == 2 and any(name in address for name in names for address in addresses):
            found.append(candidate)
        else:
            candidate.close()
    return found


def to_other_hosts(found: Sequence[socket.socket], hosts: Mapping[bytes, str], here: str) -> dict[socket.socket, str]:
    """Those that leave this host, and where they go; ``hosts`` are those of the listeners' addresses.

    The port is not looked at: who was called by another member does not know that of its listener.
    """
    leaving = {}
    for connection in found:
        *_, peer = (_Name(b"", b"", b""), *_names(connection))
        pattern = re.compile(re.escape(peer.family) + b".." + re.escape(peer.address), re.DOTALL)
        host = next((host for address, host in hosts.items() if peer.address and pattern.search(address)), here)
        if host != here:
            leaving[connection] = host
    return leaving


def _sockets() -> Iterator[socket.socket]:
    for entry in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/self/fd/{entry}").startswith("socket:"):
                yield socket.socket(fileno=os.dup(int(entry)))


def _names(connection: socket.socket) -> Iterator[_Name]:
    """The own and, when connected, the peer's."""
    for ask in (connection.getsockname, connection.getpeername):
        with contextlib.suppress(OSError):
            name, family = ask(), struct.pack("=H", connection.family)
            if connection.family == socket.AF_INET:
                yield _Name(family, struct.pack(">H", name[1]), socket.inet_aton(name[0]))
            elif connection.family == socket.AF_INET6:
                address = struct.pack(">I", name[2]) + socket.inet_pton(socket.AF_INET6, name[0].partition("%")[0])
                yield _Name(family, struct.pack(">H", name[1]), address)
