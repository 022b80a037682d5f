"""Detection of hosts that send nothing while data is expected from them, because the network between is cut.

    lookout = SilenceMonitor({connection: "node2"}, silence_s=3.0, tell=group.on_silence)
    since = time.monotonic()
    while not poll.poll(1000 * lookout.pause_s):
        lookout.look(since)                     # calls tell("node2") if node2 has been silent too long

It asks the kernel whether the other side's kernel still answers: a slow or stopped process does not count as silent,
because its kernel answers for it.
"""

from __future__ import annotations

import math
import socket
import struct
import time
from collections.abc import Callable, Mapping
from typing import final

from farandole.engines.engine import Group

REPEATS = 2
"""TCP retransmits at doubling intervals: after a silence of s seconds the next packet may take s seconds more."""

LOOKS = 4
"""Number of checks within the time of a silence."""

_SHORTEST_S = 1.0
"""Shortest keepalive interval of the kernel, which counts it in seconds."""

_MOST_PROBES = 127
_HEARD = struct.Struct("=52x2I")
"""Milliseconds since data and an acknowledgement were received: ``tcpi_last_data_recv`` and ``tcpi_last_ack_recv``."""


def limit_s(silence_s: float) -> float:
    """Longest time without a packet that is allowed if a host may be silent for ``silence_s``."""
    return REPEATS * max(silence_s, _SHORTEST_S)


@final
class SilenceMonitor:
    """Monitors the connections of a transport to other hosts while the transport waits.

    After ``limit_s(silence_s)`` of silence ``tell`` is called with the name of the host, once. With 0 a host may be
    silent forever.
    """

    def __init__(
        self, connections: Mapping[socket.socket, str], silence_s: float, tell: Callable[[str], object]
    ) -> None:
        self._connections, self._tell = connections, tell
        self._limit_s = limit_s(silence_s) if silence_s and connections else math.inf
        self.pause_s = self._limit_s / LOOKS
        """Interval between two checks."""
        self._looked_s = -math.inf
        for connection in connections if silence_s else ():
            _let_ask(connection, round(max(silence_s / LOOKS, _SHORTEST_S)))

    @classmethod
    def of(cls, group: Group, connections: Mapping[int, socket.socket]) -> SilenceMonitor:
        """Make a monitor for the connections of a member to the others of its group, by their indices."""
        here = group.hosts[group.rank]
        away = {connections[member]: host for member, host in enumerate(group.hosts) if host != here}
        return cls(away, group.silence_s, group.on_silence)

    def look(self, since_s: float) -> None:
        """Call ``tell`` with the first silent host; ``since_s`` is the time since when data is expected."""
        now = time.monotonic()
        if now - since_s < self._limit_s or now - self._looked_s < self.pause_s:
            return
        self._looked_s = now
        for connection, host in self._connections.items():
            if silent_for_s(connection) >= self._limit_s:
                self._limit_s = math.inf  # before the call: report once, even if ``tell`` raises
                self._tell(host)
                return


def silent_for_s(connection: socket.socket) -> float:
    """Seconds since the other side of a TCP connection sent or acknowledged anything; 0 if it is closed."""
    try:
        told = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _HEARD.size)
    except OSError:  # it was closed meanwhile
        return 0.0
    since_data_ms, since_acknowledgement_ms = _HEARD.unpack(told)
    return float(min(since_data_ms, since_acknowledgement_ms)) / 1000


def _let_ask(connection: socket.socket, every_s: int) -> None:
    """Enable TCP keepalive: the kernel probes the other side when no other packets are in flight."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        (socket.TCP_KEEPIDLE, every_s),
        (socket.TCP_KEEPINTVL, every_s),
        (socket.TCP_KEEPCNT, _MOST_PROBES),  # the kernel must not reset a connection on which no rank waits
    ):
        connection.setsockopt(socket.IPPROTO_TCP, option, value)
