"""Interface of checkpoints to a framework: the format of the files that hold its tensors.

>>> tree, tensors = take_apart({"step": 3, "weights": tensor}, codec.adapter)
>>> tree
{'step': 3, 'weights': {'farandole.tensor': 0}}
>>> put_together(tree, dict(enumerate(tensors))) == {"step": 3, "weights": tensor}
True
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO

from farandole.errors import UsageError
from farandole.runtime.collectives.adapter import TensorAdapter

PLACEHOLDER = "farandole.tensor"
"""The key of the dict that stands for a tensor in a tree without its tensors; its value is the tensor's number."""

PLAIN = (type(None), bool, int, float, complex, str, bytes)


class Codec(ABC):
    """File format for the tensors of ``adapter``, which are in host memory."""

    def __init__(self, adapter: TensorAdapter[Any]) -> None:
        self.adapter = adapter

    @abstractmethod
    def dump(self, content: dict[str, Any], file: BinaryIO) -> None:
        """Write nested dicts, lists and tuples of tensors and plain values."""

    @abstractmethod
    def load(self, file: BinaryIO) -> dict[str, Any]:
        """Read what ``dump`` has written, running no code from the file; raises whatever where it cannot."""


def take_apart(tree: Any, adapter: TensorAdapter[Any]) -> tuple[Any, list[Any]]:
    """The tree with placeholders for its tensors, and the tensors. Raises ``UsageError`` for what cannot be kept."""
    tensors: list[Any] = []

    def walk(node: Any, path: str) -> Any:
        if adapter.is_tensor(node):
            tensors.append(node)
            return {PLACEHOLDER: len(tensors) - 1}
        if isinstance(node, dict):
            return {_key(key, path): walk(value, f"{path}[{key!r}]") for key, value in node.items()}
        if isinstance(node, list | tuple):
            children = [walk(value, f"{path}[{i}]") for i, value in enumerate(node)]
            return children if isinstance(node, list) else tuple(children)
        if isinstance(node, PLAIN):
            return node
        raise UsageError(
            f"{path} is a {type(node).__name__}: a checkpoint holds tensors, numbers, strings, None, and dicts, lists "
            "and tuples of them, so that it can be read without running code; give the object's state_dict() instead"
        )

    return walk(tree, "state"), tensors


def put_together(tree: Any, tensors: Mapping[int, Any]) -> Any:
    """The tree with its tensors in the place of their placeholders."""
    if isinstance(tree, dict):
        if tree.keys() == {PLACEHOLDER}:
            return tensors[tree[PLACEHOLDER]]
        return {key: put_together(value, tensors) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)(put_together(value, tensors) for value in tree)
    return tree


def share_out(sizes: Sequence[int], shares: int) -> list[list[int]]:
    """Distribute tensors, by number, over ``shares`` ranks that write them: the largest first, to the rank with least.

    >>> share_out([10, 70, 40, 40], 2)
    [[1, 0], [2, 3]]
    """
    loads, owned = [0] * shares, [list[int]() for _ in range(shares)]
    for number in sorted(range(len(sizes)), key=lambda i: (-sizes[i], i)):
        rank = loads.index(min(loads))
        loads[rank] += sizes[number]
        owned[rank].append(number)
    return owned


def _key(key: Any, path: str) -> Any:
    if not isinstance(key, str | int) or key == PLACEHOLDER:
        raise UsageError(f"{path} has the key {key!r}: the keys of a checkpoint's dicts are strings and whole numbers")
    return key
