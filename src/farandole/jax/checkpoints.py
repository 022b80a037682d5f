"""Checkpoints of JAX arrays: ``farandole.checkpoint`` with files of concatenated ``.npy`` records.

with Checkpoints("runs/a") as checkpoints:
    checkpoints.save(step, {"params": params, "opt_state": jax.tree.leaves(opt_state), "step": step})
    ...
    opt_state = jax.tree.unflatten(jax.tree.structure(opt_state), found.state["opt_state"])

Named tuples (optax states) are refused: save their leaves, or the ``state_dict()`` of a ``JaxState`` that has them.
"""

from __future__ import annotations

import os
from typing import Any, BinaryIO, final

import jax
import numpy as np

from farandole.adapters.jax import HostCopy, adapter, new_array
from farandole.checkpoint.checkpoints import Checkpoints as _Checkpoints
from farandole.checkpoint.checkpoints import OnError
from farandole.checkpoint.codec import Codec
from farandole.numpy.checkpoints import NumpyCodec

_BITS, _NUMPY = "farandole.bits", "farandole.numpy"
"""Keys in files: the name of a non-NumPy dtype, stored with its elements as integers; an array that was NumPy's."""


@final
class JaxCodec(Codec):
    """Files of ``NumpyCodec``; JAX arrays load as JAX arrays, NumPy arrays as NumPy arrays, of any width."""

    def __init__(self) -> None:
        super().__init__(adapter)
        self._files = NumpyCodec()

    def dump(self, content: dict[str, Any], file: BinaryIO) -> None:
        """See ``Codec``."""
        self._files.dump(_written(content), file)

    def load(self, file: BinaryIO) -> dict[str, Any]:
        """See ``Codec``."""
        content: dict[str, Any] = _read(self._files.load(file))
        return content


def _written(node: Any) -> Any:
    if isinstance(node, np.ndarray):
        bits = _bits(node)
        return bits if isinstance(node, HostCopy) else {_NUMPY: bits}
    if isinstance(node, dict):
        return {key: _written(value) for key, value in node.items()}
    return type(node)(map(_written, node)) if type(node) in (list, tuple) else node


def _bits(array: Any) -> Any:
    if array.dtype.kind != "V":
        return array
    return {_BITS: array.dtype.name, "elements": array.view(f"u{array.dtype.itemsize}")}


def _read(node: Any) -> Any:
    if isinstance(node, dict):
        if node.keys() == {_NUMPY}:
            return _array(node[_NUMPY])
        if node.keys() != {_BITS, "elements"}:
            return {key: _read(value) for key, value in node.items()}
    if isinstance(node, dict | np.ndarray):
        return new_array(_array(node))
    return type(node)(map(_read, node)) if type(node) in (list, tuple) else node


def _array(node: Any) -> Any:
    """NumPy array from its elements or from their bits."""
    return node["elements"].view(np.dtype(getattr(jax.numpy, node[_BITS]))) if isinstance(node, dict) else node


def Checkpoints(  # noqa: N802 (used like a class)
    root: str | os.PathLike[str], *, keep: int = 3, sharded: bool = False, on_error: OnError = "raise"
) -> _Checkpoints:
    """Durable checkpoints in the folder ``root``; for the arguments see ``farandole.checkpoint.Checkpoints``."""
    return _Checkpoints(root, JaxCodec(), keep=keep, sharded=sharded, on_error=on_error)
