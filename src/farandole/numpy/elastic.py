"""Elastic training with NumPy: workers come and go, the training does not stop.

weights, velocity = {"w": np.zeros(3)}, {}
state = NumpyState(weights=weights, velocity=velocity, step=0)

@run
def train(state):
    for state.step in range(state.step, 1000):
        ...                         # changes weights["w"], with the gradient of all ranks
        state.commit()

train(state)
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Mapping
from typing import Any, ClassVar, final

import numpy as np

from farandole.adapters.numpy import adapter
from farandole.elastic.worker.epoch_sampler import EpochSampler as ElasticSampler
from farandole.elastic.worker.run import run
from farandole.elastic.worker.state import ObjectState, State
from farandole.elastic.worker.state_parts import HandlerRegistry, RandomPart, ReplaceablePart, random_parts
from farandole.errors import HorovodInternalError, HostsUpdatedInterrupt, UsageError
from farandole.largebatch.report import report
from farandole.runtime.collectives.leaves import Leaves

__all__ = [
    "ElasticSampler",
    "HorovodInternalError",
    "HostsUpdatedInterrupt",
    "NumpyState",
    "ObjectState",
    "State",
    "report",
    "run",
]


@final
class ArraysPart(ReplaceablePart):
    """An array, or dicts and lists of arrays and other values; all of them stay the objects that they are."""

    def tree(self) -> Any:
        """See ``StatePart``."""
        return self.value

    def load(self, tree: Any) -> None:
        """See ``StatePart``; raises ``UsageError`` for an array of another shape or dtype than the registered one."""
        # Copied, as it may hold arrays of ``value`` elsewhere than this does, and is then overwritten as it is read.
        if _filled(self.value, copy.deepcopy(tree)) is not self.value:
            raise UsageError(
                f"the state of the job has {_words(tree)} where this worker has {_words(self.value)}: every worker "
                "must run the same script; keep an array that is replaced by others in a dict"
            )


@final
class ArrayGeneratorPart(ReplaceablePart):
    """A ``numpy.random.Generator`` of the script's own, the same on all ranks."""

    def tree(self) -> Any:
        """See ``StatePart``; bytes, as there are generators with an array in their state."""
        return pickle.dumps(self.value.bit_generator.state)

    def load(self, tree: Any) -> None:
        """See ``StatePart``."""
        self.value.bit_generator.state = pickle.loads(tree)  # noqa: S301 (a member's)


def _filled(old: Any, new: Any) -> Any:
    """``new``, in the arrays, dicts and lists of ``old`` where they fit."""
    if isinstance(old, np.ndarray) and isinstance(new, np.ndarray):
        if (old.shape, old.dtype) != (new.shape, new.dtype):
            return new
        old[...] = new
        return old
    if isinstance(old, dict) and isinstance(new, Mapping):
        content = {key: _filled(old.get(key), value) for key, value in new.items()}
        old.clear()
        old.update(content)
        return old
    if isinstance(old, list) and isinstance(new, list):
        known = [*old, *[None] * len(new)]
        old[:] = [_filled(*pair) for pair in zip(known, new, strict=False)]
        return old
    return new


def _words(value: Any) -> str:
    is_array = isinstance(value, np.ndarray)
    return f"an array of {value.dtype} with shape {value.shape}" if is_array else f"a {type(value).__name__}"


registry = HandlerRegistry(
    [(np.ndarray, ArraysPart), (dict, ArraysPart), (list, ArraysPart), (np.random.Generator, ArrayGeneratorPart)]
)
"""Classes of values with their handlers; put those of your own first: ``registry.replace([..., *registry.table])``."""


class NumpyState(ObjectState):
    """Training state of NumPy arrays; its values are attributes.

    >>> state = NumpyState(weights={"w": w, "b": b}, velocity={}, rng=np.random.default_rng(7), epoch=0)

    Arrays, and dicts and lists of them, are saved, restored and received in place: whoever refers to ``w`` sees its new
    values. A dict may get and lose keys between commits, and an attribute another array; ``restore`` goes back to the
    one that was there. Generators, samplers, and everything with ``state_dict`` and ``load_state_dict`` are kept by
    these, other values by pickling them; the global random generators of Python and NumPy are always part of it.
    ``commit`` copies everything, and a fault goes back to the last one.
    """

    _leaves: ClassVar[Leaves[Any]] = Leaves(adapter)
    _registry: ClassVar[HandlerRegistry] = registry

    def _generators(self) -> dict[str, RandomPart]:
        return random_parts()
