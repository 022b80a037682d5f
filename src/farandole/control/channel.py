"""The two ends of the control plane: the controller's ``Router`` and everybody else's ``Dealer``.

    router = Router(keys)
    dealer = Dealer(router.address, b"worker-7u", keys)       # in another process or thread
    dealer.send(Leave(generation=1))
    router.wait(timeout_s=1.0)
    router.recv()                                             # (b"worker-7u", Leave(generation=1))

Both ends sleep in the kernel until something comes; nothing polls. Only holders of the job's keys get in. What a peer
may not send is dropped, counted in ``Router.statistics()`` and logged once per kind; the job goes on.

A ``Dealer`` knocks when it connects (an empty frame, echoed by the router). When its constructor returns, the router
can reach its identity, and so a peer may announce several dealers over one of them.

Edges. The descriptor of a ZeroMQ socket is edge-triggered: it becomes readable once for what has come, and any use of
the socket takes that edge in, a ``send`` as well. So who is about to sleep asks ``is_readable`` first, and a ``send``
that finds a message there rings ``Dealer._bell`` for a receiver who sleeps already: nothing else would wake it. The
bell is an eventfd and level-triggered, so it cannot be missed, only be rung in vain, which costs a look.

Threads. A ``Router`` has one. Of a ``Dealer`` any thread sends, also a signal handler; one at a time receives.

- ``_lock`` guards the socket, the draining of its monitor, and ``_closed``, and with that the number of the bell. Only
  ``close`` sleeps with it, for a second at most, when nobody may send any more. It is an ``RLock``, as a handler may
  send, or interrupt, on top of a ``send``.
- ``_receiving`` is held for a whole ``recv``, sleep included: ``close`` waits for it before it frees what the receiver
  polls, and ``send`` looks at it to know whether somebody may be asleep. It is taken before ``_lock``, never after.
  It is no ``RLock``: a handler on top of a ``recv`` must ``interrupt`` and leave ``close`` to another thread, since the
  receiver below it would go on with a freed socket.
- ``is_taking`` is the receiver's.
- ``_interrupted`` is set once, before the bell rings, and read without a lock. ``_lost`` is read by the receiver
  without a lock, too: who writes it, apart from ``renew``, is the receiver.
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
"""Heartbeats that the controller is sent within the time after which it counts as gone."""

QUITTERS = "connections that went away"
"""The kind under which these are counted; it is never logged."""


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
        # Before the socket listens: where nobody answers for newcomers, ZeroMQ lets in all who know the server's key.
        self._door = Door(self._context, keys.client.public)
        self._socket = new_socket(self._context, zmq.ROUTER)
        self._socket.ipv6 = "*" in address or "[" in address
        self._socket.curve_server = True
        self._socket.curve_secretkey = keys.server.secret
        self._socket.router_mandatory = True  # to send to somebody who has gone is an error, and not silence
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
        """Descriptor for a loop of one's own: when readable, call ``wait(0.0)``, then ``recv`` until it has no more."""
        return self._epoll.fileno()

    def watch(self, fd: int) -> None:
        """Let ``wait`` also return when ``fd`` becomes readable (a signal's pipe, a pidfd)."""
        self._epoll.register(fd, select.EPOLLIN)

    def unwatch(self, fd: int) -> None:
        """Undo ``watch``; call it before closing ``fd``."""
        self._epoll.unregister(fd)

    def wait(self, timeout_s: float | None = None) -> set[int]:
        """Sleep until a message may be there, a watched descriptor is readable, or the time (or a day) is over.

        Returns the watched descriptors that are readable.
        """
        patience_s = None if timeout_s is None else min(timeout_s, LONGEST_WAIT_S)
        # Even then the descriptors are looked at: a signal or a child must not wait until no message comes any more.
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
        """The next message and who sent it, or ``None`` if there is none now. Never blocks."""
        while is_readable(self._socket):
            # Two frames are certain: messages come whole, and ZeroMQ has put the identity before at least one frame.
            identity, frame = self._socket.recv(NOBLOCK), self._socket.recv(NOBLOCK)
            if self._socket.getsockopt(RCVMORE):
                more = self._socket.recv_multipart(NOBLOCK)
                self.refuse("frames that are no message", f"{2 + len(more)} parts from {identity!r}")
            elif identity.startswith(b"\0"):  # made up by ZeroMQ
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
        if last is not message:  # one message often goes to all, and messages never change
            frame = messages.encode(message)
            self._last = (message, frame)
        return self._deliver(identity, frame)

    def reaches(self, identity: bytes) -> bool:
        """True if a peer of that name is connected. It is sent a knock, which ``recv`` there passes over."""
        return self._deliver(identity, KNOCK)

    def refuse(self, kind: str, detail: str) -> None:
        """Count something that was dropped under ``kind``; the first of each kind is logged."""
        self._refused[kind] += 1
        if self._refused[kind] == 1:
            logger.warning("control plane: refused %s (%s); more of these are only counted", kind, detail)

    def statistics(self) -> Mapping[str, int]:
        """Numbers of messages received and sent, and of what was refused, by kind."""
        return {"received": self._received, "sent": self._sent, **self._refused}

    def close(self) -> None:
        """Say how much was refused in all, deliver what is queued (for at most a second) and free everything."""
        self._note_strangers()
        for kind, number in self._refused.items():
            if number > 1 and kind != QUITTERS:
                logger.warning("control plane: refused %d %s in all", number, kind)
        self._epoll.close()
        self._monitor.close()
        self._socket.close()
        self._door.close()
        self._context.term()  # waits for what is queued, as long as sockets linger; all of them must be closed by now

    def __enter__(self) -> Router:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _bind(self, address: str) -> None:
        """Listen at ``address``, whose port may be a range; raises ``ControlError`` where that cannot be."""
        place, _, ports = address.rpartition(":")
        *others, last = [f"{place}:{port}" for port in ports_in(ports)] if PORTS.fullmatch(ports) else [address]
        try:
            for each in others:
                with contextlib.suppress(zmq.ZMQError):  # taken; of what else is wrong the last one tells
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

    ``ControlError`` is raised by the constructor if no controller answers within ``timeout_s`` or it refuses the key,
    and by ``recv`` once the controller is gone, until ``renew``. With ``timeout_s=None`` it does not knock, and
    ``recv`` says it all. Dealers of one process may share a ``context``; it must outlive them. With ``silence_s`` a
    controller that does not answer ZeroMQ's heartbeats for so long counts as gone, too: a host without power or network
    closes no connection.
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
        """Set before a message leaves the socket, for a receiver that may be interrupted on the way: it resets this."""
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
        except BaseException:  # Ctrl-C, too, may come while nobody answers the knock
            self.close()
            raise

    def send(self, message: Message) -> None:
        """Queue ``message`` for the controller; never blocks. Raises ``ControlError`` after ``close``."""
        frame = messages.encode(message)
        with self._lock:
            if self._closed:
                raise ControlError(f"a {type(message).__name__} was sent after close(), to {self.address}")
            self._queue(frame)
            # Sending may take in the signal of a message that has just come; then nothing else wakes the receiver,
            # be it in `recv` or in a loop of its own.
            if (self._has_loop or self._receiving.locked()) and is_readable(self._socket):
                os.eventfd_write(self._bell, 1)

    def recv(self, timeout_s: float | None = None) -> messages.AnyMessage | None:
        """The next message; ``None`` after ``timeout_s`` seconds (``None``: no limit) or once interrupted."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        with self._receiving:
            while (frame := self._next_frame(deadline)) == KNOCK:
                pass  # the router wants to know whether we are still there (``reaches``)
        return None if frame is None else messages.decode(frame)

    def renew(self, address: str = "") -> None:
        """Go on after ``recv`` has raised: another controller will listen there; it gets what is sent from now on.

        With an ``address`` it listens at that one instead, and nothing that was sent before goes there.
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
        """True once the controller is gone or has refused us, as far as ``recv`` has seen."""
        return bool(self._lost)

    @property
    def peer(self) -> Monitor:
        """The monitor of the connection: it tells what became of the controller, as far as ``recv`` has seen."""
        return self._monitor

    def flush(self, timeout_s: float) -> None:
        """Wait until the controller has received everything sent before; messages for us that come meanwhile are lost.

        Closing delivers too, but cannot tell when. Raises ``ControlError`` if the controller does not answer.
        """
        self._knock(timeout_s)

    @property
    def fds(self) -> tuple[int, ...]:
        """Descriptors for a loop of one's own: when one is readable, call ``recv(0.0)`` until it returns ``None``."""
        if not self._has_loop:  # what was sent before this may have taken in an edge, and not have rung
            self._has_loop = True  # first: a ``send`` that does not see it yet is made up for by the ring below
            os.eventfd_write(self._bell, 1)
        return self._fds

    @property
    def _fds(self) -> tuple[int, ...]:
        return self._socket.fileno(), self._monitor.fd, self._bell

    @property
    def interrupted(self) -> bool:
        """True after ``interrupt`` or ``close``: ``recv`` will only return ``None``."""
        return self._interrupted

    def interrupt(self) -> None:
        """Make the ``recv`` in progress, and every later one, return ``None`` at once. Any thread may call it."""
        with self._lock:
            if not self._closed:  # else the number of the bell may be somebody else's
                self._interrupted = True  # before it rings: who wakes must see why
                os.eventfd_write(self._bell, 1)

    def close(self, *, deliver: bool = True) -> None:
        """Interrupt the receiver, deliver what is queued (for at most a second) and free everything. Idempotent."""
        self.interrupt()  # without a lock that the receiver holds: it may sleep with no time limit
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
        """Send a knock and wait until it comes back; what was sent before has been received then."""
        deadline = time.monotonic() + timeout_s
        with self._lock:
            self._queue(KNOCK)
        with self._receiving:
            while (answer := self._next_frame(deadline)) != KNOCK:
                if answer is None or time.monotonic() > deadline:  # messages may come without an end
                    if not self._interrupted:  # else a last message may follow, and somebody may be there
                        self._socket.linger = 0
                    raise ControlError(
                        f"no controller answered at {self.address} within {timeout_s:g} s: is the launcher that gave "
                        "this address still running, and is FARANDOLE_CONTROLLER passed on unchanged?"
                    )

    def _queue(self, frame: bytes) -> None:
        """Queue a frame; nothing where the controller has refused us already, of which ``recv`` tells."""
        with contextlib.suppress(zmq.Again):  # ZeroMQ has no connection left to queue it for
            self._socket.send(frame, NOBLOCK)

    def _next_frame(self, deadline: float | None) -> bytes | None:
        while not self._interrupted:
            with self._lock:  # not held while asleep below, or nobody could send; what comes in between rings the bell
                if is_readable(self._socket):
                    self.is_taking = True  # first: a handler may raise when the message has left, and nobody has it
                    return self._socket.recv(NOBLOCK)
            if self._lost:  # said only when nothing is left to read
                raise ControlError(self._lost)
            left_s = None if deadline is None else max(0.0, deadline - time.monotonic())
            ready = self._poll.poll(None if left_s is None else min(left_s, LONGEST_WAIT_S) * 1000)
            if not ready and left_s is not None and left_s <= LONGEST_WAIT_S:
                return None
            for fd, _ in ready:
                if fd == self._monitor.fd:
                    self._look_at_peer()
                elif fd == self._bell and not self._interrupted:  # then it goes on ringing, for a loop of one's own
                    os.eventfd_read(fd)
        return None

    def _look_at_peer(self) -> None:
        with self._lock:
            events = [event for event, _ in self._monitor.drain()]
            if any(event & HANDSHAKE_FAILED for event in events):
                self._lost = (  # which of the two it was, ZeroMQ does not tell
                    f"the controller at {self.address} broke the handshake off: it refused this process's key (pass "
                    "FARANDOLE_KEY on exactly as the launcher set it), or has no descriptor left for another "
                    "connection, as under a flood of them (raise the limit where it runs: ulimit -n)"
                )
            elif zmq.EVENT_DISCONNECTED in events:
                self._lost = f"the controller at {self.address} is gone"
            if self._lost:
                self._socket.linger = 0  # nobody is there to deliver to, and closing would wait for a second
