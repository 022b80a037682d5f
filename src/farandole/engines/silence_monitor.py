"""Hosts that are not heard of while something is waited for from them: the network is cut between them and this one.

    lookout = SilenceMonitor({connection: "node2"}, silence_s=3.0, tell=group.on_silence)
    since = time.monotonic()
    while not poll.poll(1000 * lookout.pause_s):
        lookout.look(since)                     # calls tell("node2") if that is why nothing comes

Only the kernel knows whether the other side's kernel answers, and that is what counts: a process that is slow or
stopped is answered for.
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
"""TCP repeats what was lost at doubling intervals: after a silence of s, it may be as long again until it asks."""

LOOKS = 4
"""Looks within the time of a silence."""

_SHORTEST_S = 1.0
"""The kernel counts the time between its questions in seconds."""

_MOST_PROBES = 127
_HEARD = struct.Struct("=52x2I")
"""Milliseconds since data and an acknowledgement were received: ``tcpi_last_data_recv`` and ``tcpi_last_ack_recv``."""


def limit_s(silence_s: float) -> float:
    """Longest time in which nothing may come where a host may be silent for ``silence_s``."""
    return REPEATS * max(silence_s, _SHORTEST_S)


@final
class SilenceMonitor:
    """Looks after the connections of a transport to other hosts while that waits.

    After ``limit_s(silence_s)`` of silence ``tell`` is called with the name of the host, once. With 0 a host may be
    silent for ever.
    """

    def __init__(
        self, connections: Mapping[socket.socket, str], silence_s: float, tell: Callable[[str], object]
    ) -> None:
        self._connections, self._tell = connections, tell
        self._limit_s = limit_s(silence_s) if silence_s and connections else math.inf
        self.pause_s = self._limit_s / LOOKS
        """Time between two looks."""
        self._looked_s = -math.inf
        for connection in connections if silence_s else ():
            _let_ask(connection, round(max(silence_s / LOOKS, _SHORTEST_S)))

    @classmethod
    def of(cls, group: Group, connections: Mapping[int, socket.socket]) -> SilenceMonitor:
        """Make one for the connections of a member to the others of its group, by their indices."""
        here = group.hosts[group.rank]
        away = {connections[member]: host for member, host in enumerate(group.hosts) if host != here}
        return cls(away, group.silence_s, group.on_silence)

    def look(self, since_s: float) -> None:
        """Tell of the first host of which nothing has been heard; ``since_s`` says since when something is awaited."""
        now = time.monotonic()
        if now - since_s < self._limit_s or now - self._looked_s < self.pause_s:
            return
        self._looked_s = now
        for connection, host in self._connections.items():
            if silent_for_s(connection) >= self._limit_s:
                self._limit_s = math.inf  # before it tells: once is enough, whatever comes of it
                self._tell(host)
                return


def silent_for_s(connection: socket.socket) -> float:
    """Seconds since the other side of a TCP connection sent or acknowledged anything; 0 if it is closed."""
    try:
        told = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _HEARD.size)
    except OSError:  # it was given up meanwhile
        return 0.0
    since_data_ms, since_acknowledgement_ms = _HEARD.unpack(told)
    return float(min(since_data_ms, since_acknowledgement_ms)) / 1000


def _let_ask(connection: socket.socket, every_s: int) -> None:
    """Let the kernel ask the other side whether it is there when nothing else is on its way."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        (socket.TCP_KEEPIDLE, every_s),
        (socket.TCP_KEEPINTVL, every_s),
        (socket.TCP_KEEPCNT, _MOST_PROBES),  # it is not for the kernel to end what nobody waits for
    ):
        connection.setsockopt(socket.IPPROTO_TCP, option, value)
