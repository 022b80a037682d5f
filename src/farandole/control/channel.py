"""The two ends of the control plane: the controller's ``Router``, and the ``Dealer`` of every other process.

    router = Router(keys)
    dealer = Dealer(router.address, b"worker-7u", keys)       # in another process or thread
    dealer.send(Leave(generation=1))
    router.wait(timeout_s=1.0)
    router.recv()                                             # (b"worker-7u", Leave(generation=1))

Both ends sleep in the kernel until a message arrives; nothing polls. Only processes with the job's keys can connect. An
illegal message is dropped, counted in ``Router.statistics()`` and logged once per kind; the job goes on.

A ``Dealer`` knocks when it connects: it sends an empty frame, which the router echoes. When its constructor returns,
the router can reach its identity, and so a peer may announce several dealers over one of them.

Edges. The descriptor of a ZeroMQ socket is edge-triggered: it becomes readable once for all pending messages, and any
use of the socket consumes that edge, a ``send`` as well. So a thread calls ``is_readable`` before it sleeps, and a
``send`` that finds a pending message rings ``Dealer._bell``, because nothing else would wake a sleeping receiver. The
bell is an eventfd and level-triggered: a ring cannot be missed, and a ring in vain only costs a check.

Threads. A ``Router`` has one. On a ``Dealer`` any thread sends, also a signal handler; one thread at a time receives.

- ``_lock`` guards the socket, the draining of its monitor, ``_closed``, and with that the descriptor of the bell. Only
  ``close`` sleeps while holding it, for at most a second, when no thread may send any more. It is an ``RLock``, because
  a signal handler may send, or interrupt, on top of a ``send``.
- ``_receiving`` is held for a whole ``recv``, sleep included: ``close`` waits for it before it frees the descriptors
  that the receiver polls, and ``send`` reads it to know whether a receiver may sleep. It is acquired before ``_lock``,
  never after. It is no ``RLock``: a handler on top of a ``recv`` must call ``interrupt`` and leave ``close`` to another
  thread, because the receiver below it would continue with a freed socket.
- ``is_taking`` belongs to the receiver.
- ``_interrupted`` is set once, before the bell rings, and read without a lock. The receiver also reads ``_lost``
  without a lock: except for ``renew``, only the receiver writes it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import threading
import time
from collections import Counter
from collections.abc import Mapping
from typing import final

import zmq

from farandole.control import messages
from farandole.control.addresses import ports_in
from farandole.control.admission import HANDSHAKE_FAILED, Admissions, Door, Monitor
from farandole.control.keys import JobKeys
from farandole.control.local_peer import admit_own
from farandole.control.message import Message
from farandole.control.sockets import (
    LINGER_MS,
    LONGEST_WAIT_S,
    NOBLOCK,
    RCVMORE,
    SNDMORE,
    Context,
    allow_descriptors,
    client_socket,
    connect,
    is_readable,
    new_socket,
)
from farandole.errors import ControlError
from farandole.settings import PORTS

logger = logging.getLogger("farandole.control")

LOCAL = "tcp://127.0.0.1:0"
KNOCK = b""

PINGS = 4
"""Number of heartbeats sent to the controller within the silence after which it counts as lost."""

QUITTERS = "connections that went away"
"""Kind under which such connections are counted; it is never logged."""


@final
class Router:
    """The controller's end: receives from all peers, sends to each by its identity. One thread only.

    The loop around it is ``wait`` (sleep), then ``recv`` until it returns ``None``.
    """

    def __init__(self, keys: JobKeys, address: str = LOCAL) -> None:
        self._refused: Counter[str] = Counter()
        self._received = self._sent = 0
        self._last: tuple[Message | None, bytes] = (None, b"")
        allow_descriptors()
        self._context = Context()
        # Before the socket listens: without a ZAP handler ZeroMQ admits every client that knows the server's key.
        self._door = Door(self._context, keys.client.public)
        self._socket = new_socket(self._context, zmq.ROUTER)
        self._socket.ipv6 = "*" in address or "[" in address
        self._socket.curve_server = True
        self._socket.curve_secretkey = keys.server.secret
        self._socket.router_mandatory = True  # sending to a disconnected peer is an error, and not ignored
        self._socket.backlog = 4096
        admit_own(self._socket)
        self._monitor = Monitor(self._socket)  # before it listens, to see every connection
        self._admissions = Admissions()
        self._epoll = select.epoll()
        try:
            self._bind(address)
        except BaseException:
            self.close()
            raise
        self.address: str = self._socket.get_string(zmq.LAST_ENDPOINT)
        self._fd: int = self._socket.fileno()
        for fd in (self._fd, self._door.fd, self._monitor.fd):
            self._epoll.register(fd, select.EPOLLIN)

    @property
    def fd(self) -> int:
        """Descriptor for the caller's own loop: when readable, call ``wait(0.0)``, then ``recv`` until ``None``."""
        return self._epoll.fileno()

    def watch(self, fd: int) -> None:
        """Make ``wait`` also return when ``fd`` becomes readable (a signal pipe, a pidfd)."""
        self._epoll.register(fd, select.EPOLLIN)

    def unwatch(self, fd: int) -> None:
        """Undo ``watch``; call it before closing ``fd``."""
        self._epoll.unregister(fd)

    def wait(self, timeout_s: float | None = None) -> set[int]:
        """Sleep until a message may be ready, a watched descriptor is readable, or the time (or a day) is over.

        Returns the watched descriptors that are readable.
        """
        patience_s = None if timeout_s is None else min(timeout_s, LONGEST_WAIT_S)
        # With a message ready, still poll the descriptors: a signal or child must not wait for the messages to stop.
        ready = {fd for fd, _ in self._epoll.poll(0 if is_readable(self._socket) else patience_s)}
        ready.discard(self._fd)
        if self._door.fd in ready:
            ready.discard(self._door.fd)
            self._door.serve()
        if self._monitor.fd in ready:
            ready.discard(self._monitor.fd)
            self._note_strangers()
        return ready

    def recv(self) -> tuple[bytes, messages.AnyMessage] | None:
        """Return the next message and its sender, or ``None`` if no message is ready. Never blocks."""
        while is_readable(self._socket):
            # Two frames are certain: messages arrive whole, and ZeroMQ puts the identity before at least one frame.
            identity, frame = self._socket.recv(NOBLOCK), self._socket.recv(NOBLOCK)
            if self._socket.getsockopt(RCVMORE):
                more = self._socket.recv_multipart(NOBLOCK)
                self.refuse("frames that are no message", f"{2 + len(more)} parts from {identity!r}")
            elif identity.startswith(b"\0"):  # generated by ZeroMQ
                self.refuse("unknown identities", "a peer that gave itself no name")
            elif frame == KNOCK:
                self._deliver(identity, KNOCK)
            elif len(frame) > messages.LIMIT_BYTES + messages.ENVELOPE_BYTES:
                self.refuse("oversized frames", f"{len(frame)} bytes from {identity!r}")
            elif (message := self._decode(identity, frame)) is not None:
                return identity, message
        return None

    def send(self, identity: bytes, message: Message) -> bool:
        """Queue ``message`` for a peer; never blocks. False if no such peer is connected (it has died or left)."""
        last, frame = self._last
        if last is not message:  # one message is often sent to all peers, and messages are immutable
            frame = messages.encode(message)
            self._last = (message, frame)
        return self._deliver(identity, frame)

    def reaches(self, identity: bytes) -> bool:
        """True if a peer with that identity is connected. Sends it a knock, which its ``recv`` skips."""
        return self._deliver(identity, KNOCK)

    def refuse(self, kind: str, detail: str) -> None:
        """Count a dropped message or connection under ``kind``; log the first of each kind."""
        self._refused[kind] += 1
        if self._refused[kind] == 1:
            logger.warning("control plane: refused %s (%s); more of these are only counted", kind, detail)

    def statistics(self) -> Mapping[str, int]:
        """Numbers of messages received and sent, and of refusals by kind."""
        return {"received": self._received, "sent": self._sent, **self._refused}

    def close(self) -> None:
        """Log the totals of refusals, deliver queued messages (for at most a second) and free everything."""
        self._note_strangers()
        for kind, number in self._refused.items():
            if number > 1 and kind != QUITTERS:
                logger.warning("control plane: refused %d %s in all", number, kind)
        self._epoll.close()
        self._monitor.close()
        self._socket.close()
        self._door.close()
        self._context.term()  # waits for queued messages while sockets linger; all sockets must be closed by now

    def __enter__(self) -> Router:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _bind(self, address: str) -> None:
        """Listen at ``address``, whose port may be a range; raises ``ControlError`` if that fails."""
        place, _, ports = address.rpartition(":")
        *others, last = [f"{place}:{port}" for port in ports_in(ports)] if PORTS.fullmatch(ports) else [address]
        try:
            for each in others:
                with contextlib.suppress(zmq.ZMQError):  # port in use; any other error is raised for the last port
                    self._socket.bind(each)
                    return
            self._socket.bind(last)
        except zmq.ZMQError as error:
            raise ControlError(f"the controller cannot listen at {address}: {error}") from error

    def _decode(self, identity: bytes, frame: bytes) -> messages.AnyMessage | None:
        try:
            message = messages.decode(frame)
        except ControlError as error:
            self.refuse("frames that are no message", f"from {identity!r}: {error}")
            return None
        self._received += 1
        return message

    def _deliver(self, identity: bytes, frame: bytes) -> bool:
        try:
            self._socket.send(identity, NOBLOCK | SNDMORE)
            self._socket.send(frame, NOBLOCK)
        except zmq.ZMQError as error:
            if error.errno not in (zmq.EHOSTUNREACH, zmq.EAGAIN):
                raise
            return False
        self._sent += 1
        return True

    def _note_strangers(self) -> None:
        strangers, quitters = self._admissions.update(self._monitor.drain())
        for _ in range(strangers):
            self.refuse("connections without this job's key", "random bytes or another job")
        if quitters:
            self._refused[QUITTERS] += quitters


