"""Elastic training with NumPy: workers come and go, the training does not stop.

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
    """An array, or dicts and lists of arrays and other values; all of them stay the objects that they are.

    Arrays that cannot be written, as those that NumPy makes of arrays of JAX, are replaced by others that can.
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
        """See ``StateHandler``; each array where it was, as one that the script has put elsewhere since is in two."""
        self.value = _put_back(self._places, copy.deepcopy(self._saved))

    def load(self, tree: Any) -> None:
        """See ``StatePart``; raises ``UsageError`` for an array of another shape or dtype than the registered one."""
        # Copied, as it may hold arrays of ``value`` elsewhere than this does, and is then overwritten as it is read.
        mine, self.value = self.value, _filled(self.value, copy.deepcopy(tree))
        if self.value is not mine and not (_is_read_only(mine) and _is_like(mine, self.value)):
            self.value = mine
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


@final
class TiesPart(StatePart):
    """Arrays of a state that lie in the same memory, in pairs: they cannot take the values of arrays that do not.

    That of two arrays which the script begins with as one, and lets be two later: ``NumpyState(w=w, best=w)``.
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
        """See ``StatePart``; raises ``UsageError`` for arrays that are one here, and were two there."""
        if wrong := [pair for pair in self.tree() if pair not in tree]:
            raise UsageError(
                f"{wrong[0]} lie in the same memory on this worker, and not in the state that it is to go on from: "
                "begin with a copy of one of them, x.copy()"
            )

    def save(self) -> None:
        """See ``StateHandler``; nothing."""

    def restore(self) -> None:
        """See ``StateHandler``; nothing: arrays go back to where they were."""


def _named(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Arrays of ``value`` by their path, in the order of their names, which is the same on all ranks."""
    if isinstance(value, np.ndarray):
        yield path, value
    elif isinstance(value, dict | list | tuple):
        pairs = value.items() if isinstance(value, dict) else enumerate(value)
        for key, each in sorted(pairs, key=lambda pair: str(pair[0])):
            yield from _named(f"{path}.{key}", each)


def _owner(array: Any) -> Any:
    """The object whose memory an array is a view of."""
    while isinstance(array, np.ndarray) and array.base is not None:
        array = array.base
    return array


def _places(value: Any) -> Any:
    """``value`` itself, and what it consists of: the objects that a ``_put_back`` writes into."""
    if isinstance(value, dict):
        return value, {key: _places(each) for key, each in value.items()}
    if isinstance(value, list):
        return value, list(map(_places, value))
    return value, None


def _put_back(places: Any, saved: Any) -> Any:
    """``saved`` in the objects of ``places``, which are those that it was copied from."""
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
    """``new``, in the arrays, dicts and lists of ``old`` where they fit."""
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
    """True for an array that would be received where it lies, and cannot be written."""
    return _is_read_only(value) and adapter.is_tensor(value)


def _is_like(one: Any, other: Any) -> bool:
    return isinstance(other, np.ndarray) and (one.shape, one.dtype) == (other.shape, other.dtype)


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
    one that was there. An array that cannot be written is replaced by one that can. Generators, samplers, and
    everything with ``state_dict`` and ``load_state_dict`` are kept by these, other values by pickling them; the global
    random generators of Python and NumPy are always part of it. Begin with arrays of their own for values that will
    differ, ``best=w.copy()``: where a worker has one array and the state that it is to go on from has two, it raises
    ``UsageError``. ``commit`` copies everything, and a fault goes back to the last one.
    """

    _leaves: ClassVar[Leaves[Any]] = Leaves(adapter)
    _registry: ClassVar[HandlerRegistry] = registry

    def _generators(self) -> Mapping[str, StatePart]:
        return {**random_parts(), "numpy.shared": TiesPart(self)}
