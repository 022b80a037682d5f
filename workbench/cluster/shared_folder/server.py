"""Process that serves the mounts of one shared folder, and executes commands of ``SharedFolder``, JSON on a socket.

The protocol is read from ``/dev/fuse`` without a library: so one process can serve mounts in many mount namespaces,
delay an answer without blocking a thread, and decide what happens to a killed reader.
"""

# Threads, and why there are three kinds:
#
#   control   the main thread: answers the owner; when the owner closes its end or exits, it unmounts everything
#   serving   two for each mount: take requests from the kernel, and answer at once requests that need not wait
#   clock     one: answers requests that must wait, for the rate of all mounts, for latency, or for the end of a stall
#
# ``FuseServer.changed`` guards queue, held requests and settings, ``Passthrough.lock`` counts and faults; no thread
# holds both. Bytes are copied without either. A request is in one place only, so it is answered once.

from __future__ import annotations

import errno
import heapq
import itertools
import json
import os
import resource
import select
import socket
import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, final

from workbench.cluster.shared_folder import protocol
from workbench.cluster.shared_folder.mounts import mount, unmount
from workbench.cluster.shared_folder.passthrough import FolderFault, Passthrough
from workbench.cluster.shared_folder.protocol import FuseRequest

SERVING_THREADS = 2

SLACK_S = 0.05
"""Time that readers may lose on a busy machine and make up for: the rate holds over seconds, not for each request."""

LOOK_AGAIN_S = 0.02
"""Interval of checks of held requests: the kernel reports a signal only once, and not which signal."""


@final
@dataclass
class HostPace:
    """Pace at which requests of one host are served; it outlives the mounts, which end when the host is killed."""

    latency_s: float | None = None
    is_stalled: bool = False
    is_killable: bool = True


@final
class FuseServer:
    """Serving threads, clock, and the requests that wait."""

    def __init__(self, files: Passthrough) -> None:
        self.files = files
        self.changed = threading.Condition()
        self.rate_bytes_s: float | None = None
        self.latency_s = 0.0
        self.hosts: dict[str, HostPace] = {}
        self.held: list[FuseRequest] = []
        self._queue: list[tuple[float, int, FuseRequest]] = []
        self._serial = itertools.count()
        self._free_s = 0.0
        threading.Thread(target=self._run_clock, daemon=True).start()

    def serve(self, device: int, host: str) -> None:
        """Answer a mount's requests until it is unmounted."""
        with self.changed:
            self.hosts.setdefault(host, HostPace())
        for _ in range(SERVING_THREADS):
            threading.Thread(target=self._serve, args=(os.dup(device), host), daemon=True).start()
        os.close(device)

    def release(self) -> None:
        """Answer the held requests of hosts that are no longer stalled; the caller holds ``changed``."""
        held, self.held = self.held, []
        for request in held:
            if self.hosts[request.host].is_stalled:
                self.held.append(request)
            else:
                heapq.heappush(self._queue, (0.0, next(self._serial), request))
        self.changed.notify()

    def _serve(self, device: int, host: str) -> None:
        room = memoryview(bytearray(protocol.HEADER_BYTES + protocol.LARGEST_READ))
        try:
            while True:
                try:
                    request = FuseRequest.of(device, host, os.read(device, protocol.REQUEST_BYTES))
                except OSError as error:
                    if error.errno in {errno.ENOENT, errno.EINTR, errno.EAGAIN}:  # withdrawn by the kernel
                        continue
                    return
                if request.operation not in protocol.UNANSWERED and not self._must_wait(request):
                    self._reply(request, room, self.files.answer(request, room))
        finally:
            os.close(device)

    def _must_wait(self, request: FuseRequest) -> bool:
        if request.operation not in protocol.WAITING:
            return False
        nbytes = self.files.length(request) if self.rate_bytes_s and request.operation == protocol.READ else 0
        with self.changed:
            pace = self.hosts[request.host]
            if pace.is_stalled:
                self.held.append(request)
                self.changed.notify()
                return True
            due = now = time.monotonic()
            if nbytes and self.rate_bytes_s:
                due = self._free_s = max(self._free_s, now - SLACK_S) + nbytes / self.rate_bytes_s
            due = max(now, due) + (self.latency_s if pace.latency_s is None else pace.latency_s)
            if due <= now:
                return False
            heapq.heappush(self._queue, (due, next(self._serial), request))
            if self._queue[0][2] is request:
                self.changed.notify()
        return True

    def _run_clock(self) -> None:
        room = memoryview(bytearray(protocol.HEADER_BYTES + protocol.LARGEST_READ))
        while True:
            with self.changed:
                while not (ready := [*self._due(), *self._killed()]):
                    self.changed.wait(self._pause_s())
            for request, error in ready:
                self._reply(request, room, error or self.files.answer(request, room))

    def _pause_s(self) -> float | None:
        pauses = [LOOK_AGAIN_S] if self.held else []
        if self._queue:
            pauses.append(max(0.0, self._queue[0][0] - time.monotonic()))
        return min(pauses, default=None)

    def _due(self) -> list[tuple[FuseRequest, int]]:
        ready: list[tuple[FuseRequest, int]] = []
        now = time.monotonic()
        while self._queue and self._queue[0][0] <= now:
            request = heapq.heappop(self._queue)[2]
            if self.hosts[request.host].is_stalled:
                self.held.append(request)
            else:
                ready.append((request, 0))
        return ready

    def _killed(self) -> list[tuple[FuseRequest, int]]:
        killed = [each for each in self.held if self.hosts[each.host].is_killable and each.is_killed()]
        self.held = [each for each in self.held if each not in killed]
        return [(each, -errno.EINTR) for each in killed]

    def _reply(self, request: FuseRequest, room: memoryview, result: int) -> None:
        with suppress(OSError):  # the reader waits no longer, or the folder is unmounted
            os.write(request.device, protocol.head(room, request.unique, result))


