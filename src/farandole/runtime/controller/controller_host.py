"""Event loop of a process that hosts a controller: a launcher, or a process started by workers.

    with host: host.serve()

It sleeps until a message, a descriptor or a deadline; messages of workers go directly to the ``Controller``. Subclasses
decide what the exit of a worker or the loss of a host means.

One thread runs all of it. The set of watched descriptors changes from turn to turn, and ``_watch`` updates it before
each sleep. An epoll watches open files, not numbers: if a descriptor were closed while it is watched, the next file
with its number would count as watched, and never wake the loop. So the owner of a watched descriptor closes it after a
``_watch`` without it, or with ``_let_go``.
"""

from __future__ import annotations

import contextlib
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from farandole.control.agent_messages import AgentHello, Report, Stack
from farandole.control.exits import WorkerExited

if TYPE_CHECKING:
    from typing_extensions import Self

    from farandole.runtime.controller.root import Root


class ControllerHost(ABC):
    """Host of the controller behind ``root``; the caller closes ``root``."""

    def __init__(self, root: Root) -> None:
        self._root, self._controller = root, root.controller
        self._watched: set[int] = set()
        root.on_agent, root.on_lost = self._on_agent, self._on_lost
        root.controller.watchdog.report = self._print_text

    def serve(self) -> None:
        """Run the loop until the job is over."""
        while not self._is_over():
            self._watch()
            self._on_descriptors(self._root.turn(self._until_s()))
            self._on_turn(time.monotonic())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for fd in self._watched:
            with contextlib.suppress(OSError):  # an error in ``_watch`` may have left it unwatched
                self._root.router.unwatch(fd)
        self._watched = set()

    # -- decisions of subclasses --------------------------------------------------------------------------------------

    @abstractmethod
    def _is_over(self) -> bool:
        """True if the loop may end."""

    @property
    @abstractmethod
    def _fds(self) -> Collection[int]:
        """Descriptors that wake the loop."""

    @abstractmethod
    def _on_descriptors(self, ready: set[int]) -> None:
        """Read those of ``_fds`` that are ``ready``."""

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

    def _until_s(self) -> float | None:
        """Next deadline: the time at which ``_on_turn`` has something to do."""
        return None

    def _on_turn(self, now: float) -> None:  # noqa: B027 (a host without deadlines has nothing to do)
        """Do what is due, after all messages that had arrived were handled."""

    # -- common to all hosts ------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        wanted = set(self._fds)
        for fd in self._watched - wanted:
            self._root.router.unwatch(fd)
        for fd in wanted - self._watched:
            self._root.router.watch(fd)
        self._watched = wanted

    def _let_go(self, fd: int) -> None:
        """Close a descriptor that may be watched."""
        if fd in self._watched:
            self._root.router.unwatch(fd)
            self._watched.discard(fd)
        os.close(fd)

    def _on_agent(self, host: str, message: Any) -> None:
        if isinstance(message, Report):
            self._on_exit(host, message.exited)
        elif isinstance(message, Stack):
            self._controller.stack_arrived(message.worker_id, message.text)
        elif isinstance(message, AgentHello):
            self._on_hello(host, message)
