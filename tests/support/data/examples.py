"""Serialized ``tf.train.Example``, written by hand, with lists packed, one by one, or in several parts."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any


def varint(value: int) -> bytes:
    """A number in the wire format; negative ones as 64 bits."""
    left, out = value % 2**64, bytearray()
    while left > 127:
        out.append(left & 127 | 128)
        left >>= 7
    return bytes([*out, left])


def field(number: int, body: bytes) -> bytes:
    """A field of bytes."""
    return varint(number << 3 | 2) + varint(len(body)) + body


def example(features: Mapping[str, Sequence[Any] | None], is_packed: bool = True, parts: int = 1) -> bytes:
    """An Example of lists of bytes, floats or integers; ``None``: a feature without a list."""
    return field(
        1,
        b"".join(
            field(1, field(1, name.encode()) + field(2, feature(values, is_packed, parts)))
            for name, values in features.items()
        ),
    )


def feature(values: Sequence[Any] | None, is_packed: bool, parts: int) -> bytes:
    """A Feature, whose list may be written in several parts."""
    if values is None:
        return b""
    cut = -(-len(values) // parts) or 1
    return b"".join(_list(values[at : at + cut], is_packed) for at in range(0, max(1, len(values)), cut))


def _list(values: Sequence[Any], is_packed: bool) -> bytes:
    if values and isinstance(values[0], bytes):
        return field(1, b"".join(field(1, value) for value in values))
    if values and isinstance(values[0], float):
        packed = b"".join(struct.pack("<f", value) for value in values)
        return field(
            2, field(1, packed) if is_packed else b"".join(b"\x0d" + struct.pack("<f", value) for value in values)
        )
    packed = b"".join(map(varint, values))
    return field(3, field(1, packed) if is_packed else b"".join(b"\x08" + varint(value) for value in values))
