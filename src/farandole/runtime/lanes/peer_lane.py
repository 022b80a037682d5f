"""Peer lane: small all-reduces under known names; ranks send their contributions directly to each other.

    lane = PeerLane(topology, connect, orders, active, explain)
    lane.open(order)                       # the order grants the name to all ranks; collective the first time
    lane.contribute(announcement)          # sent to all other ranks
    message = lane.recv()                  # from the controller
    lane.receive()                         # the messages that the controller would have sent for these rounds

``peer_protocol`` decides; this file has its sockets and its lock.

Threads. Any user thread calls ``contribute``, ``withdraw``, ``withdraw_all``, ``release``, ``come_back``. One at a time
the leader of the negotiated lane (``negotiated`` ensures it), calls ``open``, ``recv``, ``receive``. Any thread, also a
signal handler, calls ``interrupt``, which acquires no lock, because the signal may have interrupted its holder.

``_lock`` guards ``_peer``, and is held until the frames of ``_peer`` are sent: frames leave in the order in which they
were decided. It is held while waiting for room in a full socket; that is rare (``MOST_GRANTS``), and the other rank
reads without our lock. ``_ready``, ``_has_read_all`` and ``_unread`` belong to the leader: no other thread uses them.

Sleep. The leader sleeps in ``_wait``, in ``poll``, and without the lock. A thread that gives the last part of a round
makes an order that no socket signals: it rings ``_bell``. ``_is_due`` sets ``_sleeps`` under the lock and only when
no message is made, so that a thread that makes one afterwards sees ``_sleeps`` and rings; the bell stays readable until
``poll`` returns it. ``_sleeps`` is reset without the lock, late if at all: ringing for a leader that has just woken
costs one check, not ringing would cost a hang. ``poll`` is level-triggered, so a descriptor that was found, and not
read because of an exception, is found again.

The controller's socket is edge-triggered (ZeroMQ): ``_has_read_all`` records that ``recv`` has returned ``None``, and
only then may the leader sleep.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
import time
from collections.abc import Callable, Mapping
from typing import TypeAlias, final

from farandole.control.channel import Dealer
from farandole.control.message import Message
from farandole.control.messages import ControllerLost, Order
from farandole.control.sockets import LONGEST_WAIT_S
from farandole.engines.silence_monitor import SilenceMonitor
from farandole.errors import AbortError, EngineError
from farandole.runtime.lanes.active_collectives import ActiveCollectives
from farandole.runtime.lanes.announcement import Announcement, Key
from farandole.runtime.lanes.fast_path import FastPath
from farandole.runtime.lanes.inline_payload import contribution
from farandole.runtime.lanes.peer_protocol import PeerProtocol
from farandole.topology import Topology

Connect: TypeAlias = Callable[[], tuple[Mapping[int, socket.socket], SilenceMonitor, FastPath | None]]
"""Connects to every other rank, and makes the fast path if all ranks are on one host; collective."""

CONNECTING = "connecting all ranks with each other"

YIELDS = 4
"""Calls of ``sched_yield`` before sleeping: ranks on shared cores send meanwhile, and one wake-up serves them all."""

_READ_BYTES = 65536


@final
class PeerLane:
    """Peer lane of one rank. Without ``connect`` it uses no grant and only receives from ``orders``.

    ``explain`` raises the controller's reason for the loss of a rank, if the controller sends one.
    """

    def __init__(
        self,
        topology: Topology,
        connect: Connect | None,
        orders: Dealer,
        active: ActiveCollectives,
        explain: Callable[[], None],
    ) -> None:
        self._topology, self._connect, self._orders = topology, connect, orders
        self._active, self._explain = active, explain
        self._has_read_all = False  # all messages of the controller
        self._connections: dict[int, socket.socket] = {}  # empty, later complete; never partial
        self._unread: set[int] = set()  # the ranks whose connections have not ended
        self._ranks: dict[int, int] = {}  # by descriptor
        self._controller: tuple[int, ...] = ()  # its descriptors
        self._ready: list[int] = []
        self._poll = select.poll()
        self._bell = -1
        self._lookout: SilenceMonitor | None = None
        self.fast: FastPath | None = None  # written once, before the first grant is open
        self._lock = threading.RLock()  # guards what follows; a signal handler may shut down while its thread has it
        self._peer = PeerProtocol(topology.rank, topology.size, topology.generation)
        self._sleeps = False  # the thread in ``recv``

    # -- frames of this rank ------------------------------------------------------------------------------------------

    def open(self, order: Order) -> None:
        """Accept the grant of an order; the first grant connects all ranks. Raises the errors of making an engine."""
        if self._connect is None:
            return
        if self._lookout is None:
            self._begin(self._connect)
        with self._lock:
            self._peer.open(order)
            self._flush_outbox()

    def contribute(self, announcement: Announcement) -> int:
        """Send this rank's contribution to all others; returns the number of the grant. 0: ask the controller."""
        with self._lock:  # from ``find`` to sending: another thread's withdrawal in between would close the grant
            peer = self._peer
            grant = peer.find(announcement.key)
            if grant is None:
                return 0
            # Before ``contribute``, which may end the round: then ``_flush_outbox`` removes the entry again.
            self._active.enter_direct(grant.lane, grant.round, grant.title)
            peer.contribute(grant, contribution(announcement.calls), time.monotonic())
            self._flush_outbox()
            if peer.made and self._sleeps:
                os.eventfd_write(self._bell, 1)
            return grant.number

    def withdraw(self, key: Key) -> None:
        """Close the grant of a name; the controller orders its next collective. A round in progress continues."""
        with self._lock:
            self._peer.withdraw(key)
            self._flush_outbox()

    def withdraw_all(self) -> None:
        """Withdraw from every name because this rank joins: until ``come_back`` the others must not wait for it."""
        with self._lock:
            self._peer.withdraw_all()
            self._flush_outbox()

    def release(self) -> None:
        """Leave, and ask the others to withdraw from this rank's open rounds, which must end before it can join."""
        with self._lock:
            self._peer.release()
            self._flush_outbox()

    def come_back(self) -> None:
        """Accept grants again: all ranks have joined."""
        # Without the lock, because the caller holds the negotiated lane's. It is one write, by the thread that leads
        # and opens grants (or by ``end``, after which no grant is opened).
        self._peer.come_back()

    def grants(self) -> tuple[dict[int, int], dict[Key, int]] | None:
        """Rounds contributed to, and those in progress, as in ``PendingCollectives``; ``None`` if the lock is taken."""
        if not self._lock.acquire(blocking=False):
            return None
        try:
            peer = self._peer
            return peer.given(), {grant.key: grant.number for grant in peer.awaiting}
        finally:
            self._lock.release()

    def _flush_outbox(self) -> None:
        """Send the frames in the outbox, and record the rounds that have ended. Called with the lock."""
        peer = self._peer
        if peer.outbox:
            frames = b"".join(peer.outbox)
            peer.outbox.clear()
            for connection in self._connections.values():
                _send_all(connection, frames)
        if peer.ended:
            for grant in peer.ended:
                self._active.exit_direct(grant.lane)
            peer.ended.clear()

    # -- frames of the other ranks ------------------------------------------------------------------------------------

    def recv(self, limit_s: float | None = None) -> Message | None:
        """Wait for the next message of the controller; ``None`` if the caller should call ``hear`` first.

        Also ``None`` after ``limit_s`` seconds, which count in whole milliseconds once the ranks are connected.
        """
        self._orders.is_taking = False
        if self._lookout is None:
            return self._orders.recv(limit_s)
        if self._has_read_all:
            pause_s = min(self._lookout.pause_s, LONGEST_WAIT_S if limit_s is None else limit_s)
            # A due message does not change this flag: only ``poll`` detects the next message of the controller.
            self._has_read_all = self._is_due() or not self._wait(self._lookout, pause_s)
        if self._has_read_all:
            return None
        message: Message | None = self._orders.recv(0.0)
        self._has_read_all = message is None
        return message

    @property
    def is_taking(self) -> bool:
        """True after an exception from ``recv`` if that exception may have lost a message."""
        return self._orders.is_taking

    def renew(self, stay: ControllerLost) -> None:
        """Continue with another controller after ``recv`` has raised; ``stay`` is its first message."""
        self._orders.renew()
        self._orders.send(stay)

    def receive(self) -> list[Message]:
        """Read the connections that ``recv`` found ready; returns the resulting orders, and requests to resend.

        Raises ``EngineError`` if a round that this rank contributed to cannot end because a connection is lost.
        """
        with self._lock:
            for rank in self._ready:
                self._receive_from(rank)
            self._ready = []  # afterwards: connections that an exception leaves unread are read next time
            self._flush_outbox()
            made = self._peer.take_made()
            missed = -1 if made else self._peer.missed()
        if missed >= 0:  # without the lock: this may take seconds, and no thread may block in ``contribute``
            self._explain()
            host = self._topology.hosts[missed]
            raise EngineError(f"the connection to rank {missed} on {host} in the peer lane was lost")
        return made

    def _is_due(self) -> bool:
        """True if ``hear`` has a message already; else a thread that makes one from now on rings the bell."""
        with self._lock:
            is_due = bool(self._peer.made) or self._peer.missed() >= 0
            self._sleeps = not is_due
        return is_due

    def _wait(self, lookout: SilenceMonitor, pause_s: float) -> bool:
        """Sleep until a rank or the controller has sent; True for the controller, or if this rank was interrupted."""
        try:
            for _ in range(YIELDS):
                os.sched_yield()
            found = {fd for fd, _ in self._poll.poll(pause_s * 1000)}
        finally:
            self._sleeps = False
        for since_s in list(self._peer.awaiting.values())[:1]:  # a copy: other threads may ``contribute``
            lookout.look(since_s)
        if self._bell in found:  # before ``hear`` takes the messages made: a later ring stays readable
            os.eventfd_read(self._bell)
        self._ready = [self._ranks[fd] for fd in found if fd in self._ranks]
        return not found.isdisjoint(self._controller)

    def _receive_from(self, rank: int) -> None:
        if rank not in self._unread:
            return
        try:
            more = self._connections[rank].recv(_READ_BYTES)
        except BlockingIOError:  # it was read before an exception: see ``receive``
            return
        except OSError:  # reset by the peer, or timed out: the same as ended
            more = b""
        if more:
            self._peer.receive_bytes(rank, more)
        else:
            self._poll.unregister(self._connections[rank])
            self._unread.remove(rank)
            self._peer.lose(rank)

    # -- the connections ----------------------------------------------------------------------------------------------

    def _begin(self, connect: Connect) -> None:
        self._active.enter_direct(CONNECTING, 0, CONNECTING)
        try:
            connections, lookout, self.fast = connect()
        except (AbortError, EngineError):
            self._explain()
            raise
        finally:
            self._active.exit_direct(CONNECTING)
        if self.fast is not None:
            self._active.pace.met, self._active.pace.elsewhere = self.fast.met, self.fast.pace
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._unread = set(connections)
        self._ranks = {connection.fileno(): rank for rank, connection in connections.items()}
        self._controller = self._orders.fds
        for fd in (*self._ranks, *self._controller, self._bell):
            self._poll.register(fd, select.POLLIN)
        # Last, and at once: ``interrupt`` iterates over them without a lock, and ``_lookout`` marks the setup as done.
        self._connections, self._lookout = dict(connections), lookout

    def interrupt(self) -> None:
        """End all waits for other ranks and for room to send. Any thread may call it, and it never blocks."""
        for connection in self._connections.values():
            with contextlib.suppress(OSError):  # the peer has disconnected already
                connection.shutdown(socket.SHUT_RDWR)  # not ``close``: a thread may be in ``poll`` or ``send`` on it
        self._orders.interrupt()

    def close(self) -> None:
        """Close the connections, once no thread leads any more."""
        if self.fast is not None:
            self.fast.close()
        with self._lock:  # a thread that submits may still be in ``contribute``
            for connection in self._connections.values():
                connection.close()
            if self._bell >= 0:
                os.close(self._bell)


def _send_all(connection: socket.socket, frame: bytes) -> None:
    """Send all of ``frame``. There is room for it, unless the kernel must retransmit packets: then wait for room."""
    left = memoryview(frame)
    while left:
        try:
            left = left[connection.send(left, socket.MSG_NOSIGNAL) :]
        except BlockingIOError:
            room = select.poll()
            room.register(connection, select.POLLOUT)
            room.poll()  # without a limit: the other rank's exit, and ``interrupt``, wake it
        except OSError:  # the connection is lost; ``_receive_from`` detects that
            return
