"""Detection of reentry: which threads are inside an operation that a signal handler may interrupt.

    reentry = Reentry()
    with reentry:
        ...                     # here, reentry.here() is true in this thread

A forked child has a copy of its parent's operations in progress, but must not use it: the sockets and the shared memory
are the parent's. No thread of the child may enter.

An exception of a signal handler may be raised between ``__enter__`` and the ``with`` block, or before ``__exit__``. So
an entry holds the frame of the ``with`` statement, and counts while that frame is on its thread's stack.

Threads. Any thread enters, exits and checks; a signal handler does so on top of any frame of the main thread. So there
is no lock, which the frame below might hold: a handler exits as often as it has entered, and single operations on a
``list`` are atomic under the GIL. A thread checks only its own entries, which no other thread adds or removes, so the
result cannot change while the thread acts on it.
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
    """Threads inside one operation, with repetition. Entering it in a forked child raises ``NotInitializedError``."""

    __slots__ = ("__weakref__", "entries", "is_forsaken")

    _all: ClassVar[WeakObjects[Reentry]] = WeakObjects()

    def __init__(self) -> None:
        self.entries: list[tuple[int, FrameType]] = []
        """Threads inside, each with its frame; a thread appears once for each ``__enter__`` without ``__exit__``."""
        self.is_forsaken = False
        """True in a forked child."""
        self._all.add(self)

    @classmethod
    def forsake_all(cls) -> None:
        """Forbid entering all existing instances: called in a forked child, whose parent owns them."""
        for reentry in cls._all.living():
            reentry.is_forsaken = True

    @classmethod
    def anywhere(cls) -> bool:
        """True if the calling thread is inside any instance."""
        return any(reentry.here() for reentry in cls._all.living())

    def __enter__(self) -> None:
        if self.is_forsaken:
            self.refuse()
        self.entries.append((get_ident(), sys._getframe(1)))

    def __exit__(self, *_: object) -> None:
        self.entries.remove((get_ident(), sys._getframe(1)))

    def refuse(self) -> NoReturn:
        """Raise the error for a thread of a forked child."""
        raise NotInitializedError("an operation of the job that this process was forked from")

    def here(self) -> bool:
        """True if the calling thread is inside."""
        if not self.entries:
            return False
        me = get_ident()
        entries = [entry for entry in self.entries.copy() if entry[0] == me]
        stack = [frame for frame, _ in walk_stack(sys._getframe())] if entries else []
        left = [entry for entry in entries if entry[1] not in stack]
        for entry in left:
            with contextlib.suppress(ValueError):  # a handler on top of this frame has removed it
                self.entries.remove(entry)
        return len(left) < len(entries)
