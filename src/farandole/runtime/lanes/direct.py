"""The short way of small all-reduces: ranks that know what is meant send each other what they contribute.

    lane = DirectLane(topology, connect, orders, ongoing, explain)
    lane.open(order)                       # which says that all ranks may; collective the first time
    lane.give(ask)                         # sent to all
    message = lane.recv()                  # from the controller, as ever
    lane.hear()                            # the messages that it would have sent, had it been asked

``grants`` has the rules. Any thread may call ``give`` and the like; one at a time ``open``, ``recv`` and ``hear``.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping
from typing import TypeAlias, final

import msgspec

from farandole.control.channel import Dealer
from farandole.control.message import Message
from farandole.control.messages import Order, Orders, Resend, Stay
from farandole.control.sockets import LONGEST_WAIT_S
from farandole.engines.silence import Lookout
from farandole.errors import AbortError, EngineError
from farandole.runtime.lanes.ask import Ask, Key
from farandole.runtime.lanes.eager import contribution
from farandole.runtime.lanes.grants import WITHDRAWN, Grant, Grants, Said
from farandole.runtime.lanes.ongoing import Ongoing
from farandole.topology import Topology

Connect: TypeAlias = Callable[[], tuple[Mapping[int, socket.socket], Lookout]]
"""Makes a connection to each other rank; collective."""

CONNECTING = "connecting all ranks with each other"

_HEAD = struct.Struct("!IB")
"""The number of a grant, and of the bytes that follow."""

_NOTHING_FOLLOWS = 255

YIELDS = 4
"""Where ranks share cores, the others speak meanwhile, and waking once for all of them is enough."""

MOST_GRANTS = 256
"""So much is sent before it is answered that every kernel has room for it."""

_READ_BYTES = 65536


@final
class DirectLane:
    """One rank's. Without ``connect`` no grant is taken up, and ``orders`` are all there is.

    ``explain`` raises what the controller says of the loss of a rank, if it says anything.
    """

    def __init__(
        self,
        topology: Topology,
        connect: Connect | None,
        orders: Dealer,
        ongoing: Ongoing,
        explain: Callable[[], None],
    ) -> None:
        self._topology, self._connect, self._orders = topology, connect, orders
        self._ongoing, self._explain = ongoing, explain
        self._has_read_all = False  # of what the controller has sent
        self._connections: dict[int, socket.socket] = {}  # nothing, and then all
        self._unread: dict[int, bytearray] = {}
        self._ranks: dict[int, int] = {}  # by descriptor
        self._controller: tuple[int, ...] = ()  # its descriptors
        self._ready: list[int] = []
        self._poll = select.poll()
        self._bell = -1
        self._lookout: Lookout | None = None
        self._lock = threading.RLock()  # guards what follows; a signal handler may give while its thread does
        self._grants = Grants(topology.size)
        self._since_s: dict[Grant, float] = {}  # when this rank has given something that not all have
        self._made: list[Message] = []
        self._sleeps = False  # who is in ``recv``
        self._lost: set[int] = set()
        self._has_left = False

    # -- what this rank says ------------------------------------------------------------------------------------------

    @property
    def is_busy(self) -> bool:
        """True while this rank has given something and not all others have."""
        return bool(self._since_s)

    def open(self, order: Order) -> None:
        """All ranks may do this among themselves from now on. Raises what an engine raises that is being made."""
        if self._connect is None:
            return
        if self._lookout is None:
            self._begin(self._connect)
        with self._lock:
            grant = self._grants.open(order)
            if self._has_left:
                self.withdraw(grant.key)
            else:
                self._settle(grant)
            for old in self._grants.all()[:-MOST_GRANTS]:
                self.withdraw(old.key)

    def give(self, ask: Ask) -> bool:
        """Send what this rank contributes to all others; False if no grant is open: the controller is to be asked."""
        with self._lock:
            grant = self._grants.find(ask.key)
            if grant is None:
                return False
            part = contribution(ask.calls)
            self._since_s[grant] = time.monotonic()
            self._ongoing.enter_direct(grant.lane, grant.round, grant.title)
            grant.hear(self._topology.rank, part)
            self._send(grant, part)
            self._settle(grant)
            if self._sleeps and self._made:
                os.eventfd_write(self._bell, 1)
            return True

    def withdraw(self, key: Key) -> None:
        """What this rank does next under this name is for the controller; nothing happens while it is busy with it."""
        with self._lock:
            grant = self._grants.find(key)
            if grant is not None and grant not in self._since_s:
                self._grants.close(grant)
                self._send(grant, WITHDRAWN)

    def leave(self) -> None:
        """This rank is joining: the others must not wait for it, until it has come back."""
        with self._lock:
            self._has_left = True
            for grant in self._grants.all():
                self.withdraw(grant.key)

    def come_back(self) -> None:
        """All have joined."""
        self._has_left = False

    def _send(self, grant: Grant, said: Said) -> None:
        frame = _HEAD.pack(grant.number, _NOTHING_FOLLOWS if said is None else len(said)) + (said or b"")
        for connection in self._connections.values():
            _send_all(connection, frame)

    # -- what the others say ------------------------------------------------------------------------------------------

    def recv(self) -> Message | None:
        """Wait for the next message of the controller; ``None`` if there may be something to ``hear`` before."""
        if self._lookout is None:
            return self._orders.recv()
        if self._has_read_all:
            self._has_read_all = self._is_due() or not self._wait(self._lookout)
        if self._has_read_all:
            return None
        message: Message | None = self._orders.recv(0.0)
        self._has_read_all = message is None
        return message

    def renew(self, stay: Stay) -> None:
        """Go on after ``recv`` has raised, with another controller."""
        self._orders.renew()
        self._orders.send(stay)

    def hear(self) -> list[Message]:
        """What follows from what ``recv`` has found that others said: orders, and requests to ask the controller.

        Raises ``EngineError`` if nothing can come of what this rank has given, as the connection to another is lost.
        """
        with self._lock:
            for rank in self._ready:
                self._hear(rank)
            self._ready = []
            made, self._made = self._made, []
            missed = -1 if made else self._missed()
        if missed >= 0:
            self._explain()
            host = self._topology.hosts[missed]
            raise EngineError(f"the connection to rank {missed} on {host} in the direct lane was lost")
        return made

    def _is_due(self) -> bool:
        """True if there is something to ``hear``, and nothing to wait for; else who gives has to ring."""
        with self._lock:
            is_due = bool(self._made) or self._missed() >= 0
            self._sleeps = not is_due
        return is_due

    def _missed(self) -> int:
        """A rank of which something is awaited and nothing can come; -1 for none."""
        return next((rank for rank in self._lost for grant in self._since_s if grant.lacks(rank)), -1)

    def _wait(self, lookout: Lookout) -> bool:
        """Sleep until somebody has said something; True if the controller has, or this rank was interrupted."""
        try:
            for _ in range(YIELDS):
                os.sched_yield()
            found = {fd for fd, _ in self._poll.poll(min(lookout.pause_s, LONGEST_WAIT_S) * 1000)}
        finally:
            self._sleeps = False
        for since_s in list(self._since_s.values())[:1]:
            lookout.look(since_s)
        if self._bell in found:
            os.eventfd_read(self._bell)
        self._ready = [self._ranks[fd] for fd in found if fd in self._ranks]
        return not found.isdisjoint(self._controller)

    def _hear(self, rank: int) -> None:
        connection, unread = self._connections[rank], self._unread[rank]
        try:
            more = connection.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            more = b""
        if not more:
            self._poll.unregister(connection)
            self._lost.add(rank)
        unread += more
        while len(unread) >= _HEAD.size:
            number, length = _HEAD.unpack_from(unread)
            end = _HEAD.size + (0 if length == _NOTHING_FOLLOWS else length)
            if len(unread) < end:
                break
            said = WITHDRAWN if length == _NOTHING_FOLLOWS else bytes(unread[_HEAD.size : end])
            del unread[:end]
            if grant := self._grants.hear(rank, number, said):
                self._settle(grant)

    def _settle(self, grant: Grant) -> None:
        """See what has come of a grant."""
        if parts := grant.next_round():
            self._end_round(grant)
            order = msgspec.structs.replace(grant.order, contributions=parts, direct=0)
            self._made.append(Orders(self._topology.generation, [order]))
            if self._has_left:
                self.withdraw(grant.key)
                return
            grant.next_round()
        if not grant.is_open:
            self._grants.close(grant)
            if grant in self._since_s:
                self._end_round(grant)
                self._made.append(Resend(self._topology.generation, grant.key[0], [grant.key[1]]))

    def _end_round(self, grant: Grant) -> None:
        del self._since_s[grant]
        self._ongoing.leave_direct(grant.lane)

    # -- the connections ----------------------------------------------------------------------------------------------

    def _begin(self, connect: Connect) -> None:
        self._ongoing.enter_direct(CONNECTING, 0, CONNECTING)
        try:
            connections, lookout = connect()
        except (AbortError, EngineError):
            self._explain()
            raise
        finally:
            self._ongoing.leave_direct(CONNECTING)
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._unread = {rank: bytearray() for rank in connections}
        self._ranks = {connection.fileno(): rank for rank, connection in connections.items()}
        self._controller = self._orders.fds
        for fd in (*self._ranks, *self._controller, self._bell):
            self._poll.register(fd, select.POLLIN)
        self._connections, self._lookout = dict(connections), lookout

    def interrupt(self) -> None:
        """End all waiting for others and for room to send. Any thread may call it, and it waits for nobody."""
        for connection in self._connections.values():
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self._orders.interrupt()

    def close(self) -> None:
        """Nobody leads any more."""
        with self._lock:
            for connection in self._connections.values():
                connection.close()
            if self._bell >= 0:
                os.close(self._bell)


def _send_all(connection: socket.socket, frame: bytes) -> None:
    """There is room for all that is sent before it is answered, unless the kernel has to send a packet again."""
    left = memoryview(frame)
    while left:
        try:
            left = left[connection.send(left) :]
        except BlockingIOError:
            room = select.poll()
            room.register(connection, select.POLLOUT)
            room.poll()
        except OSError:  # it is lost, which is seen where it is heard
            return