@final
class FolderControl:
    """Commands of the owner, by name."""

    def __init__(self, server: FuseServer) -> None:
        self._server, self._files = server, server.files
        self._mounts: list[tuple[str, str]] = []

    def answer(self, line: bytes) -> bytes:
        """Execute ``[name, arguments]``; returns result, errno and error text."""
        name, words = json.loads(line)
        try:
            return json.dumps([getattr(self, f"on_{name}")(**words), 0, ""]).encode()
        except OSError as error:
            return json.dumps([None, error.errno, str(error)]).encode()
        except KeyError as error:
            return json.dumps([None, errno.ENOENT, f"host {error} has no mount"]).encode()

    def on_mount(self, host: str, folder: str, namespace: str) -> None:
        """Mount and serve."""
        device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        try:
            mount(device, folder, namespace)
        except OSError:
            os.close(device)
            raise
        self._mounts.append((folder, namespace))
        self._server.serve(device, host)

    def on_count(self, host: str | None) -> dict[str, int]:
        """Counts of one host, or of all."""
        with self._files.lock:
            counted = list(self._files.counts.values()) if host is None else [self._files.counts.get(host, Counter())]
            return dict(sum(counted, Counter[str]()))

    def on_reset(self) -> None:
        """Forget counts."""
        with self._files.lock:
            self._files.counts = {}

    def on_stall(self, host: str | None, is_killable: bool) -> None:
        """Hold requests from now on."""
        with self._server.changed:
            for pace in self._paces(host):
                pace.is_stalled, pace.is_killable = True, is_killable

    def on_heal(self, host: str | None) -> None:
        """Forget faults, and answer what is held."""
        with self._files.lock:
            self._files.faults = [each for each in self._files.faults if host not in {None, each.host}]
        with self._server.changed:
            for pace in self._paces(host):
                pace.is_stalled = False
            self._server.release()

    def on_held(self, host: str | None) -> int:
        """Number of requests that are held."""
        with self._server.changed:
            return sum(host in {None, each.host} for each in self._server.held)

    def on_fault(self, **words: Any) -> None:
        """Add a fault."""
        with self._files.lock:
            self._files.faults.append(FolderFault(**words))

    def on_rate(self, bytes_s: float | None) -> None:
        """Set the rate that all share."""
        with self._server.changed:
            self._server.rate_bytes_s = bytes_s

    def on_lag(self, seconds: float, host: str | None) -> None:
        """Set the latency of a host, or of all others."""
        with self._server.changed:
            if host is None:
                self._server.latency_s = seconds
            else:
                self._server.hosts[host].latency_s = seconds

    def close(self, folder: str) -> None:
        """Unmount everything and remove the mounts' folders, which are in ``folder``."""
        for place, namespace in self._mounts:
            unmount(place, namespace)
            with suppress(OSError):
                os.rmdir(place)
        with suppress(OSError):
            os.rmdir(folder)

    def _paces(self, host: str | None) -> list[HostPace]:
        return list(self._server.hosts.values()) if host is None else [self._server.hosts[host]]


def main(owner: int, root: str, folder: str, has_locks: bool, control: int) -> None:
    """Serve until the owner closes its end, or exits."""
    lifeline = os.pidfd_open(owner)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # files that are open on any host are open here, too
    commands = FolderControl(FuseServer(Passthrough(root, has_locks)))
    with socket.socket(fileno=control) as connection:
        while lifeline not in select.select([connection.fileno(), lifeline], [], [])[0]:
            line = connection.recv(1 << 16)
            if not line:
                break
            connection.send(commands.answer(line))
        commands.close(folder)
    os._exit(0)  # closes the devices, which frees every reader that still waits


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4] == "True", int(sys.argv[5]))
