"""Agent of a host in a job that no launcher started: ``python -m farandole.runtime.selfstart.host_agent``.

The first worker of a host other than the controller's starts it, with one line of JSON (``spawn.HostAgentConfig``) on
its standard input, and is answered by an empty line. It tells the controller that the host is there, and how the
workers fare that it is asked to watch; it ends when all of them have, or the controller.

One thread runs all of it; ``AgentLink`` and ``Relay`` have threads of their own, which touch nothing here. The workers
are not its children, so it can neither wait for them nor keep their numbers from being given to others.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import time
from typing import final

import msgspec

from farandole.control.agent_messages import Report, Watch
from farandole.control.endings import WorkerExited
from farandole.control.keys import JobKeys
from farandole.control.sockets import LONGEST_WAIT_S
from farandole.errors import ControlError
from farandole.runtime.relay.agent_link import AgentLink
from farandole.runtime.relay.relay import Relay
from farandole.runtime.selfstart.host_socket import tell
from farandole.runtime.selfstart.own_controller import STDIN, STDOUT, first_line
from farandole.runtime.selfstart.spawn import FOR_WORKERS, HostAgentConfig
from farandole.settings import Settings


@final
class HostAgent:
    """Single-threaded loop over the controller's messages, the ends of processes, and questions for ``address``."""

    def __init__(self, config: HostAgentConfig, link: AgentLink, address: str) -> None:
        self._link = link
        self._claimed, self._address = socket.socket(fileno=config.claimed), address
        self._poll = select.poll()
        self._poll.register(config.claimed, select.POLLIN)
        self._fds: dict[int, int] = {}  # the descriptor of each process that is watched
        self._worker_ids: dict[int, int] = {}  # those the controller has asked for
        for fd in link.fds:
            self._poll.register(fd, select.POLLIN)
        self._watch(config.starter)

    def serve(self) -> None:
        """Return when nobody is left to watch; raises ``ControlError`` when the controller is gone."""
        while self._fds:
            ready = {fd for fd, _ in self._poll.poll(self._patience_ms())}
            for message in self._link.receive():
                if isinstance(message, Watch):
                    self._worker_ids[message.pid] = message.worker_id
                    if not self._watch(message.pid):
                        self._report(message.pid)
            if self._claimed.fileno() in ready:
                tell(self._claimed, self._address)
            for pid, fd in list(self._fds.items()):
                if fd in ready:
                    self._unwatch(pid)
                    self._report(pid)
            self._link.beat()

    def close(self) -> None:
        """Close what was opened to watch."""
        for pid in list(self._fds):
            self._unwatch(pid)
        self._claimed.close()

    def _patience_ms(self) -> float | None:
        deadline_s = self._link.deadline_s
        return None if deadline_s is None else max(0.0, min(deadline_s - time.monotonic(), LONGEST_WAIT_S)) * 1000

    def _watch(self, pid: int) -> bool:
        """Watch the process ``pid``; False if it has ended already."""
        if pid not in self._fds:
            try:
                fd = os.pidfd_open(pid)  # keeps hold of this process, where a number may pass to another one
            except ProcessLookupError:
                return False
            self._fds[pid] = fd
            self._poll.register(fd, select.POLLIN)
        return True

    def _unwatch(self, pid: int) -> None:
        fd = self._fds.pop(pid)
        self._poll.unregister(fd)
        os.close(fd)

    def _report(self, pid: int) -> None:
        """Report once that a process has ended; how, is known to its parent only."""
        if pid in self._worker_ids:
            self._link.send(Report(WorkerExited(self._worker_ids.pop(pid), 0, pid=pid)))


def main() -> None:
    """Read the config, connect, serve."""
    for number in FOR_WORKERS:  # before anything that takes time: schedulers send them to all processes of a job
        signal.signal(number, signal.SIG_IGN)
    config = msgspec.json.decode(first_line(STDIN), type=HostAgentConfig)
    keys = JobKeys.from_secret(config.secret)
    relay = Relay(keys, config.host, config.silence_s, Settings.resolve().network_interface) if config.relay else None
    address = relay.address if relay is not None else config.address
    with (
        contextlib.closing(AgentLink(config.address, keys, config.host, config.silence_s, relay)) as link,
        contextlib.closing(HostAgent(config, link, address)) as agent,
        contextlib.suppress(ControlError),
    ):
        with contextlib.suppress(BrokenPipeError):  # nobody waits any more
            # Lets the worker say hello, after the agent's own is under way: from then on a silent host is to be missed.
            os.write(STDOUT, b"\n")
        agent.serve()


if __name__ == "__main__":
    main()
