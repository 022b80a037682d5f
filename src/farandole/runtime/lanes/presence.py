"""Which threads are in the middle of something, so that a signal handler can know what it has interrupted.

presence = Presence()
with presence:
    ...                     # here, presence.here() is true in this thread
"""

from __future__ import annotations

import threading
from typing import final


@final
class Presence:
    """Entered and left by any thread, several times too; needs no lock."""

    __slots__ = ("_threads",)

    def __init__(self) -> None:
        self._threads: list[int] = []

    def __enter__(self) -> None:
        self._threads.append(threading.get_ident())

    def __exit__(self, *_: object) -> None:
        self._threads.remove(threading.get_ident())

    def here(self) -> bool:
        """True if the calling thread has entered and not left."""
        return threading.get_ident() in self._threads
