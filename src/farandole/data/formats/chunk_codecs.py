"""Decoding of one chunk of an array, by zlib, NumPy and numcodecs alone. Pure: bytes in, an array out.

    decode_chunk(data, [{"id": "zstd"}], np.dtype("<f4"), (128, 128), "x.zarr/c/0/0")

Codecs are listed in the order of decoding, as numcodecs configures them, plus a few of ours: ``deflate`` of HDF5,
``inflate`` and ``skip`` of zip members, ``checked`` (CRC-32C at the end), ``bytes`` and ``transpose`` of Zarr 3. Codecs
of numcodecs that unpickle are not in ``KNOWN``.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from farandole.data.formats.reading import translated
from farandole.errors import DataError

Array: TypeAlias = npt.NDArray[Any]
Codec: TypeAlias = Mapping[str, Any]

OURS = frozenset({"deflate", "inflate", "skip", "checked", "bytes", "transpose"})
ARRAYS = frozenset({"astype", "bitround", "delta", "fixedscaleoffset", "packbits", "quantize"})
SUMS = frozenset({"adler32", "crc32", "crc32c", "fletcher32", "jenkins_lookup3"})
SERIAL = frozenset(
    {"blosc", "bz2", "gzip", "lz4", "lzma", "pcodec", "shuffle", "vlen-bytes", "vlen-utf8", "zfpy", "zlib"}
)
KNOWN = OURS | ARRAYS | SUMS | SERIAL | {"zstd"}


def refuse_unknown(codecs: Sequence[Codec], what: str) -> None:
    """Raise ``DataError`` naming the first codec that is not decoded here, and what to do."""
    for codec in codecs:
        if codec["id"] not in KNOWN:
            raise DataError(f"{what} is encoded by {codec['id']!r}, which is not read: write it again with zstd")
        if codec["id"] not in OURS:
            _numcodec(codec, what)


def decode_chunk(data: Any, codecs: Sequence[Codec], dtype: np.dtype[Any], shape: tuple[int, ...], what: str) -> Array:
    """Decode a chunk from its bytes ``data``. Raises ``DataError`` if they are damaged; ``what`` names the chunk."""
    with translated(what, " + ".join(str(codec["id"]) for codec in codecs) or "plain bytes"):
        for codec in codecs:
            data = _decode(data, codec, what)
        if isinstance(data, np.ndarray) and dtype.hasobject:
            return data.reshape(shape)
        array = np.ascontiguousarray(data) if isinstance(data, np.ndarray) else np.frombuffer(data, np.uint8)
        return array.reshape(-1).view(dtype).reshape(shape)


def checked(data: Any, what: str) -> bytes:
    """``data`` without the CRC-32C in its last four bytes. Raises ``DataError`` if it does not match."""
    import google_crc32c

    body = bytes(data[:-4])
    if google_crc32c.value(body) != int.from_bytes(bytes(data[-4:]), "little"):
        raise DataError(f"{what} fails its CRC-32C: it is damaged; copy the file again")
    return body


def _decode(data: Any, codec: Codec, what: str) -> Any:
    match codec["id"]:
        case "deflate":
            return zlib.decompress(data)
        case "inflate":
            plain = zlib.decompress(data, -zlib.MAX_WBITS)
            if zlib.crc32(plain) != codec["crc"]:
                raise DataError(f"{what} fails the CRC-32 of its zip: it is damaged; copy the file again")
            return plain
        case "skip":
            return memoryview(data)[codec["nbytes"] :]
        case "checked":
            return checked(data, what)
        case "bytes":
            stored = np.frombuffer(data, np.dtype(codec["dtype"]))
            return stored.astype(stored.dtype.newbyteorder("="), copy=False)
        case "transpose":
            return np.ascontiguousarray(np.asarray(data).reshape(codec["shape"]).transpose(codec["axes"]))
    return _numcodec(codec, what).decode(data)


def _numcodec(codec: Codec, what: str) -> Any:
    with translated(what, "its chunks"):
        import numcodecs

        if codec["id"] in ("zfpy", "pcodec") and not hasattr(numcodecs, "ZFPY" if codec["id"] == "zfpy" else "PCodec"):
            raise DataError(f'{what} is encoded by {codec["id"]!r}: pip install "numcodecs[{codec["id"]}]"')
        return numcodecs.get_codec(dict(codec))
