"""Checkpoints of TensorFlow variables and tensors, in the file format of ``farandole.numpy``.

with Checkpoints("runs/a") as checkpoints:
    checkpoints.save(step, {"weights": model.get_weights(), "step": step})
"""

from __future__ import annotations

import os
from typing import Any, BinaryIO, final

import numpy as np
import tensorflow as tf

from farandole.adapters.tensorflow import adapter
from farandole.checkpoint.checkpoints import Checkpoints as _Checkpoints
from farandole.checkpoint.checkpoints import OnError
from farandole.checkpoint.codec import Codec
from farandole.numpy.checkpoints import NumpyCodec
from farandole.runtime.collectives.leaves import replace


@final
class TensorFlowCodec(Codec):
    """Files of NumPy arrays, loaded as tensors for ``variable.assign()``."""

    def __init__(self) -> None:
        super().__init__(adapter)
        self._arrays = NumpyCodec()

    def dump(self, content: dict[str, Any], file: BinaryIO) -> None:
        """See ``Codec``."""
        self._arrays.dump(replace(content, adapter.is_tensor, _array), file)

    def load(self, file: BinaryIO) -> dict[str, Any]:
        """See ``Codec``."""
        tree: dict[str, Any] = replace(self._arrays.load(file), _is_array, _tensor)
        return tree


_BFLOAT16 = "farandole.bfloat16"
"""Key of a dict that represents a bfloat16 array, which NumPy cannot read from a file."""


def _array(tensor: Any) -> Any:
    array = np.asarray(tensor.numpy())
    return {_BFLOAT16: array.view(np.uint16)} if array.dtype.name == "bfloat16" else array


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, np.ndarray) or (isinstance(leaf, dict) and leaf.keys() == {_BFLOAT16})


def _tensor(leaf: Any) -> Any:
    return tf.bitcast(leaf[_BFLOAT16], tf.bfloat16) if isinstance(leaf, dict) else tf.convert_to_tensor(leaf)


def Checkpoints(  # noqa: N802 (used like a class)
    root: str | os.PathLike[str], *, keep: int = 3, sharded: bool = False, on_error: OnError = "raise"
) -> _Checkpoints:
    """Durable checkpoints in the folder ``root``; for the arguments see ``farandole.checkpoint.Checkpoints``."""
    return _Checkpoints(root, TensorFlowCodec(), keep=keep, sharded=sharded, on_error=on_error)
