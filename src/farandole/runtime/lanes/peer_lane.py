"""The short way of small all-reduces: ranks that know what is meant send each other what they contribute.

    lane = PeerLane(topology, connect, orders, active, explain)
    lane.open(order)                       # which says that all ranks may; collective the first time
    lane.give(announcement)                # sent to all
    message = lane.recv()                  # from the controller, as ever
    lane.hear()                            # the messages that it would have sent, had it been asked

``peer_protocol`` decides; here are its sockets and its lock.

Threads. Any user thread calls ``give``, ``withdraw``, ``leave``, ``release``, ``come_back``. One at a time, which leads
the negotiated lane (``negotiated`` sees to it), calls ``open``, ``recv``, ``hear``. Any thread, a signal handler too,
calls ``interrupt``, which takes no lock, as the thread that has it may be the one that the signal has stopped.

``_lock`` guards ``_peer``, and is held until what it has said has been sent: frames leave in the order in which they
were decided. It is held while a full socket is waited for; that is rare (``MOST_GRANTS``), and the other rank reads
without this lock of ours. The leader's own are ``_ready``, ``_has_read_all`` and ``_unread``: nobody else looks there.

Who sleeps. The leader sleeps in ``_wait``, in ``poll``, and without the lock. A thread that gives the last part of a
round has made an order that no descriptor tells of: it rings ``_bell``. ``_is_due`` says "I sleep" (``_sleeps``) under
the lock and only when nothing is made, so that whoever makes something afterwards sees it and rings; the bell stays
readable until ``poll`` has seen it. ``_sleeps`` is taken back without the lock, late if at all: ringing for a leader
that has just woken costs a look, not ringing would cost a hang. ``poll`` is level-triggered, so what was found and not
read, as an exception came in between, is found again.

The controller's socket is edge-triggered (ZeroMQ): ``_has_read_all`` remembers that ``recv`` has returned ``None``,
and only then may anybody sleep.
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
"""Makes a connection to each other rank, and the fast path where all are on one host; collective."""

CONNECTING = "connecting all ranks with each other"

YIELDS = 4
"""Where ranks share cores, the others speak meanwhile, and waking once for all of them is enough."""

_READ_BYTES = 65536


@final
class PeerLane:
    """Peer lane of one rank. Without ``connect`` no grant is taken up, and ``orders`` are all there is.

    ``explain`` raises what the controller says of the loss of a rank, if it says anything.
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
        self._has_read_all = False  # of what the controller has sent
        self._connections: dict[int, socket.socket] = {}  # nothing, and then all
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
        self._sleeps = False  # who is in ``recv``

    # -- what this rank says ------------------------------------------------------------------------------------------

    def open(self, order: Order) -> None:
        """Take up the grant that an order brings; the first connects all ranks. Raises what making an engine raises."""
        if self._connect is None:
            return
        if self._lookout is None:
            self._begin(self._connect)
        with self._lock:
            self._peer.open(order)
            self._tell()

    def give(self, announcement: Announcement) -> int:
        """Send what this rank contributes to all others; returns the number of the grant. 0: ask the controller."""
        with self._lock:  # from finding to sending: another thread's withdrawal in between would close the grant
            peer = self._peer
            grant = peer.find(announcement.key)
            if grant is None:
                return 0
            # Before ``give``, which may end the round: then ``_tell`` takes it out again.
            self._active.enter_direct(grant.lane, grant.round, grant.title)
            peer.give(grant, contribution(announcement.calls), time.monotonic())
            self._tell()
            if peer.made and self._sleeps:
                os.eventfd_write(self._bell, 1)
            return grant.number

    def withdraw(self, key: Key) -> None:
        """Close the grant of a name, for the controller to order what comes next; a round in progress goes on."""
        with self._lock:
            self._peer.withdraw(key)
            self._tell()

    def leave(self) -> None:
        """Withdraw from every name, as this rank is joining: the others must not wait for it until it has come back."""
        with self._lock:
            self._peer.leave()
            self._tell()

    def release(self) -> None:
        """Leave, as this rank waits for its rounds to end so that it can join: the others need not come to them."""
        with self._lock:
            self._peer.release()
            self._tell()

    def come_back(self) -> None:
        """Take up grants again: all ranks have joined."""
        # Without the lock, as the caller has that of the negotiated lane. It is one write, by the thread that leads and
        # opens grants (or by ``end``, after which nothing is opened).
        self._peer.come_back()

    def grants(self) -> tuple[dict[int, int], dict[Key, int]] | None:
        """Rounds contributed to, and those in progress, as in ``PendingCollectives``; ``None`` if that just changes."""
        if not self._lock.acquire(blocking=False):
            return None
        try:
            peer = self._peer
            return peer.given(), {grant.key: grant.number for grant in peer.awaiting}
        finally:
            self._lock.release()

    def _tell(self) -> None:
        """Send the frames that are due, and note the rounds that have ended. Called with the lock."""
        peer = self._peer
        if peer.outbox:
            frames = b"".join(peer.outbox)
            peer.outbox.clear()
            for connection in self._connections.values():
                _send_all(connection, frames)
        if peer.ended:
            for grant in peer.ended:
                self._active.leave_direct(grant.lane)
            peer.ended.clear()

    # -- what the others say ------------------------------------------------------------------------------------------

    def recv(self, limit_s: float | None = None) -> Message | None:
        """Wait for the next message of the controller; ``None`` if there may be something to ``hear`` before.

        ``None`` after ``limit_s`` seconds, too, which count in whole milliseconds once the ranks are connected.
        """
        self._orders.is_taking = False
        if self._lookout is None:
            return self._orders.recv(limit_s)
        if self._has_read_all:
            pause_s = min(self._lookout.pause_s, LONGEST_WAIT_S if limit_s is None else limit_s)
            # What is due changes nothing here: only ``poll`` tells of the next message of the controller.
            self._has_read_all = self._is_due() or not self._wait(self._lookout, pause_s)
        if self._has_read_all:
            return None
        message: Message | None = self._orders.recv(0.0)
        self._has_read_all = message is None
        return message

    @property
    def is_taking(self) -> bool:
        """True after an exception from ``recv`` that may have taken a message along."""
        return self._orders.is_taking

    def renew(self, stay: ControllerLost) -> None:
        """Go on after ``recv`` has raised, with another controller."""
        self._orders.renew()
        self._orders.send(stay)

    def hear(self) -> list[Message]:
        """Read what ``recv`` has found; returns what follows from it: orders, and requests to ask the controller.

        Raises ``EngineError`` if nothing can come of what this rank has given, as the connection to another is lost.
        """
        with self._lock:
            for rank in self._ready:
                self._hear(rank)
            self._ready = []  # afterwards: what an exception leaves unread is read next time
            self._tell()
            made = self._peer.take_made()
            missed = -1 if made else self._peer.missed()
        if missed >= 0:  # without the lock: it may take seconds, in which threads must not hang in ``give``
            self._explain()
            host = self._topology.hosts[missed]
            raise EngineError(f"the connection to rank {missed} on {host} in the peer lane was lost")
        return made

    def _is_due(self) -> bool:
        """True if there is something to ``hear`` at once; else whoever makes something from now on rings the bell."""
        with self._lock:
            is_due = bool(self._peer.made) or self._peer.missed() >= 0
            self._sleeps = not is_due
        return is_due

    def _wait(self, lookout: SilenceMonitor, pause_s: float) -> bool:
        """Sleep until somebody has said something; True if the controller has, or this rank was interrupted."""
        try:
            for _ in range(YIELDS):
                os.sched_yield()
            found = {fd for fd, _ in self._poll.poll(pause_s * 1000)}
        finally:
            self._sleeps = False
        for since_s in list(self._peer.awaiting.values())[:1]:  # a copy, without the lock: other threads give meanwhile
            lookout.look(since_s)
        if self._bell in found:  # before ``hear`` looks at what was made: a ring that comes after this one stays
            os.eventfd_read(self._bell)
        self._ready = [self._ranks[fd] for fd in found if fd in self._ranks]
        return not found.isdisjoint(self._controller)

    def _hear(self, rank: int) -> None:
        if rank not in self._unread:
            return
        try:
            more = self._connections[rank].recv(_READ_BYTES)
        except BlockingIOError:  # it was read before an exception came: see ``hear``
            return
        except OSError:  # reset by the other side, or given up: as good as ended
            more = b""
        if more:
            self._peer.hear(rank, more)
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
            self._active.leave_direct(CONNECTING)
        if self.fast is not None:
            self._active.pace.met, self._active.pace.elsewhere = self.fast.met, self.fast.pace
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._unread = set(connections)
        self._ranks = {connection.fileno(): rank for rank, connection in connections.items()}
        self._controller = self._orders.fds
        for fd in (*self._ranks, *self._controller, self._bell):
            self._poll.register(fd, select.POLLIN)
        # Last, and as a whole: ``interrupt`` goes through them without a lock, and ``_lookout`` says that all is there.
        self._connections, self._lookout = dict(connections), lookout

    def interrupt(self) -> None:
        """End all waiting for others and for room to send. Any thread may call it, and it waits for nobody."""
        for connection in self._connections.values():
            with contextlib.suppress(OSError):  # the other side is gone already
                connection.shutdown(socket.SHUT_RDWR)  # not ``close``: a thread may be in ``poll`` or ``send`` on it
        self._orders.interrupt()

    def close(self) -> None:
        """Close the connections, once nobody leads any more."""
        if self.fast is not None:
            self.fast.close()
        with self._lock:  # a thread that submits may still be in ``give``
            for connection in self._connections.values():
                connection.close()
            if self._bell >= 0:
                os.close(self._bell)


def _send_all(connection: socket.socket, frame: bytes) -> None:
    """Send all of ``frame``. There is room for it, unless the kernel has to send a packet again: then wait for that."""
    left = memoryview(frame)
    while left:
        try:
            left = left[connection.send(left, socket.MSG_NOSIGNAL) :]
        except BlockingIOError:
            room = select.poll()
            room.register(connection, select.POLLOUT)
            room.poll()  # without a limit: the other rank's end, and ``interrupt``, wake it
        except OSError:  # it is lost, which is seen where it is heard
            return
