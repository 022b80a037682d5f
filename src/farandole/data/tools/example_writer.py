"""``example``: arrays, numbers, text and bytes as a serialized ``tf.train.Example``.

    example({"x": np.zeros((2, 3), "f4"), "label": 7, "name": "a"})

Floats in single precision and short integer arrays become the lists of an Example; the shape of an array with several
axes is stored in ``NAME/shape``. Everything else is stored as bytes, with its dtype in ``NAME/dtype``, because an
Example has only 64-bit integers, one by one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from farandole.errors import DataError

BYTES, FLOATS, INTEGERS = 1, 2, 3
"""Field numbers of the lists in the protocol buffer of a feature."""

FEW = 64
"""Largest number of integers that are stored as a list."""


def example(fields: Mapping[str, Any]) -> bytes:
    """Serialize ``fields``. Raises ``DataError`` for anything but numbers, text and bytes."""
    features: dict[str, bytes] = {}
    for name, value in fields.items():
        features |= _features(name, value)
    entries = b"".join(
        _block(1, _block(1, name.encode()) + _block(2, feature)) for name, feature in sorted(features.items())
    )
    return _block(1, entries)


def _features(name: str, value: Any) -> dict[str, bytes]:
    if isinstance(value, str):
        return {name: _list(BYTES, _block(1, value.encode()))}
    if isinstance(value, bytes | bytearray | memoryview):
        return {name: _list(BYTES, _block(1, bytes(value)))}
    array = np.asarray(value)
    if array.dtype.hasobject or array.dtype.kind not in "fiubcSU":
        raise DataError(f"{name} is {type(value).__name__} of {array.dtype}: give numbers, text or bytes")
    shape = {} if array.ndim <= 1 else {f"{name}/shape": _integers(np.array(array.shape))}
    if array.dtype == np.float32:
        return {name: _list(FLOATS, _block(1, array.astype("<f4").tobytes())), **shape}
    if array.dtype.kind in "iub" and array.dtype != np.uint64 and array.size <= FEW:
        return {name: _integers(array.ravel().astype(np.int64)), **shape}
    kept = np.ascontiguousarray(array)
    dtype = {f"{name}/dtype": _list(BYTES, _block(1, kept.dtype.str.encode()))}
    return {name: _list(BYTES, _block(1, kept.tobytes())), **dtype, **shape}


def _integers(values: npt.NDArray[np.int64]) -> bytes:
    return _list(INTEGERS, _block(1, b"".join(_varint(int(value) & 2**64 - 1) for value in values)))


def _list(kind: int, packed: bytes) -> bytes:
    return _block(kind, packed)


def _block(field: int, data: bytes) -> bytes:
    """A field with a length and bytes."""
    return _varint(field << 3 | 2) + _varint(len(data)) + data


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)
