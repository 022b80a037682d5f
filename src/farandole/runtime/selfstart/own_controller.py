"""Controller in a process of its own, for jobs without a launcher.

Started with ``python -m farandole.runtime.selfstart.own_controller``.

It reads one line of JSON (``spawn.ControllerConfig``) from standard input, and prints its addresses when it listens.
Its input closes when the process that started it (rank 0) exits or leaves at exit. Then this process exits, too, after
the other ranks have left or exited: rank 0 may finish earlier, and a rank in its last step must not lose its
controller. It watches the workers of its own host; on every other host an agent does.

One thread runs all of it, in turns of ``ControllerHost.serve``: so there is no lock, and a blocking call would stall
the whole job. The end of a worker is reported in up to three ways, in any order: by its ``Leave`` on the control plane,
by its pidfd or agent, and, for the starter, by the end of standard input. ``FAREWELL_S`` gives a ``Leave`` time to
arrive before an exit counts as one without it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import time
from typing import final

import msgspec

from farandole.control.addresses import own_endpoints
from farandole.control.agent_messages import AgentHello, Watch
from farandole.control.channel import Router
from farandole.control.exits import WorkerExited
from farandole.control.keys import JobKeys
from farandole.control.messages import Hello
from farandole.control.os_text import printed
from farandole.control.process import dump_stack
from farandole.control.watch_messages import WatchOrder
from farandole.errors import ControlError, UsageError
from farandole.runtime.controller.controller import FAREWELL_S
from farandole.runtime.controller.controller_host import ControllerHost
from farandole.runtime.controller.root import Root
from farandole.runtime.coordination.rank_names import name_numbers
from farandole.runtime.coordination.stall import PATIENCE_S
from farandole.runtime.selfstart.host_socket import claim, name_of, send_address
from farandole.runtime.selfstart.spawn import FOR_WORKERS, ControllerConfig
from farandole.settings import Settings

STDIN, STDOUT = 0, 1
REFUSALS = {
    "scale": "the ranks are the engines that a notebook has attached: farandole.notebook.attach(rc) takes all of them",
    "end": "the ranks are the engines of a notebook: interrupt its cell; ranks.kill(0) ends what does not heed that",
}
"""Replies to orders that need no step, in notebooks."""

LOST = -signal.SIGKILL
"""Exit code of a worker whose host is lost."""


@final
class OwnController(ControllerHost):
    """Host of a controller that learns of all exits of workers from pidfds and from agents."""

    def __init__(self, config: ControllerConfig, router: Router, claimed: socket.socket | None) -> None:
        settings = Settings.resolve().as_static()
        super().__init__(Root(router, settings, config.expected))
        self._claimed = claimed
        self._config, self._start_timeout_s = config, settings.start_timeout_s
        self._dump_elsewhere = self._controller.watchdog.request_stack
        self._controller.watchdog.request_stack = self._request_stack
        self._controller.on_hello = self._on_worker_hello
        self._controller.watching.in_cells = config.in_cells
        if config.in_cells:  # stderr may belong to an engine whose cell shows them already
            self._controller.watchdog.notice = self._controller.watching.said
        self._controller.watching.obey = self._obey_watcher
        self._starter = os.getppid()  # another pid if the starter has exited; stdin is closed then
        self._hellos: dict[tuple[str, int], Hello] = {}  # by host and pid: workers not known to have exited
        self._ended: set[tuple[str, int]] = set()  # host and pid of workers that exited before their Hello arrived
        self._workers: dict[int, int] = {}  # pid by pidfd, on this host
        self._came = False  # the starter has sent its Hello
        self._starter_has_gone = False
        self._yet_to_come = set(range(config.expected))

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        for fd in self._workers:
            os.close(fd)

    def _is_over(self) -> bool:
        if self._starter_has_gone:
            return self._config.in_cells or not self._controller.is_needed
        # Before the starter's ``Hello`` there may be no workers for a while.
        return self._came and not self._workers

    @property
    def _fds(self) -> set[int]:
        starter = () if self._starter_has_gone else (STDIN,)
        return {*starter, *self._workers, *(() if self._claimed is None else (self._claimed.fileno(),))}

    def _on_descriptors(self, ready: set[int]) -> None:
        if self._claimed is not None and self._claimed.fileno() in ready:
            send_address(self._claimed, f"tcp://127.0.0.1:{self._router.address.rpartition(':')[2]}")
        # Closed after the turn, never in it: ``_watch_worker`` could get a reused number that is in ``ready``.
        for fd in ready & set(self._workers):
            self._let_go(fd)
            self._report_end(self._config.host, self._workers.pop(fd))
        if STDIN in ready and not os.read(STDIN, 4096):
            self._starter_has_gone = True
            self._see_out()

    def _print_text(self, text: str) -> None:
        print_line(text)
        self._root.controller.watching.said(text)

    def _on_worker_hello(self, hello: Hello) -> None:
        """Make sure that this process or an agent watches the worker."""
        self._yet_to_come.discard(hello.worker_id)
        if not self._yet_to_come:
            remove(self._config.litter)
        known = (hello.host, hello.pid) in self._hellos
        self._hellos[hello.host, hello.pid] = hello
        if hello.host == self._config.host:
            self._came = self._came or hello.pid == self._starter
            if hello.pid not in self._workers.values():
                self._watch_worker(hello)
        elif (hello.host, hello.pid) in self._ended:
            self._report_end(hello.host, hello.pid)
        elif self._root.hosts.is_up(hello.host) and self._root.send_to_agent(
            hello.host, Watch(hello.worker_id, hello.pid)
        ):
            pass
        elif not known:  # a rejoining worker must not extend the agent's deadline
            self._root.hosts.expect(hello.host, time.monotonic() + self._start_timeout_s)

    def _watch_worker(self, hello: Hello) -> None:
        try:
            fd = os.pidfd_open(hello.pid)  # not a child, so only a pidfd can be waited for
        except ProcessLookupError:
            self._report_end(hello.host, hello.pid)
        else:
            self._workers[fd] = hello.pid

    def _report_end(self, host: str, pid: int) -> None:
        """Report a worker's exit once; only its parent knows the status. Without a ``Leave`` it counts as a failure."""
        hello = self._hellos.pop((host, pid), None)
        if hello is None:
            self._ended.add((host, pid))
        else:
            end = f"rank {hello.worker_id} on {host} (process {pid}) has ended"
            self._controller.worker_exited(WorkerExited(hello.worker_id, 0, end, host, pid))

    def _on_hello(self, host: str, hello: AgentHello) -> None:
        for worker in [each for each in self._hellos.values() if each.host == host]:
            self._root.send_to_agent(host, Watch(worker.worker_id, worker.pid))

    def _on_exit(self, host: str, exited: WorkerExited) -> None:
        self._report_end(host, exited.pid)

    def _on_lost(self, host: str, reason: str) -> None:
        """Report all workers of ``host`` as dead; the first report ends the generation, so each report names all."""
        dead = [hello for hello in self._hellos.values() if hello.host == host]
        ranks = name_numbers(hello.worker_id for hello in dead)
        for hello in dead:
            del self._hellos[host, hello.pid]
            lost = f"{ranks} on {host} lost: {reason}"
            self._controller.worker_lost(WorkerExited(hello.worker_id, LOST, lost, host, hello.pid))

    def _obey_watcher(self, order: WatchOrder) -> tuple[bool, str]:
        told = REFUSALS if self._config.in_cells else {}
        return False, told.get(order.verb, "no launcher has started this job, and what it runs on is not to be changed")

    def _see_out(self) -> None:
        """Report the exit of the starter, unless its own ``Leave`` arrives, which may be under way."""
        self._report_end(self._config.host, self._starter)
        # Until its ``Leave`` (or first its ``Hello``, if still under way) has arrived or is overdue. The controller's
        # other deadlines may be a minute away, and closed descriptors would wake each turn.
        came_s = time.monotonic() + FAREWELL_S
        while (until_s := self._controller.farewell_s if self._came else came_s) and time.monotonic() < until_s:
            self._watch()
            self._on_descriptors(self._root.turn(until_s))
        self._controller.tick(time.monotonic())

    def _request_stack(self, hello: Hello) -> None:
        if hello.host != self._config.host:
            self._dump_elsewhere(hello)
            return
        text = f"process {hello.pid} is not on this host"
        if self._hellos.get((hello.host, hello.pid)) == hello:  # else the pid may be reused
            try:
                # Blocks the loop, so for less time than the stall report waits for it.
                text = dump_stack(hello.pid, hello.stack_signal, hello.stack_fd, deadline_s=PATIENCE_S / 2)
            except ControlError as error:
                text = str(error)
        self._controller.stack_arrived(hello.worker_id, text)


