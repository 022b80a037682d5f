"""Parts of a state: registered values, each with a handler that can save, restore and send it.

    class Averages(StatePart):
        def tree(self):
            return self.value.numbers           # nested dicts, lists and tuples, with the framework's tensors in them
        def load(self, tree):
            self.value.numbers = tree

Framework modules have parts for their models and optimizers, in a ``HandlerRegistry``.
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
    """Handler that saves, restores and synchronizes one registered value; the interface is Horovod's."""

    def __init__(self, value: Any) -> None:
        self.value = value

    @abstractmethod
    def save(self) -> None:
        """Save the current value."""

    @abstractmethod
    def restore(self) -> None:
        """Restore the value that was saved last."""

    @abstractmethod
    def sync(self) -> None:
        """Copy the value of rank 0 to every rank. Collective."""

    def set_value(self, value: Any) -> None:
        """Replace the value by another object, registered under the same name, and save it."""
        self.value = value
        self.save()


class StatePart(StateHandler):
    """Handler for a value whose whole content is a tree; the state sends all its parts together.

    By default, ``state_dict`` of the value returns the tree and ``load_state_dict`` takes it; subclasses may differ.

    ``votes``: its tensors change only in voted steps, so no copy of them is needed. ``is_copied``: its tree consists of
    copies, for tensors that cannot change; received tensors are then loaded. ``is_private``: ranks may differ in it,
    and a new rank keeps its own. ``is_condition``: it holds nothing to save, and its ``load`` checks whether the job's
    tensors fit this rank. ``is_fixed``: it consists of tensors that the program determines, so other tensors mean
    another program.
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
        """The content: nested dicts, lists and tuples of tensors, not copied, and of objects that can be pickled."""
        return self.value.state_dict()

    def load(self, tree: Any) -> None:
        """Load a tree, and take ownership of it."""
        self.value.load_state_dict(tree)

    def own_tensors(self) -> set[int]:
        """Tensors of the tree, by ``id``, that may differ between ranks (statistics of their own batches)."""
        return set()

    def before_change(self) -> None:
        """Gather what is distributed over the ranks, before a change of workers. Collective."""

    def abandon(self) -> None:
        """Undo what an interrupted step has changed in other parts; called before any part is restored."""

    def begin_anew(self, name: str) -> None:
        """Drop data of an unfinished step, when a generation begins. ``name``: the registered name."""

    def agree(self) -> None:
        """Agree with the same part of the other ranks, after the state was synchronized. Collective."""

    def save(self) -> None:
        """See ``StateHandler``."""
        if not (self.votes and self.is_fixed):
            self._saved = copy.deepcopy(self.tree())

    def restore(self) -> None:
        """See ``StateHandler``."""
        if self._saved is not None and not (self.votes and self.is_fixed):
            self.load(copy.deepcopy(self._saved))

    def sync(self) -> None:
        """Do nothing: ``state_sync.synchronize`` sends all parts together."""


class ReplaceablePart(StatePart):
    """Part whose value scripts replace by another object, such as an array, without a commit and without a copy.

    ``restore`` returns to the object of the last ``save``, with the content that it had then.
    """

    def __init__(self, value: Any) -> None:
        super().__init__(value)
        self._saved_value = value

    def set_value(self, value: Any) -> None:
        """See ``StateHandler``; does not save, because a fault would then leave half of a step."""
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
    """Error that names the entry of ``values`` on which ``keep`` fails (with ``error``), and what to do about it."""
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
        """True if no parameter changes before its steps are voted, and all ranks take part in the vote."""
        return self.voter is not None and self.voter.is_global

    def begin_anew(self, name: str) -> None:
        """See ``StatePart``."""
        if self.voter is not None:
            self.voter.rejoin(f"optimizer.{name}")


@final
class RandomPart(StatePart):
    """A global random generator, by functions that get and set its state.

    A step that is computed again draws the same numbers again. If ranks are seeded differently, a new worker keeps its
    own seed. ``encode`` converts a state to bytes, the same for equal states, and ``decode`` converts them back.
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
        """See ``StatePart``; bytes, because tensors would be taken for tensors that are equal on all ranks."""
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
    """Parts for the global generators of Python, and of NumPy if it is loaded; no registered value has such a name."""
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
    """Table of value classes and their handlers, to which a script may add its own."""

    def __init__(self, table: HandlerTable) -> None:
        self.table = table

    def replace(self, table: Iterable[tuple[type[Any], type[StateHandler]]]) -> None:
        """Replace the table, for states that are created later."""
        self.table[:] = list(table)

    def handler_for(self, value: Any) -> StateHandler | None:
        """Create the handler of ``value``, for the first class that fits; ``None`` if ``value`` must be pickled."""
        for kind, handler in self.table:
            if isinstance(value, kind):
                return handler(value)
        return next((kind(value) for kind in (SamplerPart, StatefulPart) if kind.fits(value)), None)
