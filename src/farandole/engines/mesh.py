"""A TCP connection between each two members of a group, both ends of which have shown that they belong to it.

    connections = connect(group, exchange)      # {1: <socket>, 2: <socket>}, by members

Members tell each other where they listen, and a key, by their ``exchange``, which is authenticated. A caller sends its
index and a digest of it under the key of the member it called, and is answered likewise. Of anybody else these 36 bytes
are read and nothing more.
"""

# One thread per member, and all members do this at the same time. No two may wait for each other: all listen before
# anybody calls (endpoints are exchanged after ``listen``), kernels take calls without their process, all calls are
# begun before any is waited for, and callers send their greetings before anybody reads one. Nothing can be aborted that
# is still being made, so every wait is cut into pieces of ``_LOOK_S`` and looks at ``broken`` in between.
#
# Strangers may call, too, and say nothing. ``_MOST_UNKNOWN`` of them are held, the others wait in the kernel's queue,
# where members that have called keep their place. The one called first makes room, but only after ``_GREETING_S``:
# letting the oldest go as soon as there were too many let members go that had called and not greeted yet. No member can
# be late with its greeting now, however busy its host: all have sent theirs (``call``) before the exchange after which
# the first call is accepted. And none is let go whose greeting lies in our kernel: silent is who was so when ``poll``
# looked, after the time was taken.

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
"""Time for a call where a host may be silent for ever, and for an answer beyond the deadline of a collective."""

_LOOK_S = 0.02
"""Time between looks whether the generation has ended meanwhile."""

_BACKLOG = 4096
"""Callers that the kernel lets wait: strangers must not keep members out."""

_MOST_UNKNOWN = 512
"""Callers held at a time that have not greeted: half of the 1,024 descriptors that a process has by default."""

_GREETING_S = 3.0
"""Time that a caller has to greet before another one may get its place: a network may lose its greeting, which was sent
before it is accepted, four times in a row; and a whole backlog of strangers is through in ``CONNECT_S``."""

_NO_ROOM = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
"""Errors that say that this process, or this host, can hold no more connections now."""

_GREETING = struct.Struct("=I32s")


@final
class _Endpoint(msgspec.Struct, frozen=True, array_like=True):
    """Address and port of a member, and the key that its callers must know; or what keeps it from listening."""

    address: str = ""
    port: int = 0
    key: bytes = b""
    problem: str = ""


def connect(group: Group, exchange: Exchange) -> dict[int, socket.socket]:
    """Connections to all other members, which do not block. Collective.

    Raises ``EngineError`` on all members if one cannot listen or two do not reach each other, of which both tell
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
    """Raise on all members what any has to say, once for each two hosts."""
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
    """Socket that listens at a port of this range that is free; "": at any, as on one host no firewall is passed."""
    *others, last = ports_in("" if address == LOOPBACK else ports)
    for port in others:
        with contextlib.suppress(OSError):  # taken; of what else is wrong the last one tells
            return socket.create_server((address, port), family=family_of(address), backlog=_BACKLOG)
    return socket.create_server((address, last), family=family_of(address), backlog=_BACKLOG)


@final
class _Caller(NamedTuple):
    """A caller that has not greeted yet, the time when it was accepted, and what has come of its greeting."""

    connection: socket.socket
    since_s: float
    heard: bytearray


@final
class _Meeting:
    """The sockets of a member while it connects. Each member calls those before it and is called by those after it."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._key = secrets.token_bytes(32)
        self._server = socket.socket()
        self._calls: list[socket.socket] = []
        self._open = {self._server}
        self._poll = select.poll()

    def listen(self, exchange: Exchange) -> _Endpoint:
        """Let this host's kernel take calls from now on, without this process."""
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
        """Call all members before this one at once, and greet them; returns why some of them were not reached."""
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
            else:  # said at once, and not a second time: there is no route, or nothing but our own host
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
        """Take the greetings of all members, and answer them; returns their connections."""
        until = time.monotonic() + CONNECT_S + self._group.deadline_s
        known = self._callers(until)
        for member, caller in known.items():
            self._send_greeting(caller, keys[member])
        for member, call in enumerate(self._calls):
            self._poll.register(call, select.POLLIN)
            answer = bytearray()
            while not _received(call, answer):  # tried first: it may have come while others were waited for
                self._ready(until, member)
            self._poll.unregister(call)
            if self._member(answer) != member:
                name, label = self._group.name(member), self._group.label
                raise EngineError(f"the connection to {name} was lost while {label} was being connected")
            known[member] = call
        self._open.difference_update(known.values())  # these are the caller's now
        return known

    def close(self) -> None:
        """Close what has not become a connection."""
        for each in self._open:
            each.close()

    def _callers(self, until: float) -> dict[int, socket.socket]:
        """Take the calls of the members after this one. Who does not greet as one of them is turned away."""
        expected = set(range(self._group.rank + 1, self._group.size))
        known: dict[int, socket.socket] = {}
        unknown: dict[int, _Caller] = {}  # who called first comes first
        while expected:
            is_full = len(unknown) >= _MOST_UNKNOWN
            self._poll.register(self._server, 0 if is_full else select.POLLIN)
            looked_s = time.monotonic()  # before the look: who is silent in it has been silent until now at least
            for fd in self._ready(until, min(expected)):
                if fd == self._server.fileno():
                    is_full = not self._accepted(unknown)
                elif _received(unknown[fd].connection, unknown[fd].heard):
                    self._poll.unregister(fd)
                    caller, _, heard = unknown.pop(fd)
                    if (member := self._member(heard)) in expected:  # and only once
                        expected.remove(member)
                        known[member] = caller
                    else:
                        self._turn_away(caller)
            if is_full:
                self._make_room(unknown, looked_s - _GREETING_S)
        self._poll = select.poll()  # forgets the server, and strangers that have not said anything yet
        return known

    def _accepted(self, unknown: dict[int, _Caller]) -> bool:
        """Accept a caller; False if there is no descriptor or memory for one now."""
        try:
            caller = self._watched(self._server.accept()[0], select.POLLIN)
        except OSError as error:
            if error.errno not in _NO_ROOM:
                return True  # the caller is gone again
            self._group.broken.wait(_LOOK_S)  # it stays in the kernel's queue, which would wake us at once
            return False
        unknown[caller.fileno()] = _Caller(caller, time.monotonic(), bytearray())
        return True

    def _make_room(self, unknown: dict[int, _Caller], until_s: float) -> None:
        """Turn away those that were accepted before ``until_s``."""
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
        """Send the first bytes of a connection, for which there is room; who waits for them sees if they are lost."""
        with contextlib.suppress(OSError):
            connection.send(_GREETING.pack(self._group.rank, _digest(self._group.rank, key)), socket.MSG_NOSIGNAL)

    def _member(self, heard: bytes | bytearray) -> int:
        """The member that has sent this greeting; -1 for anybody who does not know the key."""
        if len(heard) == _GREETING.size:
            member, digest = _GREETING.unpack(heard)
            if hmac.compare_digest(digest, _digest(member, self._key)):
                return int(member)
        return -1


def _digest(member: int, key: bytes) -> bytes:
    return hmac.digest(key, member.to_bytes(4, "big"), "sha256")


def _received(connection: socket.socket, heard: bytearray) -> bool:
    """Add what has come of a greeting to ``heard``; true if nothing more can come of it."""
    try:
        # No more than the greeting: what a member sends after it belongs to whoever gets the connection.
        heard += (more := connection.recv(_GREETING.size - len(heard)))
    except BlockingIOError:
        return False
    except OSError:
        return True
    return not more or len(heard) == _GREETING.size
