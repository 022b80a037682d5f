"""Agent of a host in a job that no launcher started: ``python -m farandole.runtime.selfstart.host_agent``.

The first worker of a host other than the controller's starts it, with one line of JSON (``spawn.HostAgentConfig``) on
its standard input, and is answered by an empty line. It tells the controller that the host is there, and how the
workers fare that it is asked to watch; it ends when all of them have, or the controller.

One thread runs the loop (``relay.agent``); the link and the relay have threads of their own, which touch nothing here.
The workers are not its children, so it can neither wait for them nor keep their numbers from being given to others.
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
from farandole.runtime.selfstart.host_socket import tell
from farandole.runtime.selfstart.own_controller import STDIN, STDOUT, first_line
from farandole.runtime.selfstart.spawn import FOR_WORKERS, HostAgentConfig


@final
class WatchedWorkers(Workers):
    """Workers that others have started: their ends, and what they ask, which is where they reach the controller."""

    def __init__(self, config: HostAgentConfig, link: AgentLink) -> None:
        self._link, self._claimed = link, socket.socket(fileno=config.claimed)
        self._is_cut_off = False
        self._fds: dict[int, int] = {}  # the descriptor of each process that is watched
        self._worker_ids: dict[int, int] = {}  # those the controller has asked for
        self._watch(config.starter)

    @property
    def is_over(self) -> bool:
        """True if nobody is left to watch, or the controller is gone."""
        return not self._fds or self._is_cut_off

    @property
    def fds(self) -> dict[int, int]:
        """Questions, and the ends of processes."""
        return dict.fromkeys((self._claimed.fileno(), *self._fds.values()), select.POLLIN)

    def attend(self, ready: set[int]) -> None:
        """See ``Workers``."""
        if self._claimed.fileno() in ready:
            tell(self._claimed, self._link.worker_address)
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
        """See ``Workers``: without a controller there is no job, and its workers notice by themselves."""
        self._is_cut_off = True

    def close(self) -> None:
        """Close what was opened to watch."""
        while self._fds:
            os.close(self._fds.popitem()[1])
        self._claimed.close()

    def _watch(self, pid: int) -> bool:
        """Watch the process ``pid``; False if it has ended already."""
        if pid not in self._fds:
            try:
                fd = os.pidfd_open(pid)  # keeps hold of this process, where a number may pass to another one
            except ProcessLookupError:
                return False
            self._fds[pid] = fd
        return True

    def _report(self, pid: int) -> None:
        """Report that a process has ended; how, is known to its parent only."""
        # Also where the controller has not asked yet, as of the starter: this agent may end before it can.
        self._link.send(Report(WorkerExited(self._worker_ids.pop(pid, -1), 0, pid=pid)))


def main() -> None:
    """Read the config, connect, serve."""
    for number in FOR_WORKERS:  # before anything that takes time: schedulers send them to all processes of a job
        signal.signal(number, signal.SIG_IGN)
    config = msgspec.json.decode(first_line(STDIN), type=HostAgentConfig)
    with (
        contextlib.closing(connected(config, config.addresses[0])) as link,
        contextlib.closing(WatchedWorkers(config, link)) as workers,
    ):
        with contextlib.suppress(BrokenPipeError):  # nobody waits any more
            # Lets the worker say hello, after the agent's own is under way: from then on a silent host is to be missed.
            os.write(STDOUT, b"\n")
        Agent(link, workers).serve()


if __name__ == "__main__":
    main()
