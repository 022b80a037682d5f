"""Interface of checkpoints to a framework: the format of the files that hold its tensors.

>>> tree, tensors = take_apart({"step": 3, "weights": tensor}, codec.adapter)
>>> tree
{'step': 3, 'weights': {'farandole.tensor': "state['weights']"}}
>>> put_together(tree, tensors) == {"step": 3, "weights": tensor}
True
"""

from __future__ import annotations

import importlib
import sys
from abc import ABC, abstractmethod
from collections import Counter, OrderedDict
from collections.abc import Mapping
from typing import Any, BinaryIO

from farandole.errors import UsageError
from farandole.runtime.collectives.adapter import TensorAdapter

PLACEHOLDER = "farandole.tensor"
"""Key of the dict that replaces a tensor in a tree without its tensors; its value is the path of the tensor.

Not a number, as in older files: ranks that each write a share may have their tensors in another order.
"""

VALUE = "farandole.value"
"""Key of the dict that replaces a value that no file format supports; its value is a list of kind and content."""

_OURS = "farandole."
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
        """Read what ``dump`` has written, running no code from the file; raises any exception if it cannot."""


def take_apart(tree: Any, adapter: TensorAdapter[Any]) -> tuple[Any, dict[str, Any]]:
    """The tree with placeholders for its tensors, and the tensors by path.

    Raises ``UsageError`` for values that cannot be saved. All other values are restored with their type: a value that
    files cannot tell apart from another value is replaced by a dict of ``VALUE``, its kind and its content. So the
    checks are for exact classes, and not for their base classes.
    """
    tensors: dict[str, Any] = {}

    def walk(node: Any, path: str) -> Any:
        if adapter.is_tensor(node):
            tensors[path] = node
            return {PLACEHOLDER: path}
        if type(node) is dict:
            return {_key(key, path): walk(value, f"{path}[{key!r}]") for key, value in node.items()}
        if type(node) in (OrderedDict, Counter):
            # With its attributes: a module's ``state_dict()`` has the versions of its parts there.
            content = [walk(dict(node), path), walk(vars(node), f"vars({path})")]
            return {VALUE: [type(node).__name__, *content]}
        if type(node) in (list, tuple):
            return type(node)(walk(value, f"{path}[{i}]") for i, value in enumerate(node))
        if type(node) is bytes and not node:  # torch cannot read empty bytes
            return {VALUE: ["bytes"]}
        if type(node) in PLAIN:
            return node
        if _is_numpy_scalar(node):
            return {VALUE: ["numpy", node.dtype.str, node.tobytes().hex()]}
        if type(node).__module__ == "ml_dtypes":  # numbers of bfloat16 and the like, which NumPy cannot name
            return {VALUE: ["ml_dtypes", type(node).__name__, node.tobytes().hex()]}
        raise UsageError(
            f"{path} is a {type(node).__name__}: a checkpoint holds tensors, numbers, strings, None, and dicts, lists "
            "and tuples of them, and of no class derived from these, so that it can be read without running code; give "
            "the object's state_dict() instead, or dict(), tuple(), int() or str() of it"
        )

    return walk(tree, "state"), tensors


def put_together(tree: Any, tensors: Mapping[Any, Any]) -> Any:
    """The tree with its tensors in the place of their placeholders."""
    if isinstance(tree, dict):
        if tree.keys() == {PLACEHOLDER}:
            return tensors[tree[PLACEHOLDER]]
        if tree.keys() == {VALUE}:
            kind, *content = tree[VALUE]
            return _value(kind, [put_together(each, tensors) for each in content])
        return {key: put_together(value, tensors) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)(put_together(value, tensors) for value in tree)
    return tree


def _value(kind: str, content: list[Any]) -> Any:
    if kind == "bytes":
        return b""
    if kind in ("numpy", "ml_dtypes"):
        dtype = content[0] if kind == "numpy" else getattr(importlib.import_module(kind), content[0])
        return importlib.import_module("numpy").frombuffer(bytes.fromhex(content[1]), dtype)[0]
    made: Any = {"OrderedDict": OrderedDict, "Counter": Counter}[kind](content[0])
    vars(made).update(content[1])
    return made


def _is_numpy_scalar(node: Any) -> bool:
    """True for a number or a time of NumPy; without importing NumPy, because without it there are none."""
    numpy = sys.modules.get("numpy")
    is_its_own = numpy is not None and isinstance(node, numpy.generic) and type(node).__module__ == "numpy"
    return is_its_own and node.dtype.kind in "biufcmM"


def share_out(sizes: Mapping[str, int], shares: int) -> list[list[str]]:
    """Distribute tensors over ``shares`` ranks that write them: the largest first, to the rank with least.

    >>> share_out({"a": 10, "b": 70, "c": 40, "d": 40}, 2)
    [['b', 'a'], ['c', 'd']]
    """
    loads, owned = [0] * shares, [list[str]() for _ in range(shares)]
    for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
        rank = loads.index(min(loads))
        loads[rank] += sizes[name]
        owned[rank].append(name)
    return owned


def _key(key: Any, path: str) -> Any:
    if type(key) not in (str, int, bool) or str(key).startswith(_OURS):
        raise UsageError(
            f"{path} has the key {key!r}: the keys of a checkpoint's dicts are strings and whole numbers, of no class "
            f"derived from these, and none begins with {_OURS!r}"
        )
    return key
