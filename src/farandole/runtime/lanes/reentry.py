"""Which threads are in the middle of something, so that a signal handler can know what it has interrupted.

presence = Presence()
with presence:
    ...                     # here, presence.here() is true in this thread

A forked child has the memory of what its parent is in the middle of, and no right to it: sockets and shared memory are
the parent's. There nobody enters any more.
"""

from __future__ import annotations

import threading
import weakref
from typing import ClassVar, final

from farandole.errors import NotInitializedError


@final
class Reentry:
    """Entered and left by any thread, several times too; needs no lock. Raises ``NotInitializedError`` if forsaken."""

    __slots__ = ("__weakref__", "_is_forsaken", "_threads")

    _all: ClassVar[weakref.WeakSet[Reentry]] = weakref.WeakSet()

    def __init__(self) -> None:
        self._threads: list[int] = []
        self._is_forsaken = False
        self._all.add(self)

    @classmethod
    def forsake_all(cls) -> None:
        """In a forked child: nobody enters what is the parent's."""
        for reentry in list(cls._all):
            reentry._is_forsaken = True

    @classmethod
    def anywhere(cls) -> bool:
        """True if the calling thread has entered one and not left."""
        return any(reentry.here() for reentry in list(cls._all))

    def __enter__(self) -> None:
        if self._is_forsaken:
            raise NotInitializedError("an operation of the job that this process was forked from")
        self._threads.append(threading.get_ident())

    def __exit__(self, *_: object) -> None:
        self._threads.remove(threading.get_ident())

    def here(self) -> bool:
        """True if the calling thread has entered and not left."""
        return threading.get_ident() in self._threads
