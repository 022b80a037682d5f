"""Intruder without a key: records the traffic of a host's network, and replays it.

    python -m workbench.survival.intruder record FILE            # until standard input ends
    python -m workbench.survival.intruder say FILE ADDRESS PORT...

It records the received data of connections that are opened meanwhile, by connection, and replays it to each port.
"""

from __future__ import annotations

import contextlib
import itertools
import select
import socket
import struct
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple, final

import msgspec

ALL_PROTOCOLS, TCP, SYN, INCOMING = 3, 6, 2, 0
ANSWER_S = 0.05
"""Time for an answer before the connection is closed."""

GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x01" + b"CURVE".ljust(20, b"\0") + bytes(32)
"""The first bytes of every ZeroMQ connection (ZMTP 3.1)."""

MALFORMED = (
    b"",
    bytes(100_000),
    b"GET / HTTP/1.1\r\n\r\n",
    GREETING + b"\x06" + (2**40).to_bytes(8, "big") + b"\x05HELLO",  # a command of a terabyte
    GREETING + b"\x04\xff\x05HELLO" + bytes(249),
    (2**63 - 1).to_bytes(8, "little") * 8,
)
"""Bytes that are no message, or far too long for one."""


@final
class Segment(NamedTuple):
    """Segment of a TCP connection: the two ends of the connection, and the payload."""

    connection: tuple[bytes, bytes]
    opens: bool
    payload: bytes


def parse(packet: bytes) -> Segment | None:
    """The segment in an IP packet; ``None`` if it has none."""
    if packet[0] >> 4 == 4:
        begin, protocol, addresses = 4 * (packet[0] & 15), packet[9], packet[12:20]
        end = struct.unpack_from(">H", packet, 2)[0] or len(packet)
    elif packet[0] >> 4 == 6:
        begin, protocol, addresses, end = 40, packet[6], packet[8:40], len(packet)
    else:
        return None
    if protocol != TCP:
        return None
    data = begin + 4 * (packet[begin + 12] >> 4)
    return Segment((addresses, packet[begin : begin + 4]), bool(packet[begin + 13] & SYN), packet[data:end])


def record(file: Path) -> None:
    """Record received packets, until standard input ends."""
    streams: dict[tuple[bytes, bytes], bytearray] = {}
    with socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(ALL_PROTOCOLS)) as tap:
        print("ready", flush=True)  # not before the socket is open, which receives packets from now on
        while True:
            readable, _, _ = select.select([0, tap.fileno()], [], [])
            if 0 in readable:
                break
            packet, where = tap.recvfrom(2**17)
            segment = parse(packet) if packet and where[2] == INCOMING else None
            if segment is not None and segment.opens:
                streams[segment.connection] = bytearray()
            elif segment is not None and segment.connection in streams:
                streams[segment.connection] += segment.payload
    file.write_bytes(msgspec.json.encode([bytes(stream) for stream in streams.values() if stream]))


def say(streams: Iterable[bytes], address: str, ports: Iterable[int]) -> None:
    """Send every stream to every port, each over a connection of its own."""
    for stream, port in itertools.product(streams, ports):
        with contextlib.suppress(OSError), socket.create_connection((address, port), 5) as peer:
            peer.sendall(stream)
            peer.settimeout(ANSWER_S)
            while peer.recv(2**16):
                pass


def main() -> None:
    """Run the command line."""
    what, file, *where = sys.argv[1:]
    if what == "record":
        record(Path(file))
        return
    streams = MALFORMED if file == "-" else msgspec.json.decode(Path(file).read_bytes(), type=list[bytes])
    say(streams, where[0], map(int, where[1:]))


if __name__ == "__main__":
    main()
