"""Optimizers that share parameters, so that each of them reduces the same gradients.

siblings = SharedParameters(self, living)           # of each optimizer
siblings.find()
"""

# All references are weak, so that siblings do not keep each other alive. This alone does not make ranks agree: an
# optimizer in a reference cycle (with its scheduler) is freed on each rank whenever its garbage collector runs. Ranks
# that disagreed would overlap or refuse differently in the same step. So if siblings are found, the collector runs, and
# the search is repeated: the siblings found then are reachable from the script, and so on all ranks. A collection takes
# 0.2 s, so it must not run in every step.
#
# Every step calls ``find``, so the answer is kept until an owner is made or freed. A finalizer reports this on any
# thread, in the middle of any code: it only increments a counter, and takes no lock that its thread might hold.

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterable
from typing import Generic, Protocol, TypeVar, final

from farandole.gradients.tensors import Param


class Owner(Protocol):
    """Owner of some parameters."""

    params: Callable[[], list[Param]]


AnOwner = TypeVar("AnOwner", bound=Owner)


@final
class SharedParameters(Generic[AnOwner]):
    """Other owners in ``living`` that share parameters with ``owner``.

    The garbage collector frees unreachable owners at another time on each rank. So it runs if there seem to be
    siblings: once, because the search is repeated only after an owner was made or freed.
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
        """Note that an owner was made or freed, or that its parameters changed."""
        SharedParameters._changes += 1

    def find(self) -> list[AnOwner]:
        """The other owners, in the order of ``living``. Called in every step."""
        if self._seen != SharedParameters._changes:
            if self._look():
                gc.collect()
            seen = SharedParameters._changes  # after the collection, which counts the owners that it frees
            self._found = list(map(weakref.ref, self._look()))
            self._seen = seen  # the next call sees a change that another thread made since
        return [each for each in (found() for found in self._found) if each is not None] if self._found else []

    def _look(self) -> list[AnOwner]:
        owner = self._owner()
        if owner is None:
            return []
        mine = set(map(id, owner.params()))
        return [o for o in self._living() if o is not owner and not mine.isdisjoint(map(id, o.params()))]


def superseded(newer: AnOwner, others: Iterable[AnOwner], is_of_past: Callable[[AnOwner], bool]) -> list[AnOwner]:
    """Owners among ``others`` all of whose parameters ``newer`` has; a part suffices for those of a past session.

    Two owners that share some parameters in one session may both be in use. A superseded owner that is used after all
    would reduce gradients only in ``step()``, after the script has clipped them.
    """
    mine, found = set(map(id, newer.params())), []
    for other in others:
        theirs = set(map(id, other.params()))
        if other is not newer and not mine.isdisjoint(theirs) and (theirs <= mine or is_of_past(other)):
            found.append(other)
    return found
