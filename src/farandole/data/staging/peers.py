"""Pieces between hosts: ``PeerServer`` answers other stagers, ``PeerReader`` asks them.

    server = PeerServer(keys, read=..., fetch=..., address="tcp://*:0")
    reader = PeerReader(keys)
    for first, last, view, sums in reader.blocks(["tcp://node2:7000"], piece=3, runs=[(0, 4)], give_up_s=600): ...

Pull, not push: a reader has a few requests of a megabyte each under way, so that nobody is sent more than it takes.

Threads. The server has a thread of its own, which alone touches its sockets; ``close`` and ``wake`` reach it through an
eventfd. A request for a piece that is not here yet waits in its list, and is answered after ``wake``; until then the
reader is told now and then that it is not forgotten, and so sees soon where a host is gone. A reader belongs to the
thread that made it: ZeroMQ's sockets know no other.
"""

from __future__ import annotations

import os
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
from farandole.data.staging.protocol import Get, Got, decode_get, decode_got, encode_get, encode_got
from farandole.errors import ControlError, DataError

IN_FLIGHT = 4
"""Requests of a reader that are under way."""

ANSWER_S = 5.0
"""How long a stager is looked for at its addresses."""

COMING_S, SILENT_S = 1.0, 10.0
"""How often a stager says that a piece is on its way, and after how long it counts as gone if it does not."""

LARGEST_FRAME = 2**28
"""Whoever sends more is cut off; a worker asks for less at once."""


class SentBlocks(NamedTuple):
    """Blocks of a piece that is here, with its checksums; or why they cannot be had."""

    data: bytearray
    sums: bytes
    error: str = ""


Look = Callable[[Get], SentBlocks | None]
"""Blocks asked for; ``None`` if the piece is still to come."""


@final
class PeerServer:
    """Answers requests of other stagers until it is closed. ``look`` is called by its thread."""

    def __init__(self, keys: JobKeys, look: Look, ports: str = "", interface: str = "", port: int = 0) -> None:
        self._look, self._waiting = look, list[tuple[bytes, Get]]()
        self._context = Context()
        self._door = Door(self._context, keys.client.public)
        self._socket = new_socket(self._context, zmq.ROUTER)
        self._socket.ipv6 = True
        self._socket.maxmsgsize = LARGEST_FRAME
        self._socket.curve_server = True
        self._socket.curve_secretkey = keys.server.secret
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
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
        """Look again for what others wait for."""
        os.eventfd_write(self._bell, 1)

    def close(self) -> None:
        """End the thread and free the port."""
        self._is_over = True
        self.wake()
        self._thread.join()
        self._socket.close(0)
        self._door.close()
        self._context.term()
        os.close(self._bell)

    def _serve(self) -> None:
        poller = zmq.Poller()
        for each in (self._socket, self._door.fd, self._bell):
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
            if self._bell in ready:
                os.eventfd_read(self._bell)
                self._waiting = [each for each in self._waiting if not self._answer(*each)]
            if self._socket in ready:
                self._receive()

    def _receive(self) -> None:
        for _ in range(64):  # then the bell again
            try:
                identity, *frames = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            try:
                request = decode_get(frames[0])
            except (msgspec.MsgspecError, IndexError):  # of another version
                continue
            if not self._answer(identity, request):
                self._waiting.append((identity, request))

    def _answer(self, identity: bytes, request: Get) -> bool:
        try:
            content = self._look(request)
        except Exception as error:  # whatever it is, the others are to be answered
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
    """Asks other stagers for blocks; of one thread, which closes it."""

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
        """Runs of blocks of a piece in their order, each with its bytes and the checksums of the whole piece.

        Raises ``DataError`` where the other host cannot give them within ``give_up_s``, or is silent.
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
        """Close the connection to a host: what it still sends belongs to a request that was given up."""
        if (socket := self._sockets.pop(tuple(addresses), None)) is not None:
            socket.close(0)

    def _socket(self, addresses: tuple[str, ...]) -> zmq.Socket[bytes]:
        if addresses not in self._sockets:
            # ZeroMQ would use all addresses in turn: the first that answers is to be the only one.
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
                continue  # of a request that was given up
            if got.error or not data:
                self.forget(addresses)
                raise DataError(got.error or "it sent no bytes")
            return got, memoryview(data[0].buffer)
        self.forget(addresses)
        raise DataError(f"its stager at {addresses[0]} is silent, or did not give it within {give_up_s:g} s")