def main() -> None:
    """Read the config, listen, serve."""
    for number in FOR_WORKERS:  # first: schedulers send them to all processes of a job
        signal.signal(number, signal.SIG_IGN)
    config = msgspec.json.decode(first_line(STDIN), type=ControllerConfig)
    try:
        router = Router(JobKeys.from_secret(config.secret), config.listen)
        addresses = _reached_at(router.address, Settings.resolve().network_interface)
    except (ControlError, UsageError) as error:
        print_line(str(error))
        sys.exit(1)
    with (
        claim(name_of(config.secret, config.host, router.address)) as claimed,
        router,
        OwnController(config, router, claimed) as own,
    ):
        try:
            with contextlib.suppress(BrokenPipeError):  # else the starter waits for this line
                os.write(STDOUT, msgspec.json.encode(addresses) + b"\n")
            own.serve()
        finally:
            remove(config.litter)


def first_line(fd: int) -> bytes:
    """Read one line, and no byte after it."""
    line = b""
    # Byte by byte: polling the descriptor would not show bytes that a buffer has read ahead.
    while not line.endswith(b"\n") and (byte := os.read(fd, 1)):
        line += byte
    return line


def remove(paths: list[str]) -> None:
    """Delete these files, if they exist."""
    for path in paths:
        with contextlib.suppress(OSError):
            os.unlink(path)


def _reached_at(listening: str, interface: str) -> list[str]:
    port = listening.rpartition(":")[2]
    anywhere = listening in (f"tcp://0.0.0.0:{port}", f"tcp://[::]:{port}")
    return own_endpoints(listening, interface) if anywhere else [listening]


def print_line(text: str) -> None:
    """Print a line on standard error."""
    os.write(sys.stderr.fileno(), printed(f"farandole: {text}\n"))


if __name__ == "__main__":
    main()
