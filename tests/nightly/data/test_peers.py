"""Stagers that ask each other: strangers, damaged frames, and hosts that do not answer any more."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Iterator

import pytest

from farandole.control.keys import JobKeys, new_secret
from farandole.control.sockets import Context, client_socket
from farandole.data.staging import peers
from farandole.data.staging.peers import PeerReader, PeerServer, SentBlocks
from farandole.data.staging.protocol import Get
from farandole.errors import DataError

KEYS = JobKeys.from_secret(new_secret())


class Piece:
    """A piece that comes when ``arrives`` is called."""

    def __init__(self) -> None:
        self.is_here, self.asked = False, threading.Event()

    def look(self, get: Get) -> SentBlocks | None:
        self.asked.set()
        if get.piece == 13:
            raise IndexError("a piece that nobody has")
        if get.piece == 7 and not self.is_here:
            return None
        return SentBlocks(bytearray(b"%d" % get.first * 10), b"sums", "broken" if get.piece == 9 else "")


@pytest.fixture
def piece() -> Piece:
    return Piece()


@pytest.fixture
def server(piece: Piece) -> Iterator[PeerServer]:
    made = PeerServer(KEYS, piece.look)
    yield made
    made.close()


def address(server: PeerServer) -> list[str]:
    return [f"tcp://127.0.0.1:{server.addresses[0].rpartition(':')[2]}"]


def read(server: PeerServer, piece: int, keys: JobKeys = KEYS, give_up_s: float = 60.0) -> list[bytes]:
    with contextlib.closing(PeerReader(keys, "node2", "data")) as reader:
        found = reader.blocks(address(server), piece, [(0, 1), (1, 2), (2, 9)], give_up_s)
        return [bytes(data) for _, _, data, _ in found]


def test_blocks_come_in_their_order(server: PeerServer) -> None:
    assert read(server, 3) == [b"0" * 10, b"1" * 10, b"2" * 10]
    assert server.sent_bytes == 30


def test_a_piece_that_is_still_to_come_is_waited_for(
    server: PeerServer, piece: Piece, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "COMING_S", 0.02)
    monkeypatch.setattr(peers, "SILENT_S", 5.0)
    found: list[list[bytes]] = []
    thread = threading.Thread(target=lambda: found.append(read(server, 7)))
    thread.start()
    piece.asked.wait()
    assert read(server, 3) == [b"0" * 10, b"1" * 10, b"2" * 10]
    piece.is_here = True
    server.wake()
    thread.join()
    assert found == [[b"0" * 10, b"1" * 10, b"2" * 10]]


def test_what_goes_wrong_there_is_told_here(server: PeerServer) -> None:
    for number, words in ((9, "broken"), (13, "IndexError: a piece that nobody has")):
        with pytest.raises(DataError, match=words):
            read(server, number)
    assert len(read(server, 3)) == 3


def test_a_stranger_gets_nothing(server: PeerServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "ANSWER_S", 0.5)
    with pytest.raises(DataError, match="does not answer"):
        read(server, 3, JobKeys.from_secret(new_secret()))
    port = int(server.addresses[0].rpartition(":")[2])
    for text in (b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 10 + b"\x7f" + os.urandom(2000), b"\xff" + b"\xff" * 8, b""):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)) as stranger:
            stranger.sendall(text)
            stranger.shutdown(socket.SHUT_WR)
            while stranger.recv(1000):
                pass
    assert len(read(server, 3)) == 3


def test_frames_that_are_no_requests_are_dropped(server: PeerServer) -> None:
    context = Context()
    socket_ = client_socket(context, KEYS)
    socket_.connect(address(server)[0])
    for frames in ([b""], [b"\xc1"], [b"x" * 5000], [b"\x93\x01\x02\x03"], [b"", b"", b""]):
        socket_.send_multipart(frames)
    assert len(read(server, 3)) == 3
    socket_.close(0)
    context.term()


def test_a_host_that_is_gone_is_noticed(piece: Piece, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "SILENT_S", 0.3)
    server = PeerServer(KEYS, piece.look)
    with contextlib.closing(PeerReader(KEYS, "node2", "data")) as reader:
        assert len(list(reader.blocks(address(server), 3, [(0, 1)], 60.0))) == 1
        where = address(server)
        server.close()
        with pytest.raises(DataError, match="is silent"):
            list(reader.blocks(where, 3, [(0, 1)], 60.0))
        again = PeerServer(KEYS, piece.look, port=int(where[0].rpartition(":")[2]))
        assert address(again) == where
        assert len(list(reader.blocks(where, 3, [(0, 1)], 60.0))) == 1
        again.close()


def test_a_port_that_is_taken_is_another_one(server: PeerServer, piece: Piece) -> None:
    other = PeerServer(KEYS, piece.look, port=int(server.addresses[0].rpartition(":")[2]))
    assert address(other) != address(server)
    other.close()
