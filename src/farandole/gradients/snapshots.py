"""Snapshots of an optimizer's step: digests of parameters and gradients, complete or of parts.

    snapshots = StepSnapshots(tensors)
    if snapshots.is_due():
        snapshot = snapshots.digest(lambda: [("fc.weight", model.fc.weight)])

By default the first steps are sampled, then every 16th (every 64th for small models, whose steps are short). Of large
tensors each snapshot covers a different part: a difference in a gradient becomes a difference in the parameter, and
stays there until a snapshot covers its part.
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
"""Number of first steps that are all sampled, because most faults show at once."""

EVERY, EVERY_OF_SMALL = 16, 64
SAMPLE_BYTES = 2**16
"""Bytes of one tensor in one snapshot."""

PARTS = 8
"""Number of ranges in which these bytes lie."""


@final
class StepSnapshots(Generic[T]):
    """Snapshots of one optimizer; all ranks that begin together choose the same steps."""

    def __init__(self, tensors: Tensors[T]) -> None:
        self._tensors = tensors
        self._steps = self._taken = 0
        self._every = EVERY

    def is_due(self) -> bool:
        """Count a step; True if the step needs a snapshot."""
        self._steps += 1
        return _is_due(self._steps, self._every)

    def digest(self, named: Callable[[], Named]) -> StepDigests | None:
        """Snapshot of this step; ``None`` if there is nothing to compare, or no other rank."""
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
    """Reduced gradients that a script keeps: checks that no later reduction overwrites their memory."""

    def __init__(self, tensors: Tensors[T]) -> None:
        self._tensors = tensors
        self._runs, self._every = 0, EVERY
        self._reduced: list[tuple[str, Param, weakref.ref[Any]]] = []
        self._kept: list[tuple[str, T, int]] = []
        self.begun = False
        """True after ``begin``; an overlapped backward pass calls it before the reduction."""

    def begin(self) -> None:
        """Before buckets are written: digest the last reduction's results that live on but are gradients no more."""
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
        """After the reduction: raise ``DivergenceError`` if it has overwritten a kept gradient."""
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
        """Gradients that a reduction has produced, if the next reduction checks them."""
        mode = current("the reduction of gradients").settings.check_divergence
        found = [] if mode == "off" else named()
        if found:
            self._every = _every(mode, found, self._tensors)
        # Weak references: only the script's references may keep a gradient alive here.
        there = ((name, param, self._tensors.gradient(param)) for name, param in found)
        return [(name, param, weakref.ref(grad)) for name, param, grad in there if grad is not None]


def sample_ranges(count: int, nbytes: int, turn: int) -> list[range]:
    """Sampled ranges of the ``count`` rows or elements of a tensor in a ``turn``; the turns together cover all.

    >>> sample_ranges(2**20, 2**22, turn=1)[:2]
    [range(2048, 4096), range(133120, 135168)]
    """
    section = -(-count // PARTS)
    each = max(1, SAMPLE_BYTES * count // (nbytes * PARTS))
    start = turn % -(-section // each) * each
    return [range(first + start, min(first + start + each, first + section)) for first in range(0, count, section)]


def _is_due(number: int, every: int) -> bool:
    """True for the steps and reductions that are sampled."""
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
