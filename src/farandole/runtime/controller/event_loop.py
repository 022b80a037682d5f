"""Event loop of a process that decides who runs where: a launcher, a search, or a controller that workers started.

    with loop: loop.serve()

It sleeps until a message, a descriptor or a deadline. Subclasses decide what these mean.

One thread runs all of it. The set of watched descriptors changes from turn to turn, and ``_watch`` updates it before
each sleep. An epoll watches open files, not numbers: if a descriptor were closed while it is watched, the next file
with its number would count as watched, and never wake the loop. So the owner of a watched descriptor closes it after a
``_watch`` without it, or after ``_unwatch``.
"""

from __future__ import annotations

import contextlib
import time
from abc import ABC, abstractmethod
from collections.abc import Collection
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Self

    from farandole.control.channel import Router


class EventLoop(ABC):
    """Loop on ``router``, which the caller closes."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self._watched: set[int] = set()

    def serve(self) -> None:
        """Run the loop until it is over."""
        while not self._is_over():
            self._watch()
            self._on_descriptors(self._receive(self._until_s()))
            self._on_turn(time.monotonic())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._unwatch(set(self._watched))

    @abstractmethod
    def _is_over(self) -> bool:
        """True if the loop may end."""

    @property
    @abstractmethod
    def _fds(self) -> Collection[int]:
        """Descriptors that wake the loop."""

    @abstractmethod
    def _receive(self, until_s: float | None) -> set[int]:
        """Sleep until a message arrives, a descriptor is ready, or ``until_s``; handle the messages.

        Returns the ready descriptors.
        """

    @abstractmethod
    def _on_descriptors(self, ready: set[int]) -> None:
        """Read those of ``_fds`` that are ``ready``."""

    def _until_s(self) -> float | None:
        """Next deadline: the time at which ``_on_turn`` has something to do."""
        return None

    def _on_turn(self, now: float) -> None:  # noqa: B027 (a loop without deadlines has nothing to do)
        """Do what is due, after all messages that had arrived were handled."""

    def _watch(self) -> None:
        wanted = set(self._fds)
        self._unwatch(self._watched - wanted)
        for fd in wanted - self._watched:
            self._router.watch(fd)
        self._watched = wanted

    def _unwatch(self, fds: Collection[int]) -> None:
        """Stop watching some descriptors, which may then be closed."""
        for fd in fds:
            with contextlib.suppress(OSError):  # an error in ``_watch`` may have left it unwatched
                self._router.unwatch(fd)
        self._watched = self._watched.difference(fds)
