"""Parts of a state: registered values, each with a handler that can keep it, restore it and hand it over.

    class Averages(StatePart):
        def tree(self):
            return self.value.numbers           # nested dicts, lists and tuples, with the framework's tensors in them
        def load(self, tree):
            self.value.numbers = tree

Frameworks bring parts for their models and optimizers, in a ``HandlerRegistry``.
"""

from __future__ import annotations

import copy
import pickle
import random
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, TypeAlias, final

from farandole.elastic.worker.epoch_sampler import EpochSampler
from farandole.elastic.worker.sampler import SampleCursor
from farandole.elastic.worker.step_vote import Voter
from farandole.errors import UsageError


class StateHandler(ABC):
    """Keeps and hands over one registered value, in a way of its own; the interface is Horovod's."""

    def __init__(self, value: Any) -> None:
        self.value = value

    @abstractmethod
    def save(self) -> None:
        """Remember the value as it is now."""

    @abstractmethod
    def restore(self) -> None:
        """Make the value again what it was when it was last saved."""

    @abstractmethod
    def sync(self) -> None:
        """Make the value on every rank what it is on rank 0. Collective."""

    def set_value(self, value: Any) -> None:
        """Keep another object, registered under the same name, from now on."""
        self.value = value
        self.save()


class StatePart(StateHandler):
    """A handler for a value whose whole content is a tree; the state hands over all its parts together.

    The tree is what ``state_dict`` returns and ``load_state_dict`` takes, where a subclass does not say otherwise.

    ``votes`` says that its tensors change only in steps that are voted, so that no copy of them is needed.
    ``is_copied`` says that its tree is of copies, as for tensors that cannot change: what was received is then loaded.
    ``is_private`` says that ranks may differ in it: one that comes anew then keeps its own. ``is_condition`` says that
    it holds nothing to keep, and that its ``load`` judges whether the job's tensors fit here. ``is_fixed`` says that it
    is tensors, and that the program decides which ones: where they differ, it is another program.
    """

    is_private: ClassVar[bool] = False
    is_condition: ClassVar[bool] = False
    is_fixed: ClassVar[bool] = False
    is_copied: bool = False
    votes: bool = False

    def __init__(self, value: Any) -> None:
        super().__init__(value)
        self._saved: Any = None

    def tree(self) -> Any:
        """The content: nested dicts, lists and tuples of tensors, which are not copied, and of what can be pickled."""
        return self.value.state_dict()

    def load(self, tree: Any) -> None:
        """Load a tree, which is the caller's no more."""
        self.value.load_state_dict(tree)

    def own_tensors(self) -> set[int]:
        """Tensors of the tree, by ``id``, that may differ between ranks (statistics of their own batches)."""
        return set()

    def before_change(self) -> None:
        """Gather what ranks have between them: workers will come or go. Collective."""

    def abandon(self) -> None:
        """Undo what a step that a fault has ended has changed in other parts; before any is restored."""

    def begin_anew(self, name: str) -> None:
        """Forget what belongs to a step under way: a generation begins. ``name`` is the registered one."""

    def agree(self) -> None:
        """Agree with the same part of the other ranks, all of which call this once they have one state."""

    def save(self) -> None:
        """See ``StateHandler``."""
        if not (self.votes and self.is_fixed):
            self._saved = copy.deepcopy(self.tree())

    def restore(self) -> None:
        """See ``StateHandler``."""
        if self._saved is not None and not (self.votes and self.is_fixed):
            self.load(copy.deepcopy(self._saved))

    def sync(self) -> None:
        """Do nothing: ``state_sync.synchronize`` hands over all parts together."""


class ReplaceablePart(StatePart):
    """A part whose value scripts replace by another object, as they do with arrays: no commit, nor a copy.

    ``restore`` goes back to the object that was there when it was last saved, with what it held then.
    """

    def __init__(self, value: Any) -> None:
        super().__init__(value)
        self._saved_value = value

    def set_value(self, value: Any) -> None:
        """See ``StateHandler``; what was saved stays, or a fault would leave half of a step."""
        self.value = value

    def save(self) -> None:
        """See ``StateHandler``."""
        super().save()
        self._saved_value = self.value

    def restore(self) -> None:
        """See ``StateHandler``."""
        self.value = self._saved_value
        super().restore()


def copied(values: dict[str, Any]) -> dict[str, Any]:
    """A deep copy of ``values``; raises ``UsageError`` for one that cannot be copied, by its name."""
    try:
        return copy.deepcopy(values)
    except Exception as error:
        raise unfit(values, copy.deepcopy, error) from error


