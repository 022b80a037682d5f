"""Nested containers with and without their tensors, for every framework.

leaves = Leaves(adapter)
skeleton, tensors = leaves.flatten(optimizer.state_dict())  # the skeleton can be pickled and compared
tree, tensors = leaves.put(skeleton, ())                    # elsewhere: with new tensors, yet to be filled
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar, final

from farandole.collective import Array
from farandole.runtime.collectives.adapter import TensorAdapter, TensorSpec

T = TypeVar("T")


def replace(tree: Any, matches: Callable[[Any], bool], change: Callable[[Any], Any]) -> Any:
    """A copy of nested dicts, lists and tuples, with ``change`` applied to each node that ``matches``, in order.

    >>> replace({"a": [1, 2.5], "b": (3,)}, lambda leaf: isinstance(leaf, int), str)
    {'a': ['1', 2.5], 'b': ('3',)}
    """
    if matches(tree):
        return change(tree)
    if isinstance(tree, dict):
        return {key: replace(value, matches, change) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        children = [replace(value, matches, change) for value in tree]
        return type(tree)(*children) if hasattr(tree, "_fields") else type(tree)(children)
    return tree


@final
class Leaves(Generic[T]):
    """Tensors of a framework in trees: take them out, put them back, access their values in host memory.

    Without an adapter no leaf is a tensor, and trees stay as they are.
    """

    def __init__(self, adapter: TensorAdapter[T] | None = None) -> None:
        self._adapter = adapter

    def flatten(self, tree: Any, in_order: bool = True) -> tuple[Any, list[T]]:
        """The tree with a ``TensorSpec`` for each tensor, to be pickled and compared, and the tensors in order.

        With ``in_order``, specs include the memory order of the elements, for tensors that are made from these specs.
        """
        adapter, tensors = self._adapter, list[T]()
        if adapter is None:
            return tree, []

        def note(tensor: T) -> TensorSpec:
            tensors.append(tensor)
            spec = adapter.spec(tensor)
            return spec.packed if in_order else spec.portable

        return replace(tree, adapter.is_tensor, note), tensors

    def put(self, skeleton: Any, tensors: Sequence[T]) -> tuple[Any, list[T]]:
        """The tree of ``skeleton``, with those ``tensors`` that fit and else with new ones; and all its tensors."""
        adapter, at_hand, used = self._adapter, iter(tensors), list[T]()
        if adapter is None:
            return skeleton, []

        def fill(spec: TensorSpec) -> T:
            tensor = next(at_hand, None)
            fits = tensor is not None and adapter.spec(tensor).portable == spec.portable
            used.append(tensor if tensor is not None and fits else adapter.make(spec))
            return used[-1]

        return replace(skeleton, lambda leaf: isinstance(leaf, TensorSpec), fill), used

    def memory(self, tensors: Sequence[T]) -> list[Array]:
        """The values of ``tensors`` as bytes of host memory, of the tensors themselves or of copies."""
        return [self._adapter.host_bytes(tensor) for tensor in tensors] if self._adapter else []

    def layout(self, tensors: Sequence[T]) -> str:
        """Shapes and dtypes of ``tensors`` in order; equal bytes mean equal values only if layouts are equal."""
        return repr([self._adapter.spec(tensor).portable for tensor in tensors]) if self._adapter else ""

    def written(self, tensors: Sequence[T], memory: Sequence[Array]) -> None:
        """Set ``tensors`` to the values in their ``memory``, which has been written."""
        for tensor, array in zip(tensors, memory, strict=True):
            if self._adapter and array.owner is tensor:
                self._adapter.written(tensor)
            elif self._adapter:
                self._adapter.assign(tensor, array.owner)
