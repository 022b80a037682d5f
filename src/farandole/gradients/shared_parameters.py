"""Optimizers that share parameters, each of which reduces the gradients of these.

siblings = SharedParameters(self, living)           # of each optimizer
siblings.find()
"""

# All references are weak: whoever asks for siblings must not be what keeps them. That alone does not make ranks agree,
# as an optimizer in a cycle (with its scheduler) is gone on each rank when its garbage collector happens to run. Ranks
# that disagreed would overlap or refuse differently in the same step. So where there seem to be siblings, the collector
# runs first: those that are left are in reach of the script, and so they are on all ranks. It takes 0.2 s; not in every
# step, therefore.
#
# Steps ask, so the answer is kept until an owner comes or goes. A finalizer may say so on any thread, in the middle of
# anything: it only counts, and takes no lock that its thread might have.

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar, final

from farandole.gradients.tensors import Param


class Owner(Protocol):
    """The owner of some parameters."""

    params: Callable[[], list[Param]]


AnOwner = TypeVar("AnOwner", bound=Owner)


@final
class SharedParameters(Generic[AnOwner]):
    """Other owners in ``living`` that share parameters with ``owner``.

    One that is out of reach is gone when the garbage collector has run, on each rank at another time: where there seem
    to be some, it runs now. That is once, as they are looked for again only after some have come or gone.
    """

    _changes = 0

    def __init__(self, owner: AnOwner, living: Callable[[], list[AnOwner]]) -> None:
        self._owner, self._living = weakref.ref(owner), living
        self._seen = -1
        self._found: list[weakref.ref[AnOwner]] = []
        weakref.finalize(owner, self.changed).atexit = False  # ``changed`` is static: it does not keep this object
        self.changed()

    @staticmethod
    def changed() -> None:
        """Some owner is new or gone, or has got other parameters."""
        SharedParameters._changes += 1

    def find(self) -> list[AnOwner]:
        """The others, in the order of ``living``. Every step asks."""
        if self._seen != SharedParameters._changes:
            if self._look():
                gc.collect()
            seen = SharedParameters._changes  # after the collection, which counts those that it has freed
            self._found = list(map(weakref.ref, self._look()))
            self._seen = seen  # another thread's change since then is looked at the next time
        return [each for each in (found() for found in self._found) if each is not None] if self._found else []

    def _look(self) -> list[AnOwner]:
        owner = self._owner()
        if owner is None:
            return []
        mine = set(map(id, owner.params()))
        return [o for o in self._living() if o is not owner and not mine.isdisjoint(map(id, o.params()))]
