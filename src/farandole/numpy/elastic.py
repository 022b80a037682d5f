"""Elastic training with NumPy: workers join and leave while the training continues.

weights, velocity = {"w": np.zeros(3)}, {}
state = NumpyState(weights=weights, velocity=velocity, step=0)

@run
def train(state):
    while state.step < 1000:
        ...                         # changes weights["w"], with the gradient of all ranks
        state.step += 1
        state.commit()

train(state)
"""

from __future__ import annotations

import copy
import itertools
import pickle
import weakref
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, final

import numpy as np

from farandole.adapters.numpy import adapter
from farandole.elastic.worker.epoch_sampler import EpochSampler as ElasticSampler
from farandole.elastic.worker.run import run
from farandole.elastic.worker.state import ObjectState, State
from farandole.elastic.worker.state_parts import HandlerRegistry, ReplaceablePart, StatePart, random_parts
from farandole.errors import HorovodInternalError, HostsUpdatedInterrupt, UsageError
from farandole.largebatch.report import report
from farandole.runtime.collectives.leaves import Leaves, replace

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
    """An array, or dicts and lists of arrays and other values; all of them keep their identity.

    Read-only arrays, such as NumPy views of JAX arrays, are replaced by writable ones.
    """

    def __init__(self, value: Any) -> None:
        super().__init__(value)
        self._places = _places(value)

    def tree(self) -> Any:
        """See ``StatePart``."""
        self.is_copied = any(_is_fixed(array) for _, array in _named("", self.value))
        return replace(self.value, _is_fixed, np.array) if self.is_copied else self.value

    def save(self) -> None:
        """See ``StateHandler``."""
        super().save()
        self._places = _places(self.value)

    def restore(self) -> None:
        """See ``StateHandler``; restores each array at its old place, even if the script has moved it since."""
        self.value = _put_back(self._places, copy.deepcopy(self._saved))

    def load(self, tree: Any) -> None:
        """See ``StatePart``; raises ``UsageError`` for an array of another shape or dtype than the registered one."""
        # A copy, because ``tree`` may hold arrays of ``value`` at other places, and would change while it is read.
        mine, self.value = self.value, _filled(self.value, copy.deepcopy(tree))
        if self.value is not mine and not (_is_read_only(mine) and _is_like(mine, self.value)):
            self.value = mine
            raise UsageError(
                f"the state of the job has {_words(tree)} where this worker has {_words(self.value)}: every worker "
                "must run the same script; keep an array that is replaced by others in a dict"
            )


@final
class ArrayGeneratorPart(ReplaceablePart):
    """A ``numpy.random.Generator`` of the script, the same on all ranks."""

    def tree(self) -> Any:
        """See ``StatePart``; pickled, because some generators have an array in their state."""
        return pickle.dumps(self.value.bit_generator.state)

    def load(self, tree: Any) -> None:
        """See ``StatePart``."""
        self.value.bit_generator.state = pickle.loads(tree)  # noqa: S301 (from a member of the job)


@final
class TiesPart(StatePart):
    """Pairs of arrays of a state that share memory: they cannot take the values of arrays that do not.

    Example: the script begins with one array for two values, and separates them later: ``NumpyState(w=w, best=w)``.
    """

    is_private: ClassVar[bool] = True
    is_condition: ClassVar[bool] = True

    def __init__(self, state: ObjectState) -> None:
        super().__init__(None)
        self._state = weakref.ref(state)

    def tree(self) -> Any:
        """See ``StatePart``."""
        state = self._state()
        parts = state._parts if state is not None else {}
        owners: dict[int, list[tuple[str, Any]]] = {}
        for name, part in parts.items():
            arrays = _named(name, part.value) if isinstance(part, ArraysPart) else ()
            for path, array in ((path, array) for path, array in arrays if array.flags.writeable):
                owners.setdefault(id(_owner(array)), []).append((path, array))
        pairs = (pair for group in owners.values() for pair in itertools.combinations(group, 2))
        return sorted(" and ".join(sorted((one, other))) for (one, a), (other, b) in pairs if np.shares_memory(a, b))

    def load(self, tree: Any) -> None:
        """See ``StatePart``; raises ``UsageError`` for arrays that share memory here but not in ``tree``."""
        if wrong := [pair for pair in self.tree() if pair not in tree]:
            raise UsageError(
                f"{wrong[0]} lie in the same memory on this worker, and not in the state that it is to go on from: "
                "begin with a copy of one of them, x.copy()"
            )

    def save(self) -> None:
        """See ``StateHandler``; nothing to save."""

    def restore(self) -> None:
        """See ``StateHandler``; nothing to do: ``ArraysPart`` restores arrays at their old places."""


