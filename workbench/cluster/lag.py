"""Script that delays what a host receives; a process of its own, like the scripts of ``namespaces.py``.

    python -I -S lag.py queue OWNER MICROSECONDS     in the host's network namespace

Kernels of small virtual machines have no ``netem``; a netfilter queue with late verdicts does the same. It must be on
the receiver: on the sender, packets still count against their socket, and TCP would hold back. Only the numbers of
packets reach this script; the packets stay in the kernel, unsegmented (``nfnetlink_queue.h``).
"""

from __future__ import annotations

import collections
import os
import select
import socket
import struct
import sys
import time

NETLINK_NETFILTER, SUBSYSTEM_QUEUE = 12, 3 << 8
PACKET, VERDICT, CONFIGURE, VERDICT_BATCH = 0, 1, 2, 3
BIND, COPY_PACKET_HEAD, NO_SEGMENTS, ACCEPT = 1, 1, 4, 1
SOL_NETLINK, NETLINK_NO_ENOBUFS = 270, 5


def attribute(kind: int, data: bytes) -> bytes:
    """A netlink attribute, padded."""
    return struct.pack("=HH", 4 + len(data), kind) + data + b"\0" * (-len(data) % 4)


def message(kind: int, body: bytes, flags: int) -> bytes:
    """A netlink message to queue 0."""
    body = struct.pack("=BBH", 0, 0, 0) + body
    return struct.pack("=IHHII", 16 + len(body), SUBSYSTEM_QUEUE | kind, flags, 0, 0) + body


def open_queue() -> socket.socket:
    """Open queue 0, as the process that decides about its packets."""
    queue = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_NETFILTER)
    queue.bind((0, 0))
    queue.setsockopt(SOL_NETLINK, NETLINK_NO_ENOBUFS, 1)
    no_segments = struct.pack(">I", NO_SEGMENTS)
    for settings in (
        attribute(1, struct.pack(">BBH", BIND, 0, 0)),
        attribute(2, struct.pack(">IB", 0, COPY_PACKET_HEAD)),
        attribute(3, struct.pack(">I", 200_000)),  # packets that may wait
        attribute(4, no_segments) + attribute(5, no_segments),
    ):
        queue.send(message(CONFIGURE, settings, flags=5))
        error = struct.unpack_from("=i", queue.recv(8192), 16)[0]
        if error:
            raise OSError(-error, f"netfilter queue: {os.strerror(-error)}")
    queue.setblocking(False)
    return queue


def arrivals(data: bytes) -> list[int]:
    """Numbers of the packets in a message of the queue; the first attribute of a packet is its number."""
    found, offset = [], 0
    while offset + 16 <= len(data):
        length, kind = struct.unpack_from("=IH", data, offset)
        if kind == SUBSYSTEM_QUEUE | PACKET:
            found.append(struct.unpack_from(">I", data, offset + 24)[0])
        offset += (length + 3) & ~3
    return found


def delay(owner: int, seconds: float) -> None:
    """Let every packet of the queue through after ``seconds``, until the owner ends."""
    lifeline, queue = os.pidfd_open(owner), open_queue()
    waiting: collections.deque[tuple[float, int]] = collections.deque()
    print("ready", os.getpid(), flush=True)
    while True:
        left = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
        readable, _, _ = select.select([lifeline, queue.fileno()], [], [], left)
        if lifeline in readable:
            return
        now, last = time.monotonic(), None
        if queue.fileno() in readable:
            waiting += [(now + seconds, number) for number in arrivals(queue.recv(1 << 16))]
        while waiting and waiting[0][0] <= now:
            last = waiting.popleft()[1]
        if last is not None:
            verdict = struct.pack(">II", ACCEPT, last)  # for all packets up to the last
            queue.send(message(VERDICT_BATCH, attribute(2, verdict), flags=1))


if __name__ == "__main__":
    delay(int(sys.argv[2]), int(sys.argv[3]) / 1e6)
