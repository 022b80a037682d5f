"""Checkpoints of NumPy arrays: ``farandole.checkpoint`` with files of concatenated ``.npy`` records.

with Checkpoints("runs/a") as checkpoints:
    checkpoints.save(step, {"weights": weights, "step": step})
"""

from __future__ import annotations

import json
import os
from typing import Any, BinaryIO, cast, final

import numpy as np

from farandole.adapters.numpy import REGISTERED, NumpyValue, adapter, dtype_of
from farandole.checkpoint.checkpoints import Checkpoints as _Checkpoints
from farandole.checkpoint.checkpoints import OnError
from farandole.checkpoint.codec import Codec


@final
class NumpyCodec(Codec):
    """File format: the tree as JSON in an array of bytes, then the arrays in their order; without pickle."""

    def __init__(self) -> None:
        super().__init__(adapter)

    def dump(self, content: dict[str, Any], file: BinaryIO) -> None:
        """See ``Codec``."""
        arrays: list[NumpyValue] = []
        text = json.dumps(_written(content, arrays))
        for array in (np.frombuffer(text.encode(), np.uint8), *arrays):
            np.lib.format.write_array(file, array, allow_pickle=False)

    def load(self, file: BinaryIO) -> dict[str, Any]:
        """See ``Codec``."""
        text = np.lib.format.read_array(file, allow_pickle=False).tobytes()
        return cast("dict[str, Any]", _read(json.loads(text), file))


def _written(node: Any, arrays: list[NumpyValue]) -> Any:
    """``node`` as JSON, where each list begins with its kind; arrays are appended to ``arrays``."""
    if isinstance(node, np.ndarray):
        if node.dtype.isbuiltin != REGISTERED:
            arrays.append(node)
            return ["array"]
        arrays.append(node.view(f"u{node.dtype.itemsize}"))  # NumPy writes a dtype name here that it cannot read
        return ["bits", node.dtype.name]
    if isinstance(node, dict):
        return ["dict", *([key, _written(value, arrays)] for key, value in node.items())]
    if isinstance(node, list | tuple):
        return ["list" if isinstance(node, list) else "tuple", *(_written(value, arrays) for value in node)]
    if isinstance(node, bytes):
        return ["bytes", node.hex()]
    return ["complex", node.real, node.imag] if isinstance(node, complex) else node


def _read(node: Any, file: BinaryIO) -> Any:
    """Rebuild the tree that ``_written`` has described; ``file`` has the arrays in the order of the tree."""
    if not isinstance(node, list):
        return node
    kind, *content = node
    if kind == "array":
        return np.lib.format.read_array(file, allow_pickle=False)
    if kind == "bits":
        bits = np.lib.format.read_array(file, allow_pickle=False)
        return bits.view(dtype_of(content[0]))
    if kind == "dict":
        return {key: _read(value, file) for key, value in content}
    if kind in ("list", "tuple"):
        children = [_read(value, file) for value in content]
        return children if kind == "list" else tuple(children)
    return bytes.fromhex(content[0]) if kind == "bytes" else complex(*content)


def Checkpoints(  # noqa: N802 (used like a class)
    root: str | os.PathLike[str], *, keep: int = 3, sharded: bool = False, on_error: OnError = "raise"
) -> _Checkpoints:
    """Durable checkpoints in the folder ``root``; for the arguments see ``farandole.checkpoint.Checkpoints``."""
    return _Checkpoints(root, NumpyCodec(), keep=keep, sharded=sharded, on_error=on_error)
