"""A controller in a process of its own, for jobs that no launcher started: ``python -m farandole.runtime.standalone``.

Its standard input brings one line of JSON (``hosted.Charge``), answered on standard output by the address as soon as it
listens. That input ends with the process that started it; then, or when the last worker of this host has ended, this
process ends too.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from typing import final

import msgspec

from farandole.control.channel import Router
from farandole.control.keys import JobKeys
from farandole.control.messages import Hello
from farandole.control.process import dump_stack
from farandole.errors import ControlError
from farandole.runtime.controller import FAREWELL_S, Controller
from farandole.runtime.hosted import Charge
from farandole.runtime.stall import PATIENCE_S
from farandole.settings import Settings

STDIN = 0


@final
class Standalone:
    """The loop around a ``Controller``: it watches the workers of this host by their process descriptors."""

    def __init__(self, charge: Charge, router: Router) -> None:
        self._router = router
        self._starter, self._host = os.getppid(), charge.host
        self._controller = Controller(router.send, Settings.resolve(), charge.expected, time.monotonic)
        self._controller.request_stack = self._request_stack
        self._controller.report = _say
        self._hellos: dict[int, Hello] = {}  # by process, of those of this host that are not known to have ended
        self._workers: dict[int, int] = {}  # process by its descriptor
        self._came = False  # the starter has said hello

    def serve(self) -> None:
        """Return when the starter has gone, or all workers have."""
        self._router.watch(STDIN)
        while True:
            ready = self._router.wait(self._patience_s())
            self._drain()
            for fd in ready & set(self._workers):
                self._end(fd)
            if STDIN in ready and not os.read(STDIN, 4096):
                self._see_out()
                return
            if self._came and not self._workers:
                return
            deadline = self._controller.deadline()
            if deadline is not None and (now := time.monotonic()) >= deadline:
                self._controller.tick(now)

    def close(self) -> None:
        """Stop watching."""
        for fd in self._workers:
            self._router.unwatch(fd)
            os.close(fd)

    def _patience_s(self) -> float | None:
        deadline = self._controller.deadline()
        return None if deadline is None else max(0.0, deadline - time.monotonic())

    def _drain(self) -> None:
        while (got := self._router.recv()) is not None:
            identity, message = got
            self._controller.handle(identity, message)
            if isinstance(message, Hello):
                self._meet(message)

    def _meet(self, hello: Hello) -> None:
        """Watch the workers of this host; on others, the same numbers mean other processes."""
        if hello.host != self._host:
            return
        self._came = self._came or hello.pid == self._starter
        self._hellos[hello.pid] = hello
        if hello.pid not in self._workers.values():
            self._watch(hello.pid)

    def _watch(self, pid: int) -> None:
        try:
            fd = os.pidfd_open(pid)
        except ProcessLookupError:
            self._report_end(pid)
        else:
            self._workers[fd] = pid
            self._router.watch(fd)

    def _end(self, fd: int) -> None:
        self._router.unwatch(fd)
        os.close(fd)
        self._report_end(self._workers.pop(fd))

    def _report_end(self, pid: int) -> None:
        """Once. How it ended is its parent's to know; without its ``Leave`` it did not end well."""
        hello = self._hellos.pop(pid)
        end = f"rank {hello.place} on {hello.host} (process {pid}) has ended"
        self._controller.worker_exited(hello.place, pid, 0, end)

    def _see_out(self) -> None:
        """The starter has gone: tell the others, unless it had said that it would."""
        if self._starter in self._hellos:
            self._report_end(self._starter)
        until = time.monotonic() + FAREWELL_S
        while self._controller.deadline() is not None and (now := time.monotonic()) < until:
            self._router.wait(until - now)
            self._drain()
        self._controller.tick(until)

    def _request_stack(self, hello: Hello) -> None:
        text = f"process {hello.pid} is not on this host"
        if self._hellos.get(hello.pid) == hello:
            try:
                text = dump_stack(hello.pid, hello.stack_signal, hello.stack_fd, deadline_s=PATIENCE_S / 2)
            except ControlError as error:
                text = str(error)
        self._controller.stack_arrived(hello.place, text)


def main() -> None:
    """Read the charge, listen, serve."""
    charge = msgspec.json.decode(_first_line(), type=Charge)
    try:
        router = Router(JobKeys.from_secret(charge.secret), charge.address)
    except ControlError as error:
        _say(str(error))
        sys.exit(1)
    print(router.address, flush=True)  # the starter waits for it
    with router, contextlib.closing(Standalone(charge, router)) as standalone:
        standalone.serve()


def _first_line() -> bytes:
    line = b""
    while not line.endswith(b"\n") and (byte := os.read(STDIN, 1)):
        line += byte
    return line


def _say(text: str) -> None:
    os.write(sys.stderr.fileno(), f"farandole: {text}\n".encode())


if __name__ == "__main__":
    main()
