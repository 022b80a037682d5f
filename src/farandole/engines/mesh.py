"""An authenticated TCP connection between every two members of a group.

    connections = connect(group, exchange)      # {1: <socket>, 2: <socket>}, by members

Members send each other their listening address, and a key, by their ``exchange``, which is authenticated. A connecting
member sends its index and an HMAC of it under the key of the listening member, which answers likewise. From any other
client these 36 bytes are read and nothing more.
"""

# Threads. One thread per member, and all members run this at the same time. No two may wait for each other: all listen
# before any connects (endpoints are exchanged after ``listen``), kernels complete connections without their process,
# all connects are started before any is waited for, and clients send their greetings before any member reads one.
# ``abort`` cannot reach an engine that is still being made: every wait checks ``broken`` once per ``_LOOK_S``.
#
# Strangers may connect, too, and send nothing. ``_MOST_UNKNOWN`` clients are held, the others wait in the kernel's
# backlog, where members that have connected keep their place. The oldest client makes room, but only after
# ``_GREETING_S``: closing the oldest as soon as there were too many also closed members that had not greeted yet. No
# member can be late with its greeting now, however busy its host: all have sent theirs (``call``) before the exchange
# after which the first connection is accepted. And no client is closed whose greeting is in our kernel already: only
# those count as silent that had sent nothing when ``poll`` ran, after the time was taken.

from __future__ import annotations

import contextlib
import errno
import hmac
import os
import secrets
import select
import socket
import struct
import time
from collections.abc import Sequence
from typing import Any, NamedTuple, final

import msgspec

from farandole.control.addresses import ports_in
from farandole.engines.engine import Exchange, Group
from farandole.engines.reach import LOOPBACK, family_of, reachable_address
from farandole.engines.silence_monitor import limit_s
from farandole.errors import AbortError, EngineError, StallError

CONNECT_S = 30.0
"""Time limit of a connect if hosts may be silent forever, and of an answer beyond the deadline of a collective."""

_LOOK_S = 0.02
"""Interval between checks whether the generation has ended meanwhile."""

_BACKLOG = 4096
"""Length of the kernel's backlog: strangers must not keep members out."""

_MOST_UNKNOWN = 512
"""Number of held clients that have not greeted: half of the default limit of 1,024 descriptors per process."""

_GREETING_S = 3.0
"""Time for a client's greeting before another client may take its place: the greeting, sent before the accept, may be
lost in the network four times in a row; and a whole backlog of strangers is processed within ``CONNECT_S``."""

_NO_ROOM = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
"""Errors that mean that this process, or this host, can hold no more connections now."""

_GREETING = struct.Struct("=I32s")


@final
class _Endpoint(msgspec.Struct, frozen=True, array_like=True):
    """Address and port of a member, and the key for connecting to it; or the ``problem`` why it cannot listen."""

    address: str = ""
    port: int = 0
    key: bytes = b""
    problem: str = ""


def connect(group: Group, exchange: Exchange) -> dict[int, socket.socket]:
    """Make non-blocking connections to all other members. Collective.

    Raises ``EngineError`` on all members if one cannot listen or two cannot connect, which both report by
    ``group.on_silence``; ``AbortError`` if the generation ends meanwhile, ``StallError`` if a member does not answer.
    """
    meeting = _Meeting(group)
    try:
        members = _all_say(exchange, meeting.listen(exchange), _Endpoint)
        if problems := [member.problem for member in members if member.problem]:
            raise EngineError(f"not all of {group.label} could connect to the others. {'; '.join(problems)}")
        _require_reached(group, _all_say(exchange, meeting.call(members), dict[int, str]))
        return meeting.greet([member.key for member in members])
    finally:
        meeting.close()


def _all_say(exchange: Exchange, mine: object, kind: Any) -> list[Any]:
    return [msgspec.msgpack.decode(said, type=kind) for said in exchange(msgspec.msgpack.encode(mine))]


