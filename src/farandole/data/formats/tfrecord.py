"""``tfrecord``: records of TFRecord files, as bytes or as parsed ``tf.train.Example``, without TensorFlow.

    source = tfrecord("/lustre/cosmo/train", decode=parse)
    source = tfrecord("/lustre/set/train.tfrecord-*", features={"x": ("float32", (128, 128, 4)), "label": "int64"})

A record is its length (8 bytes, little-endian), the masked CRC-32C of the length, the bytes, and their masked CRC-32C.
The index reads only the lengths and their checksums; both checksums are verified whenever a record is read.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, ClassVar, final

from farandole.data.formats.example import feature_specs, parse_example
from farandole.data.formats.reading import Index, translated
from farandole.data.formats.records import Extent, Read, RecordsSource
from farandole.data.formats.source import Decode
from farandole.data.storage.listing import Where
from farandole.errors import DataError, UsageError

HEADER, FOOTER = struct.Struct("<QI"), struct.Struct("<I")
FRAME = HEADER.size + FOOTER.size


@final
class TFRecordSource(RecordsSource):
    """Records as bytes, or with ``features`` or ``example`` as a dict of arrays.

    Reading releases the GIL; parsing an Example holds it for some microseconds per feature.
    """

    format: ClassVar[str] = "tfrecord"

    @classmethod
    def is_plain(cls, head: bytes) -> bool:
        return _is_header(head[: HEADER.size])

    @classmethod
    def extents(cls, read: Read, size: int, path: str, _: Mapping[str, Any]) -> Iterator[Extent]:
        at = number = 0
        while at < size:
            head = read(at, HEADER.size)
            where = f"{path}: sample {number} at byte {at}"
            if len(head) == HEADER.size and not _is_header(head):
                raise DataError(
                    f"{where}: its length fails its checksum: the file is damaged, or no TFRecord; copy it again, or "
                    "leave it out by a pattern (FOLDER/*.tfrecord*)"
                )
            nbytes = HEADER.unpack(head)[0] + FRAME if len(head) == HEADER.size else FRAME
            if at + nbytes > size:
                raise DataError(
                    f"{where} is cut off: {nbytes} bytes, of which {size - at} are there; copy the file again"
                )
            yield at, nbytes
            at, number = at + nbytes, number + 1

    def record(self, data: bytes, where: str) -> Any:
        body = record_of(data, where)
        if not self.options:
            return body
        try:
            return parse_example(body, self.options["specs"])
        except DataError as error:
            raise DataError(f"{where}: {error}") from error


def tfrecord(
    path: Where,
    decode: Decode | None = None,
    *,
    features: Mapping[str, str | Sequence[Any]] | None = None,
    example: bool = False,
    index: Index = None,
) -> TFRecordSource:
    """Records of TFRecord files, plain or compressed by gzip or zlib, in the order of the files' names.

        tfrecord("/lustre/set/train*", features={"x": ("int16", (64, 64, 64)), "y": "float32", "png": "bytes"})[0]["x"]

    A sample is ``bytes``. ``example=True`` gives all features of its ``tf.train.Example``, ``features`` only the named
    ones, as ``parse_example`` returns them. Other messages, such as ``SequenceExample``, are left to ``decode``.

    A compressed file is decompressed as a whole, and each thread keeps 64 MiB of them: decompress files once if they
    are read in an order without locality. Raises ``DataError``, with file, number and offset, for damaged records.
    """
    if example and features is not None:
        raise UsageError("example=True gives all features, features= those named: give one of them")
    options = {"specs": feature_specs(features) if features is not None else None}
    return TFRecordSource.opened(path, decode, index, {}, **(options if example or features is not None else {}))


def record_of(frame: bytes, where: str) -> bytes:
    """The bytes of a framed record. Raises ``DataError``, which names it ``where``, if a checksum is wrong."""
    head, body = frame[: HEADER.size], frame[HEADER.size : -FOOTER.size]
    if not _is_header(head):
        raise DataError(f"{where}: its length fails its checksum: the file is damaged; copy it again")
    if HEADER.unpack(head)[0] != len(body):
        raise DataError(f"{where}: its length is not that of the index: the file has changed; make the index again")
    if masked_crc(body) != FOOTER.unpack(frame[-FOOTER.size :])[0]:
        raise DataError(f"{where}: its {len(body)} bytes fail their checksum: the file is damaged; copy it again")
    return body


def framed(record: bytes) -> bytes:
    """A record with its framing, as in a file."""
    length = struct.pack("<Q", len(record))
    return b"".join([HEADER.pack(len(record), masked_crc(length)), record, FOOTER.pack(masked_crc(record))])


def masked_crc(data: bytes) -> int:
    """CRC-32C, rotated and shifted: else the CRC of bytes that end with their own CRC would be a constant."""
    crc = _crc32c()(data)
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


@cache
def _crc32c() -> Callable[[bytes], int]:
    with translated("TFRecord", "the checksum of its records"):
        import google_crc32c

        value: Callable[[bytes], int] = google_crc32c.value
    return value


def _is_header(head: bytes) -> bool:
    return len(head) == HEADER.size and masked_crc(head[:8]) == HEADER.unpack(head)[1]
