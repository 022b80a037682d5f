"""Agent of a host in a job without a launcher: ``python -m farandole.runtime.selfstart.host_agent``.

The first worker of a host other than the controller's starts it, with one line of JSON (``spawn.HostAgentConfig``) on
its standard input; the agent replies with an empty line. It sends heartbeats to the controller, and reports exits of
the workers it watches. It exits after all of them, or without a controller.

One thread runs the loop (``relay.agent``); the link and the relay have threads of their own, which touch nothing here.
The workers are not its children, so it can neither wait for them nor prevent the reuse of their pids.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
from typing import Any, final

import msgspec

from farandole.control.agent_messages import Report, Watch
from farandole.control.exits import WorkerExited
from farandole.errors import ControlError
from farandole.runtime.relay.agent import Agent, Workers, connected
from farandole.runtime.relay.agent_link import AgentLink
from farandole.runtime.selfstart.host_socket import send_address
from farandole.runtime.selfstart.own_controller import STDIN, STDOUT, first_line
from farandole.runtime.selfstart.spawn import FOR_WORKERS, HostAgentConfig


@final
class WatchedWorkers(Workers):
    """Workers started by other processes: the agent reports their exits, and tells them the controller's address."""

    def __init__(self, config: HostAgentConfig, link: AgentLink) -> None:
        self._link, self._claimed = link, socket.socket(fileno=config.claimed)
        self._is_cut_off = False
        self._fds: dict[int, int] = {}  # pidfd of each watched process
        self._worker_ids: dict[int, int] = {}  # of processes for which the controller sent ``Watch``
        self._watch(config.starter)

    @property
    def is_over(self) -> bool:
        """True if no process is left to watch, or the controller is lost."""
        return not self._fds or self._is_cut_off

    @property
    def fds(self) -> dict[int, int]:
        """Descriptors of address requests, and pidfds of watched processes."""
        return dict.fromkeys((self._claimed.fileno(), *self._fds.values()), select.POLLIN)

    def attend(self, ready: set[int]) -> None:
        """See ``Workers``."""
        if self._claimed.fileno() in ready:
            send_address(self._claimed, self._link.worker_address)
        for pid, fd in list(self._fds.items()):
            if fd in ready:
                os.close(self._fds.pop(pid))
                self._report(pid)

    def obey(self, message: Any) -> None:
        """See ``Workers``."""
        if isinstance(message, Watch):
            self._worker_ids[message.pid] = message.worker_id
            if not self._watch(message.pid):
                self._report(message.pid)

    def cut_off(self, error: ControlError) -> None:
        """See ``Workers``: the agent exits; workers notice the loss of the controller by themselves."""
        self._is_cut_off = True

    def close(self) -> None:
        """Close all descriptors."""
        while self._fds:
            os.close(self._fds.popitem()[1])
        self._claimed.close()

    def _watch(self, pid: int) -> bool:
        """Watch the process ``pid``; False if it has already exited."""
        if pid not in self._fds:
            try:
                fd = os.pidfd_open(pid)  # refers to this process even if its pid is reused
            except ProcessLookupError:
                return False
            self._fds[pid] = fd
        return True

    def _report(self, pid: int) -> None:
        """Report the exit of a process; only its parent knows the exit status."""
        # Also before ``Watch`` arrives (for the starter): this agent may exit before that.
        self._link.send(Report(WorkerExited(self._worker_ids.pop(pid, -1), 0, pid=pid)))


def main() -> None:
    """Read the config, connect, serve."""
    for number in FOR_WORKERS:  # first: schedulers send them to all processes of a job
        signal.signal(number, signal.SIG_IGN)
    config = msgspec.json.decode(first_line(STDIN), type=HostAgentConfig)
    with (
        contextlib.closing(connected(config, config.addresses[0])) as link,
        contextlib.closing(WatchedWorkers(config, link)) as workers,
    ):
        with contextlib.suppress(BrokenPipeError):  # the worker has exited
            # Lets the worker send its ``Hello`` after the agent's: from now on the controller detects a silent host.
            os.write(STDOUT, b"\n")
        Agent(link, workers).serve()


if __name__ == "__main__":
    main()
