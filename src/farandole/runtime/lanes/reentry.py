"""Detection of reentry: the threads that are in the middle of something, for signal handlers that may interrupt them.

    reentry = Reentry()
    with reentry:
        ...                     # here, reentry.here() is true in this thread

A forked child has the memory of what its parent is in the middle of, and no right to it: sockets and shared memory are
the parent's. There nobody enters any more.

An exception of a signal handler may come between a thread's entering and the ``with`` block, or before it has left. So
an entry has the frame of the ``with`` statement, and counts while that is on its thread's stack.

Threads. Any thread enters, leaves and looks; a signal handler does so on top of the main thread, wherever that is. So
there is no lock, which the frame below might hold: a handler leaves as often as it has entered, and single operations
on a ``list`` are atomic under the interpreter's lock. A thread looks for its own entries only, which no other thread
adds or removes, so what it sees cannot become wrong while it acts on it.
"""

from __future__ import annotations

import contextlib
import sys
from _thread import get_ident
from traceback import walk_stack
from types import FrameType
from typing import ClassVar, NoReturn, final

from farandole.errors import NotInitializedError
from farandole.runtime.lanes.weak_objects import WeakObjects


@final
class Reentry:
    """The threads inside of one thing, several times too. In a forked child ``NotInitializedError`` keeps them out."""

    __slots__ = ("__weakref__", "entries", "is_forsaken")

    _all: ClassVar[WeakObjects[Reentry]] = WeakObjects()

    def __init__(self) -> None:
        self.entries: list[tuple[int, FrameType]] = []
        """Threads that are inside, each with its frame; as often as the thread has entered and not left."""
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
        self.entries.append((get_ident(), sys._getframe(1)))

    def __exit__(self, *_: object) -> None:
        self.entries.remove((get_ident(), sys._getframe(1)))

    def refuse(self) -> NoReturn:
        """Keep a thread of a forked child out."""
        raise NotInitializedError("an operation of the job that this process was forked from")

    def here(self) -> bool:
        """True if the calling thread has entered and not left."""
        if not self.entries:
            return False
        me = get_ident()
        entries = [entry for entry in self.entries.copy() if entry[0] == me]
        stack = [frame for frame, _ in walk_stack(sys._getframe())] if entries else []
        left = [entry for entry in entries if entry[1] not in stack]
        for entry in left:
            with contextlib.suppress(ValueError):  # a handler in here has removed it
                self.entries.remove(entry)
        return len(left) < len(entries)
