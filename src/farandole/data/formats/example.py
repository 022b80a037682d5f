"""``parse_example``: a serialized ``tf.train.Example`` as NumPy arrays, without TensorFlow.

    parse_example(record)                                        # {"x": float32 array, "id": int64 array, "png": [b""]}
    parse_example(record, feature_specs({"x": ("float32", (128, 128, 4)), "label": "int64"}))

The wire format is protocol buffers: fields of a tag and a varint, 4 bytes, 8 bytes, or a length and bytes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from farandole.errors import DataError, UsageError

Span: TypeAlias = tuple[int, int, int]
SHORT = 16
"""Bytes of a packed list up to which a loop is faster than NumPy."""


class FeatureSpec(NamedTuple):
    """Type of a feature, ``"bytes"`` or a NumPy dtype, and its shape; ``None``: as many values as there are."""

    dtype: str
    shape: tuple[int, ...] | None = None


def feature_specs(features: Mapping[str, str | Sequence[Any]]) -> dict[str, FeatureSpec]:
    """Specs from ``{"x": "float32", "y": ("int16", (64, 64))}``. Raises ``UsageError`` for an invalid dtype."""
    specs = {}
    for name, asked in features.items():
        dtype, shape = (asked, None) if isinstance(asked, str) else (asked[0], tuple(int(n) for n in asked[1]))
        try:
            known = dtype == "bytes" or np.dtype(dtype).kind in "biufc"
        except TypeError:
            known = False
        if not known:
            raise UsageError(f"features[{name!r}]={asked!r}: give 'bytes' or a dtype of numbers, as 'float32'")
        specs[name] = FeatureSpec(dtype, shape)
    return specs


def parse_example(record: bytes, specs: Mapping[str, FeatureSpec] | None = None) -> dict[str, Any]:
    """Features of a ``tf.train.Example`` by name: all, as stored, or those of ``specs``, as specified.

    As stored: floats as float32, which are views of the record, integers as int64, byte strings in a list, because
    NumPy's lose zeros at their end; ``None`` for a feature without a list. A spec with a dtype of numbers decodes raw
    bytes, too; a missing feature is empty if its spec has no shape.

    Raises ``DataError`` for bytes that are no Example (a ``SequenceExample`` for one), or do not match the specs.
    """
    found: dict[str, Any] = {}
    for tag, begin, end in _parts(record, 0, len(record)):
        _expect(tag, (0x0A,), "Example: is it a SequenceExample, or raw? Read it as bytes, with decode=")
        for inner, start, stop in _parts(record, begin, end):
            _expect(inner, (0x0A,), "Features")
            name, feature = _entry(record, start, stop)
            if specs is None or name in specs:
                found[name] = _feature(record, *feature)
    if specs is None:
        return found
    return {name: _specified(name, found.get(name), spec) for name, spec in specs.items()}


def _specified(name: str, values: Any, spec: FeatureSpec) -> Any:
    """Values of a feature in the requested type and shape."""
    wanted = math.prod(spec.shape or ())
    if spec.dtype == "bytes":
        if isinstance(values, np.ndarray):
            raise DataError(f"feature {name!r} holds {values.dtype}, not bytes: ask for a dtype of numbers")
        strings = list(values or ())
        if spec.shape is None:
            return strings
        if len(strings) == wanted:
            return strings[0] if spec.shape == () else strings
        raise DataError(f"feature {name!r} has {len(strings)} values, and the shape {spec.shape} was asked for")
    array = _numbers(name, values, np.dtype(spec.dtype))
    if spec.shape is None or array.size == wanted:
        return array if spec.shape is None else array.reshape(spec.shape)
    raise DataError(
        f"feature {name!r} has {array.size} values of {array.dtype}, and the shape {spec.shape} was asked for"
    )


def _numbers(name: str, values: Any, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    if isinstance(values, list):
        raw = values[0] if len(values) == 1 else b"".join(values)
        if len(raw) % dtype.itemsize:
            raise DataError(f"feature {name!r} has {len(raw)} bytes, which are no whole number of {dtype}")
        return np.frombuffer(raw, dtype)
    if not isinstance(values, np.ndarray):
        return np.empty(0, dtype)
    cast = values.astype(dtype, copy=False) if np.can_cast(values.dtype, dtype, "same_kind") else None
    if cast is None or (dtype.kind in "iu" and not np.array_equal(cast, values)):
        raise DataError(f"feature {name!r} holds {values.dtype}, which {dtype} would cut: ask for {values.dtype}")
    return cast


def _entry(data: bytes, at: int, end: int) -> tuple[str, tuple[int, int]]:
    """Name of an entry of the map of features, and the place of its feature."""
    name, feature = None, None
    for tag, begin, stop in _parts(data, at, end):
        _expect(tag, (0x0A, 0x12), "entry of Features")
        name, feature = (data[begin:stop], feature) if tag == 0x0A else (name, (begin, stop))
    if name is None or feature is None:
        raise DataError("no tf.train.Example: an entry of its features has no name or no value")
    try:
        return name.decode(), feature
    except UnicodeDecodeError as error:
        raise DataError(f"no tf.train.Example: {name[:40]!r} is no name of a feature") from error


def _feature(data: bytes, at: int, end: int) -> Any:
    """Values of a feature. Of several kinds of list the last one counts; lists of one kind are joined."""
    kind, spans = 0, list[Span]()
    for tag, begin, stop in _parts(data, at, end):
        _expect(tag, (0x0A, 0x12, 0x1A), "Feature")
        kind, spans = tag, [*(spans if tag == kind else []), *_parts(data, begin, stop)]
    for tag, *_ in spans:
        _expect(tag, {0x0A: (0x0A,), 0x12: (0x0A, 0x0D), 0x1A: (0x0A, 0x08)}[kind], "list of a Feature")
    if kind == 0x0A:
        return [data[begin:stop] for _, begin, stop in spans]
    read, empty = (_floats, np.float32) if kind == 0x12 else (_integers, np.int64)
    parts = [read(data, begin, stop) for _, begin, stop in spans]
    if len(parts) == 1:
        return parts[0]
    return None if not kind else np.concatenate(parts) if parts else np.empty(0, empty)


def _floats(data: bytes, at: int, end: int) -> npt.NDArray[Any]:
    if (end - at) % 4:
        raise DataError(f"no tf.train.Example: {end - at} bytes are no list of floats")
    return np.frombuffer(data, "<f4", (end - at) // 4, at)


def _integers(data: bytes, at: int, end: int) -> npt.NDArray[Any]:
    """Varints as int64, as many as there are."""
    if end - at <= SHORT:
        short = []
        while at < end:
            value, at = _varint(data, at, end)
            short.append(value - (1 << 64) if value >> 63 else value)
        return np.array(short, np.int64)
    coded = np.frombuffer(data, np.uint8, end - at, at)
    ends = np.flatnonzero(coded < 128)
    if len(ends) == len(coded):
        return coded.astype(np.int64)
    begins = np.concatenate([[0], ends + 1])[: len(ends)]
    lengths = ends + 1 - begins
    if not len(ends) or ends[-1] != len(coded) - 1 or lengths.max() > 10:
        raise DataError("no tf.train.Example: a number is cut off, or has more than 10 bytes")
    shifts = (np.arange(len(coded)) - np.repeat(begins, lengths)).astype(np.uint64) * np.uint64(7)
    return np.add.reduceat((coded & 0x7F).astype(np.uint64) << shifts, begins).view(np.int64)


def _parts(data: bytes, at: int, end: int) -> Iterator[Span]:
    """Tag, begin and end of each field of a message."""
    while at < end:
        tag, at = _varint(data, at, end)
        if tag & 7 == 2:
            length, at = _varint(data, at, end)
            stop = at + length
        else:
            stop = _varint(data, at, end)[1] if tag & 7 == 0 else at + {1: 8, 5: 4}.get(tag & 7, end)
        if stop > end or not tag >> 3:
            raise DataError(f"no tf.train.Example: field {tag >> 3} (wire type {tag & 7}) is cut off")
        yield tag, at, stop
        at = stop


def _varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    value, shift = 0, 0
    while at < end and shift < 70:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value & 0xFFFFFFFFFFFFFFFF, at
    raise DataError("no tf.train.Example: a number is cut off, or has more than 10 bytes")


def _expect(tag: int, known: tuple[int, ...], where: str) -> None:
    if tag not in known:
        raise DataError(f"no tf.train.Example: field {tag >> 3} (wire type {tag & 7}) is none of {where}")
