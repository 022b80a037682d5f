"""Checkpoints of arrays of JAX: ``farandole.checkpoint`` with files of one ``.npy`` after another.

with Checkpoints("runs/a") as checkpoints:
    checkpoints.save(step, {"params": params, "opt_state": jax.tree.leaves(opt_state), "step": step})
    ...
    opt_state = jax.tree.unflatten(jax.tree.structure(opt_state), found.state["opt_state"])

Named tuples, as optax has them, come back as tuples: save their leaves.
"""

from __future__ import annotations

import os
from typing import Any, BinaryIO, final

import jax
import numpy as np

from farandole.adapters.jax import adapter, new_array
from farandole.checkpoint.checkpoints import Checkpoints as _Checkpoints
from farandole.checkpoint.checkpoints import OnError
from farandole.checkpoint.codec import Codec
from farandole.numpy.checkpoints import NumpyCodec

_BITS = "farandole.bits"
"""Key of a dtype that is not NumPy's own, beside its elements as whole numbers."""


@final
class JaxCodec(Codec):
    """Files of ``NumpyCodec``; arrays come back as arrays of JAX."""

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
    if isinstance(node, np.ndarray) and node.dtype.kind == "V":
        return {_BITS: node.dtype.name, "elements": node.view(f"u{node.dtype.itemsize}")}
    if isinstance(node, dict):
        return {key: _written(value) for key, value in node.items()}
    return type(node)(map(_written, node)) if type(node) in (list, tuple) else node


def _read(node: Any) -> Any:
    if isinstance(node, np.ndarray):
        return new_array(node)
    if isinstance(node, dict):
        if node.keys() == {_BITS, "elements"}:
            return new_array(node["elements"].view(np.dtype(getattr(jax.numpy, node[_BITS]))))
        return {key: _read(value) for key, value in node.items()}
    return type(node)(map(_read, node)) if type(node) in (list, tuple) else node


def Checkpoints(  # noqa: N802 (it stands for a class)
    root: str | os.PathLike[str], *, keep: int = 3, sharded: bool = False, on_error: OnError = "raise"
) -> _Checkpoints:
    """Durable checkpoints in the folder ``root``; the arguments are those of ``farandole.checkpoint.Checkpoints``."""
    return _Checkpoints(root, JaxCodec(), keep=keep, sharded=sharded, on_error=on_error)
