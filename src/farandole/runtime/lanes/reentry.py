"""Detection of reentry: the threads that are in the middle of something, for signal handlers that may interrupt them.

    reentry = Reentry()
    with reentry:
        ...                     # here, reentry.here() is true in this thread

A forked child has the memory of what its parent is in the middle of, and no right to it: sockets and shared memory are
the parent's. There nobody enters any more.

Threads. Any thread enters, leaves and looks; a signal handler does so on top of the main thread, wherever that is. So
there is no lock, which the frame below might hold: a handler leaves as often as it has entered, and single operations
on a ``list`` are atomic under the interpreter's lock. A thread looks for its own number only, which no other thread
adds or removes, so what it sees cannot become wrong while it acts on it.
"""

from __future__ import annotations

import threading
from typing import ClassVar, NoReturn, final

from farandole.errors import NotInitializedError
from farandole.runtime.lanes.weak_objects import WeakObjects


@final
class Reentry:
    """The threads inside of one thing, several times too. In a forked child ``NotInitializedError`` keeps them out."""

    __slots__ = ("__weakref__", "is_forsaken", "threads")

    _all: ClassVar[WeakObjects[Reentry]] = WeakObjects()

    def __init__(self) -> None:
        self.threads: list[int] = []
        """Threads that are inside; no set, as a thread may enter again, and is inside until it has left as often."""
        self.is_forsaken = False
        """True in a forked child."""
        self._all.add(self)

    @classmethod
    def forsake_all(cls) -> None:
        """Forbid entering all that exists: called in a forked child, whose parent owns it."""
        for reentry in cls._all.living():
            reentry.is_forsaken = True

    @classmethod
    def anywhere(cls) -> bool:
        """True if the calling thread has entered one and not left."""
        return any(reentry.here() for reentry in cls._all.living())

    def __enter__(self) -> None:
        if self.is_forsaken:
            self.refuse()
        self.threads.append(threading.get_ident())

    def __exit__(self, *_: object) -> None:
        self.threads.remove(threading.get_ident())

    def refuse(self) -> NoReturn:
        """Keep a thread of a forked child out."""
        raise NotInitializedError("an operation of the job that this process was forked from")

    def here(self) -> bool:
        """True if the calling thread has entered and not left."""
        return threading.get_ident() in self.threads
