"""Transfer of pieces between hosts: ``PeerServer`` answers other stagers, ``PeerReader`` sends requests to them.

    server = PeerServer(keys, read=..., fetch=..., address="tcp://*:0")
    reader = PeerReader(keys)
    for first, last, view, sums in reader.blocks(["tcp://node2:7000"], piece=3, runs=[(0, 4)], give_up_s=600): ...

Pull, not push: a reader has a few requests of a megabyte each under way, so it never gets more than it can take.

Threads. The server has one thread, and only this thread uses its sockets; ``close`` and ``wake`` reach it through a
``Wakeup``. A request for a piece that is not here yet waits in a list, and is answered after ``wake``. Until then the
server sends the reader a keep-alive every ``COMING_S``, so the reader detects early that a host has failed. Only the
thread that made a reader may use it, because ZeroMQ's sockets must not be shared between threads.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, final

import msgspec
import zmq

from farandole.control.addresses import everywhere, own_endpoints
from farandole.control.admission import Door
from farandole.control.dial import first_answering
from farandole.control.keys import JobKeys
from farandole.control.sockets import Context, client_socket, connect, new_socket
from farandole.control.wakeup import Wakeup
from farandole.data.staging.cache import OpenPiece
from farandole.data.staging.protocol import Get, Got, decode_get, decode_got, encode_get, encode_got
from farandole.errors import ControlError, DataError

IN_FLIGHT = 4
"""Requests that a reader has under way."""

ANSWER_S = 5.0
"""Timeout for an answer of a stager at one of its addresses."""

COMING_S, SILENT_S = 1.0, 10.0
"""Interval of the keep-alives for a piece that is on its way, and the silence after which a stager counts as failed."""

LARGEST_FRAME = 2**28
"""Limit of a received frame: ZeroMQ disconnects a sender that exceeds it. A worker requests less at once."""


class SentBlocks(NamedTuple):
    """Blocks of a piece with its checksums, or the error that prevents them."""

    data: bytearray
    sums: bytes
    error: str = ""


def sent_blocks(piece: OpenPiece, get: Get) -> SentBlocks | None:
    """The requested blocks of a piece in the cache; ``None`` if they are damaged."""
    sums = piece.checksums
    if not 0 <= get.first < get.last <= len(sums):
        return SentBlocks(bytearray(), b"", f"it has {len(sums)} blocks, and {get.first} to {get.last} were asked for")
    data = bytearray(sums.nbytes(get.first, get.last))
    try:
        piece.read_blocks(get.first, get.last, memoryview(data))
    except (DataError, OSError):
        return None
    return SentBlocks(data, sums.encode()) if sums.verify(get.first, get.last, memoryview(data)) else None


Look = Callable[[Get], SentBlocks | None]
"""Function that returns the requested blocks; ``None`` if the piece has not arrived yet."""


@final
class PeerServer:
    """Answers requests of other stagers until it is closed. Its thread calls ``look``."""

    def __init__(self, keys: JobKeys, look: Look, ports: str = "", interface: str = "", port: int = 0) -> None:
        self._look, self._waiting = look, list[tuple[bytes, Get]]()
        self._context = Context()
        self._door = Door(self._context, keys.client.public)
        self._socket = new_socket(self._context, zmq.ROUTER)
        self._socket.ipv6 = True
        self._socket.maxmsgsize = LARGEST_FRAME
        self._socket.curve_server = True
        self._socket.curve_secretkey = keys.server.secret
        self._wakeup = Wakeup()
        self._is_over = False
        self.sent_bytes = 0
        try:
            self._socket.bind(f"tcp://*:{port}" if port else everywhere(ports))
        except zmq.ZMQError:
            if not port:
                raise
            self._socket.bind(everywhere(ports))
        self.addresses = own_endpoints(self._socket.get_string(zmq.LAST_ENDPOINT), interface)
        self._thread = threading.Thread(target=self._serve, name="farandole peers", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Check again the requests that wait for a piece."""
        self._wakeup.signal()

    def close(self) -> None:
        """End the thread and free the port."""
        self._is_over = True
        self.wake()
        self._thread.join()
        self._socket.close(0)
        self._door.close()
        self._context.term()
        self._wakeup.close()

    def _serve(self) -> None:
        poller = zmq.Poller()
        for each in (self._socket, self._door.fd, self._wakeup.fd):
            poller.register(each, zmq.POLLIN)
        said_s = 0.0
        while not self._is_over:
            ready = dict(poller.poll(int(COMING_S * 1000) if self._waiting else None))
            if time.monotonic() - said_s >= COMING_S:
                said_s = time.monotonic()
                for identity, get in self._waiting:
                    self._send(identity, Got(get.piece, get.first, b"", is_coming=True), b"")
            if self._door.fd in ready:
                self._door.serve()
            if self._wakeup.clear():
                self._waiting = [each for each in self._waiting if not self._answer(*each)]
            if self._socket in ready:
                self._receive()

    def _receive(self) -> None:
        for _ in range(64):  # at most, so that the bell is checked in between
            try:
                identity, *frames = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            try:
                request = decode_get(frames[0])
            except (msgspec.MsgspecError, IndexError):  # from another version
                continue
            if not self._answer(identity, request):
                self._waiting.append((identity, request))

    def _answer(self, identity: bytes, request: Get) -> bool:
        try:
            content = self._look(request)
        except Exception as error:  # of any kind: the other stagers need an answer
            content = SentBlocks(bytearray(), b"", f"{type(error).__name__}: {error}")
        if content is None:
            return False
        self.sent_bytes += len(content.data)
        self._send(identity, Got(request.piece, request.first, content.sums, content.error), content.data)
        return True

    def _send(self, identity: bytes, got: Got, data: bytes | bytearray) -> None:
        self._socket.send_multipart([identity, encode_got(got), data], copy=False)


