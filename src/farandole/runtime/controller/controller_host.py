"""Event loop of a process that hosts a controller: a launcher, or a process started by workers.

    with host: host.serve()

Messages of workers go directly to the ``Controller``. Subclasses decide what the exit of a worker or the loss of a host
means.
"""

from __future__ import annotations

import os
from abc import abstractmethod
from typing import TYPE_CHECKING, Any

from farandole.control.agent_messages import AgentHello, Report, Stack
from farandole.control.exits import WorkerExited
from farandole.runtime.controller.event_loop import EventLoop

if TYPE_CHECKING:
    from farandole.runtime.controller.root import Root


class ControllerHost(EventLoop):
    """Host of the controller behind ``root``; the caller closes ``root``."""

    def __init__(self, root: Root) -> None:
        super().__init__(root.router)
        self._root, self._controller = root, root.controller
        root.on_agent, root.on_lost = self._on_agent, self._on_lost
        root.controller.watchdog.report = self._print_text

    def _receive(self, until_s: float | None) -> set[int]:
        return self._root.turn(until_s)

    # -- decisions of subclasses --------------------------------------------------------------------------------------

    @abstractmethod
    def _on_hello(self, host: str, hello: AgentHello) -> None:
        """Handle the ``AgentHello`` of a host's agent."""

    @abstractmethod
    def _on_exit(self, host: str, exited: WorkerExited) -> None:
        """Handle the exit of a worker, reported by the agent of its host."""

    @abstractmethod
    def _on_lost(self, host: str, reason: str) -> None:
        """Handle a host that is silent, never connected, or has another version."""

    @abstractmethod
    def _print_text(self, text: str) -> None:
        """Print a text for users."""

    # -- common to all hosts ------------------------------------------------------------------------------------------

    def _let_go(self, fd: int) -> None:
        """Close a descriptor that may be watched."""
        self._unwatch({fd} & self._watched)
        os.close(fd)

    def _on_agent(self, host: str, message: Any) -> None:
        if isinstance(message, Report):
            self._on_exit(host, message.exited)
        elif isinstance(message, Stack):
            self._controller.stack_arrived(message.worker_id, message.text)
        elif isinstance(message, AgentHello):
            self._on_hello(host, message)
