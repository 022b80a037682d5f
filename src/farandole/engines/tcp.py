"""Collectives of host memory over TCP, among any hosts, with plain sockets.

    engine = TcpEngine(group, exchange)

A thread that waits on sockets can be woken at any point of a transfer: by ``shutdown``, which the peers detect, too.

Threads. The caller of a collective serves all connections itself; there is no other thread, no queue and no lock. Any
thread may call ``abort``, which writes the reason and the flag, and then calls ``shutdown`` on the connections: that
makes ``poll`` return and every later call fail. It does not close them: only ``_release`` does, when no thread uses the
engine any more, because the number of a descriptor closed during a ``poll`` may belong to another file at the next.

Connections carry only data, no lengths and no names. The meaning of the bytes follows from the order of collectives, so
after any error, Ctrl-C as well, a connection that was left in the middle of an array is useless: all are shut down.
"""

from __future__ import annotations

import contextlib
import ctypes
import select
import socket
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import final

from farandole.collective import Array
from farandole.control.sockets import LONGEST_WAIT_S
from farandole.engines.engine import Exchange, Group
from farandole.engines.mesh import connect
from farandole.engines.pairwise import PairwiseEngine
from farandole.engines.silence_monitor import SilenceMonitor
from farandole.engines.transport import Parcel, Transport
from farandole.errors import CollectiveError, EngineError

_REASON_S = 0.5
"""Time to wait for an ``abort`` with the reason, after a connection was lost."""


@final
class TcpEngine(PairwiseEngine):
    """Collectives of host memory over TCP. Every two members are connected."""

    name = "tcp"

    def __init__(self, group: Group, exchange: Exchange) -> None:
        super().__init__(group, TcpTransport(group, exchange))


@final
class TcpTransport(Transport):
    """One connection to each other member, and one thread that serves all of them while it waits."""

    def __init__(self, group: Group, exchange: Exchange) -> None:
        super().__init__(group)
        self._connections = connect(group, exchange)
        self._lookout = SilenceMonitor.of(group, self._connections)

    def _move(self, sends: Sequence[Parcel], receives: Sequence[Parcel]) -> None:
        outgoing = {peer: _memory(array) for peer, array in sends}
        incoming = {peer: _memory(array) for peer, array in receives}
        try:
            for peer in list(outgoing):  # a copy: `_pass` removes arrays that are sent completely
                self._pass(peer, outgoing, partial(_send, self._connections[peer]))
            if outgoing or incoming:
                self._wait(outgoing, incoming)
        except BaseException as error:
            self._interrupt()
            if isinstance(error, CollectiveError):
                raise
            what, label = type(error).__name__, self.group.label
            self.failure(EngineError, f"a collective of {label} was interrupted by {what}")
            raise

    def _wait(self, outgoing: dict[int, memoryview], incoming: dict[int, memoryview]) -> None:
        """Send and receive on ready connections until all transfers are done."""
        poll, peers = select.poll(), {}
        for peer in outgoing.keys() | incoming.keys():
            peers[self._connections[peer].fileno()] = peer
            poll.register(self._connections[peer], _events(peer, outgoing, incoming))
        since = time.monotonic()
        until = since + self.group.deadline_s
        while outgoing or incoming:
            left_s = until - time.monotonic()
            if left_s <= 0:
                raise self.stalled(next(iter(incoming or outgoing)))
            self._lookout.look(since)
            for fd, event in poll.poll(min(left_s, self._lookout.pause_s, LONGEST_WAIT_S) * 1000):
                peer = peers[fd]
                # Not only POLLIN: poll always reports errors and hang-ups, and the read, or write, raises them.
                if peer in incoming and event & ~select.POLLOUT:
                    self._pass(peer, incoming, self._connections[peer].recv_into)
                if peer in outgoing and event & ~select.POLLIN:
                    self._pass(peer, outgoing, partial(_send, self._connections[peer]))
                if wanted := _events(peer, outgoing, incoming):
                    poll.modify(fd, wanted)
                else:  # the next bytes of this peer belong to the next collective
                    poll.unregister(fd)

    def _pass(self, peer: int, left: dict[int, memoryview], call: Callable[[memoryview], int]) -> None:
        """Send or receive by ``call`` as much of the remaining data as is possible without blocking."""
        try:
            count = call(left[peer])
        except BlockingIOError:
            return
        except OSError as error:
            raise self._lost(peer, error.strerror) from error
        if not count:
            raise self._lost(peer, "it was closed")
        if rest := left[peer][count:]:
            left[peer] = rest
        else:
            del left[peer]

    def _lost(self, peer: int, why: str | None) -> CollectiveError:
        self._interrupt()  # first, so that the other members need not wait for us meanwhile
        self.aborted.wait(_REASON_S)
        text = f"the connection to {self.group.name(peer)} in {self.group.label} was lost: {why}"
        return self.failure(EngineError, text)

    def _interrupt(self) -> None:
        for connection in self._connections.values():
            with contextlib.suppress(OSError):  # already shut down, by us or by the peer
                connection.shutdown(socket.SHUT_RDWR)

    def _release(self, clean: bool) -> None:
        for connection in self._connections.values():
            connection.close()


def _send(connection: socket.socket, left: memoryview) -> int:
    """Send without SIGPIPE for a lost peer: it would kill a script that has restored the default action."""
    return connection.send(left, socket.MSG_NOSIGNAL)


def _events(peer: int, outgoing: dict[int, memoryview], incoming: dict[int, memoryview]) -> int:
    return (select.POLLOUT if peer in outgoing else 0) | (select.POLLIN if peer in incoming else 0)


def _memory(array: Array) -> memoryview:
    return memoryview((ctypes.c_char * array.nbytes).from_address(array.address)).cast("B")