def _named(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Arrays of ``value`` with their paths, in the order of names, which is the same on all ranks."""
    if isinstance(value, np.ndarray):
        yield path, value
    elif isinstance(value, dict | list | tuple):
        pairs = value.items() if isinstance(value, dict) else enumerate(value)
        for key, each in sorted(pairs, key=lambda pair: str(pair[0])):
            yield from _named(f"{path}.{key}", each)


def _owner(array: Any) -> Any:
    """Object that owns the memory of an array."""
    while isinstance(array, np.ndarray) and array.base is not None:
        array = array.base
    return array


def _places(value: Any) -> Any:
    """``value`` and its parts: the objects that ``_put_back`` writes into."""
    if isinstance(value, dict):
        return value, {key: _places(each) for key, each in value.items()}
    if isinstance(value, list):
        return value, list(map(_places, value))
    return value, None


def _put_back(places: Any, saved: Any) -> Any:
    """Write ``saved`` back into the objects of ``places``, from which it was copied."""
    value, parts = places
    if isinstance(value, dict):
        content = {key: _put_back(parts[key], each) for key, each in saved.items()}
        value.clear()
        value.update(content)
        return value
    if isinstance(value, list):
        value[:] = map(_put_back, parts, saved)
        return value
    return _filled(value, saved)


def _filled(old: Any, new: Any) -> Any:
    """``new``, written into the arrays, dicts and lists of ``old`` where they match."""
    if isinstance(old, np.ndarray) and isinstance(new, np.ndarray):
        if not _is_like(old, new) or _is_read_only(old):
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


def _is_read_only(value: Any) -> bool:
    return isinstance(value, np.ndarray) and not value.flags.writeable


def _is_fixed(value: Any) -> bool:
    """True for a read-only array that would be received in place."""
    return _is_read_only(value) and adapter.is_tensor(value)


def _is_like(one: Any, other: Any) -> bool:
    return isinstance(other, np.ndarray) and (one.shape, one.dtype) == (other.shape, other.dtype)


def _words(value: Any) -> str:
    is_array = isinstance(value, np.ndarray)
    return f"an array of {value.dtype} with shape {value.shape}" if is_array else f"a {type(value).__name__}"


registry = HandlerRegistry(
    [(np.ndarray, ArraysPart), (dict, ArraysPart), (list, ArraysPart), (np.random.Generator, ArrayGeneratorPart)]
)
"""Classes of values with their handlers; put your own first: ``registry.replace([..., *registry.table])``."""


class NumpyState(ObjectState):
    """Training state of NumPy arrays; its values are attributes.

    >>> state = NumpyState(weights={"w": w, "b": b}, velocity={}, rng=np.random.default_rng(7), epoch=0)

    Arrays, and dicts and lists of them, are saved, restored and received in place: other references to ``w`` see its
    new values. Between commits a dict may get and lose keys, and an attribute may get another array; ``restore`` brings
    the old array back. A read-only array is replaced by a writable one. Generators, samplers, and all objects with
    ``state_dict`` and ``load_state_dict`` are saved by these, other values by pickle; the global random generators of
    Python and NumPy are always included. Begin with separate arrays for values that will differ, ``best=w.copy()``: a
    worker raises ``UsageError`` if it has one array and the state that it receives has two. ``commit`` copies
    everything, and after a fault the state goes back to the last commit.
    """

    _leaves: ClassVar[Leaves[Any]] = Leaves(adapter)
    _registry: ClassVar[HandlerRegistry] = registry

    def _generators(self) -> Mapping[str, StatePart]:
        return {**random_parts(), "numpy.shared": TiesPart(self)}
