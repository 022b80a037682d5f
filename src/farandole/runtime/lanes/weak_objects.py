"""Collection of weakly referenced objects that any thread may read while others add to it.

    lanes = WeakObjects()
    lanes.add(lane)
    lanes.living()          # the objects that still exist, in the order in which they were added

Threads. There is no lock, because signal handlers add on top of a thread that reads: single operations on a ``dict``
are atomic under the GIL, and ``list(d.values())`` is one. ``weakref.WeakSet`` is not used, because it cannot be read
while another thread, or a handler, adds to it ("set changed size during iteration").
"""

from __future__ import annotations

import itertools
import weakref
from typing import Generic, TypeVar, final

T = TypeVar("T")


@final
class WeakObjects(Generic[T]):
    """Weakly referenced objects, in the order in which they were added."""

    __slots__ = ("_numbers", "_references")

    def __init__(self) -> None:
        self._references: dict[int, weakref.ref[T]] = {}
        self._numbers = itertools.count()

    def add(self, thing: T) -> None:
        """Add an object that is not in the collection; it is removed when its last reference is dropped."""
        references, number = self._references, next(self._numbers)
        references[number] = weakref.ref(thing, lambda _: references.pop(number, None))

    def living(self) -> list[T]:
        """List the objects that still exist."""
        return [thing for each in list(self._references.values()) if (thing := each()) is not None]
