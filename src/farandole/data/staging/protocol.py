"""Messages between workers and the stager of their host, and between stagers.

Workers and their stager use a Unix socket: two lengths, then a message, then raw bytes for some messages. Stagers use
ZeroMQ, with the keys of the job. Every request gets one answer.
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
"""Largest message that is accepted; assignments of a million pieces have some megabytes."""

CHUNK_BYTES = 2**20
"""Bytes that a stager sends at once."""


@final
class StagerConfig(msgspec.Struct, frozen=True):
    """Configuration of a stager, on its standard input: its cache, its name for workers, and the keys of the job.

    ``index`` is the file of the manifest, whose pieces have at most ``most_bytes``. With a ``mirror`` the stager copies
    the files to that folder instead of a cache. ``patience_s`` is how long a read of shared storage may make no
    progress before another host is asked, ``give_up_s`` how long a reader waits for a piece, ``linger_s`` how long a
    stager lives without workers. ``port`` is the one that other hosts know, if any. With ``hands_over`` a stager that
    gets SIGTERM while it has workers first delivers to other hosts the pieces that only it holds.
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
    """One host of an assignment: its name, room in its cache, addresses of its stager, and the pieces it held (bits).

    A ``leaving`` host has no workers any more; its stager delivers pieces that no other host holds while it can.
    """

    name: str
    capacity: int
    addresses: list[str]
    holds: bytes = b""
    leaving: bool = False


@final
class Assign(msgspec.Struct, frozen=True, tag=True):
    """Hosts of a generation; the pieces that each host is to hold follow from these entries."""

    generation: int
    hosts: list[HostEntry]


@final
class FirstUses(msgspec.Struct, frozen=True, tag=True):
    """Pieces, as 32-bit integers, in the order of their first use in an epoch.

    If the samples of all pieces are ``scattered`` over the epoch, there is no such order.
    """

    pieces: bytes
    scattered: bool = False


@final
class Passed(msgspec.Struct, frozen=True, tag=True):
    """Progress of the training: no rank needs the first ``count`` pieces of the order of first use any more."""

    count: int


@final
class Need(msgspec.Struct, frozen=True, tag=True):
    """Wait until ``piece`` is in the cache; if it is not to be cached here, send its blocks ``first`` to ``last``."""

    piece: int
    first: int
    last: int


@final
class Opened(msgspec.Struct, frozen=True, tag=True):
    """A worker starts to use this piece."""

    piece: int


@final
class Damaged(msgspec.Struct, frozen=True, tag=True):
    """The cached piece does not match its checksums: fetch it again."""

    piece: int


@final
class Ask(msgspec.Struct, frozen=True, tag=True):
    """Request the ``Statistics`` of the stager."""


@final
class Bye(msgspec.Struct, frozen=True, tag=True):
    """This worker sends no more requests."""


@final
class InCache(msgspec.Struct, frozen=True, tag=True):
    """The piece is in the cache in ``folder``; ``wait`` is the cause of the wait for it, a category of ``waits``."""

    folder: str = ""
    wait: str = "disk"


@final
class Blocks(msgspec.Struct, frozen=True, tag=True):
    """The blocks follow; ``sums`` are all checksums of the piece. ``source`` is where the blocks were read."""

    sums: bytes
    source: str


@final
class Failed(msgspec.Struct, frozen=True, tag=True):
    """The request failed, for the reason ``error``; ``is_damaged``: the file differs from the checksum in its index."""

    error: str
    is_damaged: bool = False


@final
class Statistics(msgspec.Struct, frozen=True, tag=True):
    """Bytes since the stager started: read from shared storage, received and sent; bytes it is to hold, and holds.

    ``folder`` is the folder of its cache, ``holds`` its pieces, as bits. ``error`` is the reason why a planned piece is
    unavailable. ``reading`` lists the reads under way: path, offset, and elapsed seconds.
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


Request: TypeAlias = Assign | FirstUses | Passed | Need | Opened | Damaged | Ask | Bye
Answer: TypeAlias = InCache | Blocks | Failed | Statistics

_REQUESTS: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(Request)
_ANSWERS: msgspec.msgpack.Decoder[Answer] = msgspec.msgpack.Decoder(Answer)
_encode = msgspec.msgpack.Encoder().encode


@final
class Get(msgspec.Struct, frozen=True, array_like=True):
    """A stager requests blocks of a piece from another stager, which fetches the piece if it does not hold it.

    ``data`` identifies the data set and its division into pieces, because another stager of the job may use the address
    now. With ``stays`` (the asker is not to hold the piece) the request is refused if other pieces had to be dropped.
    """

    piece: int
    first: int
    last: int
    asker: str
    data: str
    stays: bool = False


@final
class Got(msgspec.Struct, frozen=True, array_like=True):
    """Answer to ``Get``: the bytes follow in a frame of their own, unless ``error`` is the reason why not.

    With ``is_coming`` it is a keep-alive: the piece is on its way, and the answer follows later.
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
    """Receive the next request of a worker; ``None`` at the end. Raises ``DataError`` for an invalid message."""
    found = _receive(connection)
    if found is None:
        return None
    try:
        return _REQUESTS.decode(found[0])
    except msgspec.MsgspecError as error:
        raise _damaged(error) from error


def receive_answer(connection: socket.socket) -> tuple[Answer, bytearray] | None:
    """Receive the stager's answer and the bytes after it; ``None`` if the stager has exited."""
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
