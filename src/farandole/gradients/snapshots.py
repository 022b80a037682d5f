"""Snapshots of what an optimizer steps with: parameters and gradients, all of them or a part.

    snapshots = StepSnapshots(tensors)
    if snapshots.is_due():
        snapshot = snapshots.take(lambda: [("fc.weight", model.fc.weight)])

By default the first steps are looked at, then every sixteenth (of small models, whose steps are short, every 64th), and
of large tensors a part, another one each time: a difference in a gradient becomes one in the parameter, and stays there
until its part is looked at.
"""

from __future__ import annotations

import platform
import weakref
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Generic, TypeAlias, final

from farandole.errors import DivergenceError
from farandole.gradients.tensors import Param, T, Tensors
from farandole.runtime.collectives.divergence import OF_GRADIENT, StepDigests
from farandole.runtime.session.init import current

Named: TypeAlias = Sequence[tuple[str, Param]]

FIRST_STEPS = 8
"""So many are all looked at: what goes wrong mostly goes wrong at once."""

EVERY, EVERY_OF_SMALL = 16, 64
SAMPLE_BYTES = 2**16
"""Of one tensor, in one snapshot."""

PARTS = 8
"""In so many places."""


@final
class StepSnapshots(Generic[T]):
    """Chooses the steps of one optimizer, alike on all ranks that begin together."""

    def __init__(self, tensors: Tensors[T]) -> None:
        self._tensors = tensors
        self._steps = self._taken = 0
        self._every = EVERY

    def is_due(self) -> bool:
        """Count a step; True if a snapshot of it is to be taken."""
        self._steps += 1
        return _is_due(self._steps, self._every)

    def take(self, named: Callable[[], Named]) -> StepDigests | None:
        """The snapshot of this step; ``None`` if there is nothing to compare, or nobody to compare it with."""
        mode = current("step()").settings.check_divergence
        found = [] if mode == "off" else named()
        if not found:
            return None
        self._every = _every(mode, found, self._tensors)
        names = tuple(title for name, _ in found for title in (name, OF_GRADIENT + name))
        tensors = [tensor for _, param in found for tensor in (param, self._tensors.gradient(param))]
        turn, self._taken = self._taken, self._taken + 1
        if mode != "every-step":
            tensors = [each if each is None else self._tensors.sample(each, turn) for each in tensors]
        return StepDigests(self._steps - 1, names, self._tensors.digests(tensors), self._tensors.processor(found[0][1]))


@final
class KeptGradients(Generic[T]):
    """Reduced gradients that a script has kept aside: no reduction may write into their memory."""

    def __init__(self, tensors: Tensors[T]) -> None:
        self._tensors = tensors
        self._runs, self._every = 0, EVERY
        self._reduced: list[tuple[str, Param, weakref.ref[Any]]] = []
        self._kept: list[tuple[str, T, int]] = []
        self.begun = False
        """By a backward pass, as it overlaps with the reduction."""

    def begin(self) -> None:
        """Buckets are about to be written: look at what is left of the last reduction and is no gradient any more."""
        self.begun = True
        if not self._reduced:
            return
        alive = [(name, param, grad()) for name, param, grad in self._reduced]
        kept = [
            (name, grad)
            for name, param, grad in alive
            if grad is not None and grad is not self._tensors.gradient(param)
        ]
        found = self._tensors.digests([grad for _, grad in kept]) if kept else []
        self._kept = [(name, grad, digest) for (name, grad), digest in zip(kept, found, strict=True)]

    def end(self, named: Callable[[], Named]) -> None:
        """The reduced gradients are there. Raises ``DivergenceError`` if getting there has changed what was kept."""
        kept, self._kept = self._kept, []
        self.begun = False
        self._runs += 1
        self._reduced = self._left(named) if _is_due(self._runs, self._every) else []
        if not kept:
            return
        now = self._tensors.digests([grad for _, grad, _ in kept])
        changed = [name for (name, _, before), after in zip(kept, now, strict=True) if after != before]
        if changed:
            raise DivergenceError(
                f"the gradient of {changed[0]!r} that was kept from an earlier backward pass has been overwritten by "
                "the reduction of this one, a fault in Farandole: keep param.grad.clone(), and report it"
            )

    def _left(self, named: Callable[[], Named]) -> list[tuple[str, Param, weakref.ref[Any]]]:
        """The gradients that a reduction has left, if they are to be looked at when the next one begins."""
        mode = current("the reduction of gradients").settings.check_divergence
        found = [] if mode == "off" else named()
        if found:
            self._every = _every(mode, found, self._tensors)
        # Weak: it is to find out what the script keeps, which it could not if it kept gradients itself.
        there = ((name, param, self._tensors.gradient(param)) for name, param in found)
        return [(name, param, weakref.ref(grad)) for name, param, grad in there if grad is not None]


def sample_ranges(count: int, nbytes: int, turn: int) -> list[range]:
    """Ranges of the ``count`` rows or elements of a tensor that are looked at in a ``turn``; all are in some turn.

    >>> sample_ranges(2**20, 2**22, turn=1)[:2]
    [range(2048, 4096), range(133120, 135168)]
    """
    section = -(-count // PARTS)
    each = max(1, SAMPLE_BYTES * count // (nbytes * PARTS))
    start = turn % -(-section // each) * each
    return [range(first + start, min(first + start + each, first + section)) for first in range(0, count, section)]


def _is_due(number: int, every: int) -> bool:
    """True for the steps and reductions that are looked at."""
    return number <= FIRST_STEPS or number % every == 0


def _every(mode: str, named: Named, tensors: Tensors[T]) -> int:
    """Number of steps from one snapshot to the next, the same on all ranks."""
    if mode == "every-step":
        return 1
    is_small = all(tensors.adapter.spec(param).nbytes <= SAMPLE_BYTES for _, param in named)
    return EVERY_OF_SMALL if is_small else EVERY


@cache
def processor_model() -> str:
    """Model of the processors of this host."""
    with open("/proc/cpuinfo") as file:
        model = next((line.partition(":")[2].strip() for line in file if line.startswith("model name")), "")
    return model or platform.machine()