@final
class Dealer:
    """The end of a worker or an agent. Any thread may send; one thread at a time receives.

    The constructor raises ``ControlError`` if no controller answers within ``timeout_s`` or it refuses the key, and
    ``recv`` raises it once the connection is lost, until ``renew``. With ``timeout_s=None`` the constructor does not
    knock, and ``recv`` raises all these errors. Dealers of one process may share a ``context``; it must outlive them.
    With ``silence_s`` a controller that does not answer ZeroMQ's heartbeats for that long counts as lost, too: a host
    without power or network closes no connection.
    """

    def __init__(
        self,
        address: str,
        identity: bytes,
        keys: JobKeys,
        timeout_s: float | None = 30.0,
        context: zmq.Context[zmq.Socket[bytes]] | None = None,
        silence_s: float = 0.0,
    ) -> None:
        self.address = address
        self.is_taking = False
        """Set before a message leaves the socket; the receiver, which a signal may interrupt in between, resets it."""
        self._own_context = None if context is not None else Context()
        self._socket = client_socket(context or self._own_context or Context(), keys)
        self._socket.routing_id = identity
        if silence_s:
            self._socket.heartbeat_ivl = max(1, int(silence_s * 1000 / PINGS))
            self._socket.heartbeat_timeout = max(1, int(silence_s * 1000))
        self._monitor = Monitor(self._socket)
        self._lock = threading.RLock()  # a signal handler may send while its thread is sending
        self._receiving = threading.Lock()  # no RLock: see above
        self._interrupted = self._closed = False
        self._lost = ""
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._has_loop = False
        self._poll = select.poll()
        for fd in self._fds:
            self._poll.register(fd, select.POLLIN)
        try:
            self._connect()
            if timeout_s is not None:
                self._knock(timeout_s)
        except BaseException:  # also Ctrl-C, while no controller answers the knock
            self.close()
            raise

    def send(self, message: Message) -> None:
        """Queue ``message`` for the controller; never blocks. Raises ``ControlError`` after ``close``."""
        frame = messages.encode(message)
        with self._lock:
            if self._closed:
                raise ControlError(f"a {type(message).__name__} was sent after close(), to {self.address}")
            self._queue(frame)
            # Sending may consume the edge of a message that has just arrived; then nothing else wakes the receiver,
            # neither in `recv` nor in the caller's own loop.
            if (self._has_loop or self._receiving.locked()) and is_readable(self._socket):
                os.eventfd_write(self._bell, 1)

    def recv(self, timeout_s: float | None = None) -> messages.AnyMessage | None:
        """Receive the next message; ``None`` after ``timeout_s`` seconds (``None``: no limit) or once interrupted."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        with self._receiving:
            while (frame := self._next_frame(deadline)) == KNOCK:
                pass  # the router checks whether this dealer is still connected (``reaches``)
        return None if frame is None else messages.decode(frame)

    def renew(self, address: str = "") -> None:
        """Reconnect after ``recv`` has raised: a new controller will listen there and receives all later messages.

        With an ``address`` the new controller listens there instead, and messages queued before are dropped.
        """
        with self._lock:
            if address and address != self.address:
                self._socket.linger = 0
                self._socket.disconnect(self.address)
                self.address = address
                self._connect()
            self._lost = ""
            self._socket.linger = LINGER_MS

    @property
    def lost(self) -> bool:
        """True once ``recv`` has seen that the connection is lost or was refused."""
        return bool(self._lost)

    @property
    def peer(self) -> Monitor:
        """Monitor of the connection: the state of the controller's end, as of the last ``recv``."""
        return self._monitor

    def flush(self, timeout_s: float) -> None:
        """Wait until the controller has received all earlier messages; messages that arrive here meanwhile are lost.

        ``close`` delivers, too, but without confirmation. Raises ``ControlError`` if the controller does not answer.
        """
        self._knock(timeout_s)

    @property
    def fds(self) -> tuple[int, ...]:
        """Descriptors for the caller's own loop: when one is readable, call ``recv(0.0)`` until ``None``."""
        if not self._has_loop:  # an earlier ``send`` may have consumed an edge without ringing the bell
            self._has_loop = True  # first: the ring below covers a ``send`` that does not see this flag yet
            os.eventfd_write(self._bell, 1)
        return self._fds

    @property
    def _fds(self) -> tuple[int, ...]:
        return self._socket.fileno(), self._monitor.fd, self._bell

    @property
    def interrupted(self) -> bool:
        """True after ``interrupt`` or ``close``: from then on ``recv`` returns ``None``."""
        return self._interrupted

    def interrupt(self) -> None:
        """Make the ``recv`` in progress, and every later one, return ``None`` at once. Any thread may call it."""
        with self._lock:
            if not self._closed:  # else the bell's descriptor number may belong to another file
                self._interrupted = True  # before the bell rings: the woken receiver must see it
                os.eventfd_write(self._bell, 1)

    def close(self, *, deliver: bool = True) -> None:
        """Interrupt the receiver, deliver queued messages (for at most a second) and free everything. Idempotent."""
        self.interrupt()  # before ``_receiving`` is acquired: its holder may sleep without a time limit
        with self._receiving, self._lock:
            if self._closed:
                return
            self._closed = True
            self._monitor.close()
            self._socket.close(None if deliver else 0)
            os.close(self._bell)
            if self._own_context is not None:
                self._own_context.destroy(0)

    def __enter__(self) -> Dealer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _connect(self) -> None:
        try:
            connect(self._socket, self.address)
        except zmq.ZMQError as error:
            raise ControlError(f"{self.address!r} is no address of a controller: {error}") from error

    def _knock(self, timeout_s: float) -> None:
        """Send a knock and wait for its echo; the controller has then received all earlier messages."""
        deadline = time.monotonic() + timeout_s
        with self._lock:
            self._queue(KNOCK)
        with self._receiving:
            while (answer := self._next_frame(deadline)) != KNOCK:
                if answer is None or time.monotonic() > deadline:  # other messages may arrive without end
                    if not self._interrupted:  # else linger: a last message may follow, and a controller may exist
                        self._socket.linger = 0
                    raise ControlError(
                        f"no controller answered at {self.address} within {timeout_s:g} s: is the launcher that gave "
                        "this address still running, and is FARANDOLE_CONTROLLER passed on unchanged?"
                    )

    def _queue(self, frame: bytes) -> None:
        """Queue a frame; does nothing if the controller has refused the connection, which ``recv`` reports."""
        with contextlib.suppress(zmq.Again):  # ZeroMQ has no connection left to queue it for
            self._socket.send(frame, NOBLOCK)

    def _next_frame(self, deadline: float | None) -> bytes | None:
        while not self._interrupted:
            with self._lock:  # released during the sleep below, so that others can send; such a ``send`` rings the bell
                if is_readable(self._socket):
                    self.is_taking = True  # first: a handler may raise after the message left the socket, and lose it
                    return self._socket.recv(NOBLOCK)
            if self._lost:  # raised only when no message is left to read
                raise ControlError(self._lost)
            left_s = None if deadline is None else max(0.0, deadline - time.monotonic())
            ready = self._poll.poll(None if left_s is None else min(left_s, LONGEST_WAIT_S) * 1000)
            if not ready and left_s is not None and left_s <= LONGEST_WAIT_S:
                return None
            for fd, _ in ready:
                if fd == self._monitor.fd:
                    self._look_at_peer()
                elif fd == self._bell and not self._interrupted:  # interrupted: it keeps ringing, for the caller's loop
                    os.eventfd_read(fd)
        return None

    def _look_at_peer(self) -> None:
        with self._lock:
            events = [event for event, _ in self._monitor.drain()]
            if any(event & HANDSHAKE_FAILED for event in events):
                self._lost = (  # ZeroMQ does not report which of the two causes it was
                    f"the controller at {self.address} broke the handshake off: it refused this process's key (pass "
                    "FARANDOLE_KEY on exactly as the launcher set it), or has no descriptor left for another "
                    "connection, as under a flood of them (raise the limit where it runs: ulimit -n)"
                )
            elif zmq.EVENT_DISCONNECTED in events:
                self._lost = f"the controller at {self.address} is gone"
            if self._lost:
                self._socket.linger = 0  # there is no peer to deliver to, and closing would wait for a second