def _require_reached(group: Group, lost: Sequence[dict[int, str]]) -> None:
    """Raise the connection failures of all members on every member, one for each pair of hosts."""
    why: dict[tuple[str, str], str] = {}
    for caller, unheard in enumerate(lost):
        for member, said in unheard.items():
            hosts = group.hosts[caller], group.hosts[member]
            why.setdefault(hosts, f"{group.name(caller)} does not reach {group.name(member)}: {said}")
    if not why:
        return
    here = group.hosts[group.rank]
    for host in sorted({host for hosts in why if here in hosts for host in hosts} - {here}):
        group.on_silence(host)
    raise EngineError(f"not all of {group.label} could connect to the others. {'; '.join(why.values())}")


def _server(address: str, ports: str) -> socket.socket:
    """Socket that listens at a free port of this range; at any port if "" or on one host, where no firewall is."""
    *others, last = ports_in("" if address == LOOPBACK else ports)
    for port in others:
        with contextlib.suppress(OSError):  # port in use; any other error is raised for the last port
            return socket.create_server((address, port), family=family_of(address), backlog=_BACKLOG)
    return socket.create_server((address, last), family=family_of(address), backlog=_BACKLOG)


@final
class _Caller(NamedTuple):
    """A client that has not greeted yet, the time of its accept, and the received part of its greeting."""

    connection: socket.socket
    since_s: float
    heard: bytearray