@final
class PeerReader:
    """Requests blocks from other stagers. One thread makes it, uses it and closes it."""

    def __init__(self, keys: JobKeys, host: str, data: str) -> None:
        self._keys, self._host, self._data, self._context = keys, host, data, Context()
        self._sockets: dict[tuple[str, ...], zmq.Socket[bytes]] = {}

    def blocks(
        self,
        addresses: Sequence[str],
        piece: int,
        runs: Sequence[tuple[int, int]],
        give_up_s: float,
        *,
        stays: bool = False,
    ) -> Iterator[tuple[int, int, memoryview, bytes]]:
        """Yield runs of blocks of a piece in order, each with its bytes and the checksums of the whole piece.

        Raises ``DataError`` if the other host does not deliver them within ``give_up_s``, or is silent.
        """
        socket, asked = self._socket(tuple(addresses)), 0
        for number, (first, last) in enumerate(runs):
            while asked < len(runs) and asked < number + IN_FLIGHT:
                socket.send(encode_get(Get(piece, *runs[asked], self._host, self._data, stays)))
                asked += 1
            got, data = self._answer(tuple(addresses), piece, first, give_up_s)
            yield first, last, data, got.sums

    def close(self) -> None:
        """Close all connections."""
        for socket in self._sockets.values():
            socket.close(0)
        self._sockets.clear()
        self._context.term()

    def forget(self, addresses: Sequence[str]) -> None:
        """Close the connection to a host; the bytes that it still sends belong to an abandoned request."""
        if (socket := self._sockets.pop(tuple(addresses), None)) is not None:
            socket.close(0)

    def _socket(self, addresses: tuple[str, ...]) -> zmq.Socket[bytes]:
        if addresses not in self._sockets:
            # ZeroMQ would use all addresses in turn: connect only to the first that answers.
            try:
                address = first_answering(addresses, self._keys, ANSWER_S)
            except ControlError as error:
                raise DataError(f"its stager does not answer: {error}") from error
            socket = self._sockets[addresses] = client_socket(self._context, self._keys)
            socket.maxmsgsize = LARGEST_FRAME
            connect(socket, address)
        return self._sockets[addresses]

    def _answer(self, addresses: tuple[str, ...], piece: int, first: int, give_up_s: float) -> tuple[Got, memoryview]:
        until_s = time.monotonic() + give_up_s
        socket = self._sockets[addresses]
        while (left_s := min(SILENT_S, until_s - time.monotonic())) > 0 and socket.poll(int(left_s * 1000) + 1):
            front, *data = socket.recv_multipart(copy=False)
            try:
                got = decode_got(front.buffer)
            except msgspec.MsgspecError as error:
                self.forget(addresses)
                raise DataError(f"its stager at {addresses[0]} is of another version: {error}") from error
            if got.piece != piece or got.is_coming or (not got.error and got.first != first):
                continue  # a keep-alive, or the answer to an abandoned request
            if got.error or not data:
                self.forget(addresses)
                raise DataError(got.error or "it sent no bytes")
            return got, memoryview(data[0].buffer)
        self.forget(addresses)
        raise DataError(f"its stager at {addresses[0]} is silent, or did not give it within {give_up_s:g} s")
