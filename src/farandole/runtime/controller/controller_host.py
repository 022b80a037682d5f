"""The loop of a process that hosts a controller: a launcher, an elastic job's, or one that workers start.

    with host: host.serve()

It sleeps until a message, a descriptor or a moment; messages of workers go straight to the ``Controller``. What the end
of a worker or of a host means is for those to say who derive from it.

One thread runs all of it. What wakes the loop changes from turn to turn, and ``_watch`` compares it before each sleep.
An epoll knows open files, not numbers: if a descriptor were closed while it is watched, the next file with its number
would be taken for watched, and never wake anybody. So whoever has a descriptor in the loop closes it after a ``_watch``
without it, or by ``_let_go``.
"""

from __future__ import annotations

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
    """Host of the controller behind ``root``, which stays the caller's to close."""

    def __init__(self, root: Root) -> None:
        self._root, self._controller = root, root.controller
        self._watched: set[int] = set()
        root.on_agent, root.on_lost = self._on_agent, self._on_lost
        root.controller.report = self._say

    def serve(self) -> None:
        """Return when the job is over."""
        while not self._is_over():
            self._watch()
            self._on_descriptors(self._root.turn(self._until_s()))
            self._on_turn(time.monotonic())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for fd in self._watched:
            self._root.router.unwatch(fd)
        self._watched = set()

    # -- what a kind of host decides ----------------------------------------------------------------------------------

    @abstractmethod
    def _is_over(self) -> bool:
        """True if there is nothing to wait for."""

    @property
    @abstractmethod
    def _fds(self) -> Collection[int]:
        """Descriptors that wake the loop."""

    @abstractmethod
    def _on_descriptors(self, ready: set[int]) -> None:
        """Take in what has come by those of ``_fds`` that are readable."""

    @abstractmethod
    def _on_hello(self, host: str, hello: AgentHello) -> None:
        """Take in that the agent of a host has answered."""

    @abstractmethod
    def _on_exit(self, host: str, exited: WorkerExited) -> None:
        """Take in the end of a worker, as the agent of its host has noticed it."""

    @abstractmethod
    def _on_lost(self, host: str, reason: str) -> None:
        """Take in that a host is silent, has never answered, or has another version."""

    @abstractmethod
    def _say(self, text: str) -> None:
        """Show a text to people."""

    def _until_s(self) -> float | None:
        """Time at which ``_on_turn`` has something to do, whatever comes or not."""
        return None

    def _on_turn(self, now: float) -> None:  # noqa: B027 (a host without deadlines has nothing to do)
        """Do what is due, now that everything that had come is taken in."""

    # -- what all do --------------------------------------------------------------------------------------------------

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