def unfit(values: Mapping[str, Any], keep: Callable[[Any], object], error: Exception) -> UsageError:
    """An error that names which of a state's ``values`` ``keep`` cannot take (``error``), and what to do about it."""
    for name, value in values.items():
        try:
            keep(value)
        except Exception as own:
            return UsageError(
                f"the state cannot keep its value {name!r}, a {type(value).__name__}: {type(own).__name__}: {own}. "
                "Keep such an object out of the state, or give its class state_dict() and load_state_dict()"
            )
    return UsageError(f"the state cannot keep its values {', '.join(values)}: {type(error).__name__}: {error}")


class OptimizerPart(StatePart):
    """An optimizer, whose steps are voted if all optimizers of the state can do that."""

    @property
    @abstractmethod
    def voter(self) -> Voter | None:
        """Reducer of its gradients; ``None`` if Farandole does not reduce them."""

    @property
    def can_vote(self) -> bool:
        """True if nothing changes before its steps are voted, and all ranks are there to vote."""
        return self.voter is not None and self.voter.is_global

    def begin_anew(self, name: str) -> None:
        """See ``StatePart``."""
        if self.voter is not None:
            self.voter.rejoin(f"optimizer.{name}")


@final
class RandomPart(StatePart):
    """A global random generator, as a function that gets its state and one that sets it.

    A step that is computed again draws the same numbers again. Ranks may be seeded differently: then a worker that
    comes keeps its own seed. ``encode`` and ``decode`` make bytes of a state, the same of equal states, and back.
    """

    is_private: ClassVar[bool] = True

    def __init__(
        self,
        getter: Callable[[], Any],
        setter: Callable[[Any], object],
        encode: Callable[[Any], bytes] = pickle.dumps,
        decode: Callable[[bytes], Any] = pickle.loads,
    ) -> None:
        super().__init__(None)
        self._get, self._set, self._encode, self._decode = getter, setter, encode, decode

    def tree(self) -> Any:
        """See ``StatePart``; bytes, as tensors in it would be taken for some that all ranks share."""
        return self._encode(self._get())

    def load(self, tree: Any) -> None:
        """See ``StatePart``."""
        self._set(self._decode(tree))

    def save(self) -> None:
        """See ``StateHandler``; done after every step, so it copies no more than it must."""
        self._saved = self._get()

    def restore(self) -> None:
        """See ``StateHandler``."""
        self._set(self._saved)


def random_parts() -> dict[str, RandomPart]:
    """Parts for the global generators of Python, and of NumPy where it is loaded; no value has such a name."""
    return {
        "python.random": RandomPart(random.getstate, random.setstate),
        "numpy.random": RandomPart(_numpy_state, _set_numpy_state),
    }


def _numpy_state() -> Any:
    numpy = sys.modules.get("numpy.random")
    return numpy.get_state() if numpy else None


def _set_numpy_state(state: Any) -> None:
    numpy = sys.modules.get("numpy.random")
    if numpy and state is not None:
        numpy.set_state(state)


@final
class StatefulPart(StatePart):
    """A value with ``state_dict`` and ``load_state_dict``: a scheduler, an object of a user's own class."""

    @staticmethod
    def fits(value: Any) -> bool:
        """True if a value can be kept in this way."""
        return callable(getattr(value, "state_dict", None)) and callable(getattr(value, "load_state_dict", None))


@final
class SamplerPart(StatePart):
    """A sampler: a value with a ``cursor``, which moves when steps are voted."""

    @staticmethod
    def fits(value: Any) -> bool:
        """True if a value is a sampler."""
        return isinstance(getattr(value, "cursor", None), SampleCursor)

    def agree(self) -> None:
        """See ``StatePart``."""
        if isinstance(self.value, EpochSampler):
            self.value.agree()


HandlerTable: TypeAlias = list[tuple[type[Any], type[StateHandler]]]


@final
class HandlerRegistry:
    """Classes of values with their handlers, which a script may put its own before."""

    def __init__(self, table: HandlerTable) -> None:
        self.table = table

    def replace(self, table: Iterable[tuple[type[Any], type[StateHandler]]]) -> None:
        """Take another table; for states made from now on."""
        self.table[:] = list(table)

    def handler_for(self, value: Any) -> StateHandler | None:
        """Make the handler of ``value``, of the first class that fits; ``None`` if it is to be pickled."""
        for kind, handler in self.table:
            if isinstance(value, kind):
                return handler(value)
        return next((kind(value) for kind in (SamplerPart, StatefulPart) if kind.fits(value)), None)
