"""Checkpoints of TensorFlow's variables and tensors, in the files of ``farandole.numpy``.

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
    """Files of NumPy's arrays, which come back as tensors: ``variable.assign()`` takes them."""

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
"""The key of a dict that stands for an array of bfloat16, whose files NumPy cannot read."""


def _array(tensor: Any) -> Any:
    array = np.asarray(tensor.numpy())
    return {_BFLOAT16: array.view(np.uint16)} if array.dtype.name == "bfloat16" else array


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, np.ndarray) or (isinstance(leaf, dict) and leaf.keys() == {_BFLOAT16})


def _tensor(leaf: Any) -> Any:
    return tf.bitcast(leaf[_BFLOAT16], tf.bfloat16) if isinstance(leaf, dict) else tf.convert_to_tensor(leaf)


def Checkpoints(  # noqa: N802 (it stands for a class)
    root: str | os.PathLike[str], *, keep: int = 3, sharded: bool = False, on_error: OnError = "raise"
) -> _Checkpoints:
    """Durable checkpoints in the folder ``root``; the arguments are those of ``farandole.checkpoint.Checkpoints``."""
    return _Checkpoints(root, TensorFlowCodec(), keep=keep, sharded=sharded, on_error=on_error)
