"""Messages between workers and the stager of their host, and between stagers.

Workers and their stager have a Unix socket: frames with their length before them, each a message, some followed by
bytes. Stagers have ZeroMQ, with the keys of the job. Every request has one answer.
"""

from __future__ import annotations

import socket
import struct
from typing import TypeAlias, final

import msgspec

from farandole.control.keys import JobKeys
from farandole.errors import DataError

LENGTH = struct.Struct("<II")
"""Lengths of a message and of the bytes that follow it."""

LONGEST_MESSAGE = 2**28
"""The largest message that is read; assignments of a million pieces have some megabytes."""

CHUNK_BYTES = 2**20
"""Bytes that a stager sends at once."""


@final
class StagerConfig(msgspec.Struct, frozen=True):
    """Config of a stager, on its standard input: where it keeps what, its name for workers, and the keys of the job.

    ``index`` is the file of the manifest, whose pieces have ``most_bytes`` at most. With a ``mirror`` it
    makes copies of the files there, in place of a cache. ``patience_s`` is how long a read
    of shared storage may stand still before another host is asked, ``give_up_s`` how long whoever needs a piece waits,
    ``linger_s`` how long a stager lives without workers. ``port`` is the one that others know from before, if any.
    With ``hands_over`` a stager that is told to end while workers are there gives others what only it has.
    """

    cache: str
    digest: str
    index: str
    name: str
    keys: JobKeys | None
    host: str
    mirror: str = ""
    interface: str = ""
    ports: str = ""
    port: int = 0
    most_bytes: int = 64 * 2**20
    patience_s: float = 30.0
    give_up_s: float = 600.0
    linger_s: float = 10.0
    readers: int = 8
    hands_over: bool = False


@final
class HostEntry(msgspec.Struct, frozen=True):
    """One host of an assignment: its name, room in its cache, addresses of its stager, and pieces it had (bits).

    One that is ``leaving`` has no worker any more, and gives what nobody else has as long as it may.
    """

    name: str
    capacity: int
    addresses: list[str]
    holds: bytes = b""
    leaving: bool = False


@final
class Assign(msgspec.Struct, frozen=True, tag=True):
    """Hosts of a generation: what each of them is to hold follows from these entries."""

    generation: int
    hosts: list[HostEntry]


@final
class FirstUses(msgspec.Struct, frozen=True, tag=True):
    """Pieces, as 32-bit integers, in the order of their first use in an epoch."""

    pieces: bytes


@final
class Need(msgspec.Struct, frozen=True, tag=True):
    """Wait until ``piece`` is in the cache, or, where it is not to be, send its blocks ``first`` to ``last``."""

    piece: int
    first: int
    last: int


@final
class Opened(msgspec.Struct, frozen=True, tag=True):
    """A worker begins to use this piece: those that a stream used long before it may go."""

    piece: int


@final
class Damaged(msgspec.Struct, frozen=True, tag=True):
    """The piece in the cache differs from its checksums: fetch it again."""

    piece: int


@final
class Ask(msgspec.Struct, frozen=True, tag=True):
    """Tell what there is and what has been done: see ``Statistics``."""


@final
class Bye(msgspec.Struct, frozen=True, tag=True):
    """This worker has no more to ask."""


@final
class InCache(msgspec.Struct, frozen=True, tag=True):
    """The piece is in the cache, which is in ``folder``; what it was waited for is ``wait``, as in ``waits``."""

    folder: str = ""
    wait: str = "disk"


@final
class Blocks(msgspec.Struct, frozen=True, tag=True):
    """The blocks follow; ``sums`` are all checksums of the piece. ``source`` is where they were read."""

    sums: bytes
    source: str


@final
class Failed(msgspec.Struct, frozen=True, tag=True):
    """Answer that something cannot be had, and why."""

    error: str


@final
class Statistics(msgspec.Struct, frozen=True, tag=True):
    """Bytes since the stager began: read from shared storage, received and sent; pieces it is to hold, and has.

    ``folder`` is that of its cache, ``holds`` are its pieces, as bits. ``error`` says why something planned cannot be
    had. ``reading`` tells of the reads that are under way: path, offset, and seconds so far.
    """

    addresses: list[str]
    holds: bytes
    capacity: int
    wanted_bytes: int = 0
    held_bytes: int = 0
    shared_bytes: int = 0
    received_bytes: int = 0
    sent_bytes: int = 0
    healed: int = 0
    folder: str = ""
    error: str = ""
    reading: list[tuple[str, int, float]] = []


Request: TypeAlias = Assign | FirstUses | Need | Opened | Damaged | Ask | Bye
Answer: TypeAlias = InCache | Blocks | Failed | Statistics

_REQUESTS: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(Request)
_ANSWERS: msgspec.msgpack.Decoder[Answer] = msgspec.msgpack.Decoder(Answer)
_encode = msgspec.msgpack.Encoder().encode


@final
class Get(msgspec.Struct, frozen=True, array_like=True):
    """A stager asks another one for blocks of a piece, which that one fetches if it has not got it.

    ``data`` says of which data set, cut how: at an address that it had, another stager of the job may listen by now.
    What ``stays``, as the asker is not to have it, is refused where others would have to go for it.
    """

    piece: int
    first: int
    last: int
    asker: str
    data: str
    stays: bool = False


@final
class Got(msgspec.Struct, frozen=True, array_like=True):
    """The answer: bytes follow in a frame of their own, unless ``error`` says why not.

    With ``is_coming`` it is none yet: the piece is on its way, and this only says that somebody cares.
    """

    piece: int
    first: int
    sums: bytes
    error: str = ""
    is_coming: bool = False


encode_get, decode_get = _encode, msgspec.msgpack.Decoder(Get).decode
encode_got, decode_got = _encode, msgspec.msgpack.Decoder(Got).decode


def send(connection: socket.socket, message: Request | Answer, data: memoryview | bytes = b"") -> None:
    """Send a message, and bytes after it."""
    text = _encode(message)
    connection.sendall(LENGTH.pack(len(text), len(data)) + text)
    if len(data):
        connection.sendall(data)


def receive_request(connection: socket.socket) -> Request | None:
    """The next request of a worker; ``None`` at the end. Raises ``DataError`` for what is none."""
    found = _receive(connection)
    if found is None:
        return None
    try:
        return _REQUESTS.decode(found[0])
    except msgspec.MsgspecError as error:
        raise _damaged(error) from error


def receive_answer(connection: socket.socket) -> tuple[Answer, bytearray] | None:
    """The stager's answer and the bytes after it; ``None`` if the stager has ended."""
    found = _receive(connection)
    if found is None:
        return None
    try:
        return _ANSWERS.decode(found[0]), found[1]
    except msgspec.MsgspecError as error:
        raise _damaged(error) from error


def _damaged(error: Exception) -> DataError:
    return DataError(f"a message between a worker and its stager is damaged: {error}")


def _receive(connection: socket.socket) -> tuple[bytearray, bytearray] | None:
    front = _exactly(connection, LENGTH.size)
    if front is None:
        return None
    message, data = LENGTH.unpack(front)
    if message > LONGEST_MESSAGE or data > LONGEST_MESSAGE:
        raise DataError(f"a message of {message} bytes between a worker and its stager: more than there can be")
    text = _exactly(connection, message)
    more = _exactly(connection, data) if text is not None else None
    return None if text is None or more is None else (text, more)


def _exactly(connection: socket.socket, nbytes: int) -> bytearray | None:
    buffer = bytearray(nbytes)
    view, done = memoryview(buffer), 0
    while done < nbytes:
        count = connection.recv_into(view[done:])
        if not count:
            return None
        done += count
    return buffer