@final
class _Meeting:
    """Sockets of a member while it connects: to the members before it, and from the members after it."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._key = secrets.token_bytes(32)
        self._server = socket.socket()
        self._calls: list[socket.socket] = []
        self._open = {self._server}
        self._poll = select.poll()

    def listen(self, exchange: Exchange) -> _Endpoint:
        """Listen: from now on this host's kernel completes connections without this process."""
        group, address = self._group, ""
        try:
            address = reachable_address(group, exchange)
            self._server.close()
            self._server = _server(address, group.ports)
        except EngineError as error:
            return _Endpoint(problem=str(error))
        except OSError as error:
            return _Endpoint(problem=f"{group.name(group.rank)} cannot listen at {address}: {error}")
        self._server.setblocking(False)
        self._open.add(self._server)
        return _Endpoint(address, self._server.getsockname()[1], self._key)

    def call(self, members: Sequence[_Endpoint]) -> dict[int, str]:
        """Connect to all members before this one at once, and greet them; returns the failures, by member."""
        silence_s = self._group.silence_s
        until = time.monotonic() + (limit_s(silence_s) if silence_s else CONNECT_S)
        calling: dict[int, int] = {}
        lost: dict[int, str] = {}
        for member, there in enumerate(members[: self._group.rank]):
            call = self._watched(socket.socket(family_of(there.address)), select.POLLOUT)
            self._calls.append(call)
            code = call.connect_ex((there.address, there.port))
            if code in (0, errno.EINPROGRESS):
                calling[call.fileno()] = member
            else:  # failed at once, without a later event: there is no route, or the host is our own
                self._poll.unregister(call)
                lost[member] = os.strerror(code)
        while calling and time.monotonic() < until:
            for fd in self._ready():
                self._poll.unregister(fd)
                member = calling.pop(fd)
                if code := self._calls[member].getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                    lost[member] = os.strerror(code)
                else:
                    self._send_greeting(self._calls[member], members[member].key)
        return lost | dict.fromkeys(calling.values(), "no answer")

    def greet(self, keys: Sequence[bytes]) -> dict[int, socket.socket]:
        """Receive the greetings of all members, and answer them; returns their connections."""
        until = time.monotonic() + CONNECT_S + self._group.deadline_s
        known = self._callers(until)
        for member, caller in known.items():
            self._send_greeting(caller, keys[member])
        for member, call in enumerate(self._calls):
            self._poll.register(call, select.POLLIN)
            answer = bytearray()
            while not _received(call, answer):  # before polling: it may have arrived while waiting for others
                self._ready(until, member)
            self._poll.unregister(call)
            if self._member(answer) != member:
                name, label = self._group.name(member), self._group.label
                raise EngineError(f"the connection to {name} was lost while {label} was being connected")
            known[member] = call
        self._open.difference_update(known.values())  # these now belong to the caller of ``connect``
        return known

    def close(self) -> None:
        """Close all sockets except the established connections."""
        for each in self._open:
            each.close()

    def _callers(self, until: float) -> dict[int, socket.socket]:
        """Accept the members after this one. A client that does not greet as one of them is closed."""
        expected = set(range(self._group.rank + 1, self._group.size))
        known: dict[int, socket.socket] = {}
        unknown: dict[int, _Caller] = {}  # in order of accept
        while expected:
            is_full = len(unknown) >= _MOST_UNKNOWN
            self._poll.register(self._server, 0 if is_full else select.POLLIN)
            looked_s = time.monotonic()  # before the poll: a client silent in it has been silent until now at least
            for fd in self._ready(until, min(expected)):
                if fd == self._server.fileno():
                    is_full = not self._accepted(unknown)
                elif _received(unknown[fd].connection, unknown[fd].heard):
                    self._poll.unregister(fd)
                    caller, _, heard = unknown.pop(fd)
                    if (member := self._member(heard)) in expected:  # each member only once
                        expected.remove(member)
                        known[member] = caller
                    else:
                        self._turn_away(caller)
            if is_full:
                self._make_room(unknown, looked_s - _GREETING_S)
        self._poll = select.poll()  # without the server, and without strangers that have sent nothing yet
        return known

    def _accepted(self, unknown: dict[int, _Caller]) -> bool:
        """Accept a client; False if there is no descriptor or memory for it now."""
        try:
            caller = self._watched(self._server.accept()[0], select.POLLIN)
        except OSError as error:
            if error.errno not in _NO_ROOM:
                return True  # the client has disconnected
            self._group.broken.wait(_LOOK_S)  # it stays in the kernel's backlog, which would wake ``poll`` at once
            return False
        unknown[caller.fileno()] = _Caller(caller, time.monotonic(), bytearray())
        return True

    def _make_room(self, unknown: dict[int, _Caller], until_s: float) -> None:
        """Close the clients that were accepted before ``until_s``."""
        for fd, caller in list(unknown.items()):
            if caller.since_s > until_s:
                return
            self._poll.unregister(fd)
            del unknown[fd]
            self._turn_away(caller.connection)

    def _turn_away(self, caller: socket.socket) -> None:
        self._open.remove(caller)
        caller.close()

    def _watched(self, connection: socket.socket, event: int) -> socket.socket:
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._open.add(connection)
        self._poll.register(connection, event)
        return connection

    def _ready(self, until: float = float("inf"), awaited: int = 0) -> list[int]:
        label = self._group.label
        if self._group.broken.is_set():
            raise AbortError(f"the generation ended while {label} was being connected")
        if time.monotonic() > until:
            raise StallError(f"{self._group.name(awaited)} did not answer while {label} was being connected")
        return [fd for fd, _ in self._poll.poll(_LOOK_S * 1000)]

    def _send_greeting(self, connection: socket.socket, key: bytes) -> None:
        """Send the first bytes of a connection, for which there is room; the receiver detects their loss."""
        with contextlib.suppress(OSError):
            connection.send(_GREETING.pack(self._group.rank, _digest(self._group.rank, key)), socket.MSG_NOSIGNAL)

    def _member(self, heard: bytes | bytearray) -> int:
        """Member that sent this greeting; -1 if the sender does not know the key."""
        if len(heard) == _GREETING.size:
            member, digest = _GREETING.unpack(heard)
            if hmac.compare_digest(digest, _digest(member, self._key)):
                return int(member)
        return -1


def _digest(member: int, key: bytes) -> bytes:
    return hmac.digest(key, member.to_bytes(4, "big"), "sha256")


def _received(connection: socket.socket, heard: bytearray) -> bool:
    """Append received bytes of a greeting to ``heard``; true if it is complete or the connection has ended."""
    try:
        # Read no more than the greeting: the next bytes belong to the owner of the connection.
        heard += (more := connection.recv(_GREETING.size - len(heard)))
    except BlockingIOError:
        return False
    except OSError:
        return True
    return not more or len(heard) == _GREETING.size
