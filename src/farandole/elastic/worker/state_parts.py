"""Parts of a state: registered values, each with a handler that can keep it, restore it and hand it over.

    class Averages(StatePart):
        def tree(self):
            return self.value.numbers           # nested dicts, lists and tuples, with the framework's tensors in them
        def load(self, tree):
            self.value.numbers = tree

Frameworks bring parts for their models and optimizers, and ``Leaves`` for their tensors.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Generic, TypeVar, final

from farandole.collective import Array
from farandole.elastic.worker.sampler import SampleCursor
from farandole.errors import UsageError

T = TypeVar("T")


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
    ``is_private`` says that ranks may differ in it: one that comes anew then keeps its own. ``is_fixed`` says that the
    program decides which tensors there are: where they differ, it is another program.
    """

    is_private: ClassVar[bool] = False
    is_fixed: ClassVar[bool] = False
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

    def save(self) -> None:
        """See ``StateHandler``."""
        self._saved = copy.deepcopy(self.tree())

    def restore(self) -> None:
        """See ``StateHandler``."""
        if self._saved is not None:
            self.load(copy.deepcopy(self._saved))

    def sync(self) -> None:
        """Do nothing: ``state_sync.synchronize`` hands over all parts together."""


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


class Leaves(ABC, Generic[T]):
    """A framework's tensors: taking them out of a tree, putting them back, their values as host memory."""

    @abstractmethod
    def take(self, tree: Any) -> tuple[Any, list[T]]:
        """The tree with descriptions in the place of its tensors, to be pickled and compared, and these in order."""

    @abstractmethod
    def put(self, skeleton: Any, tensors: Sequence[T]) -> tuple[Any, list[T]]:
        """The tree of ``skeleton``, of those ``tensors`` that fit their place and of new ones; and all these."""

    @abstractmethod
    def memory(self, tensors: Sequence[T]) -> tuple[list[Array], list[T]]:
        """Contiguous host memory with the values of ``tensors``, and what holds it: the tensor itself, or a copy."""

    @abstractmethod
    def written(self, tensors: Sequence[T], held: Sequence[T]) -> None:
        """The memory that ``held`` has been written: give ``tensors`` these values."""


@final
class NoLeaves(Leaves[Any]):
    """Leaves of a state without tensors: everything is pickled."""

    def take(self, tree: Any) -> tuple[Any, list[Any]]:
        """See ``Leaves``."""
        return tree, []

    def put(self, skeleton: Any, tensors: Sequence[Any]) -> tuple[Any, list[Any]]:
        """See ``Leaves``."""
        return skeleton, []

    def memory(self, tensors: Sequence[Any]) -> tuple[list[Array], list[Any]]:
        """See ``Leaves``."""
        return [], []

    def written(self, tensors: Sequence[Any], held: Sequence[Any]) -> None:
        """See ``Leaves``."""
