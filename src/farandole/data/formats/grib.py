"""``grib``: messages of GRIB 1 and 2 files as arrays, by eccodes.

    source = grib("/lustre/era5", select={"shortName": "t", "level": 850})
    source = grib("/lustre/era5/2017.grib", keys=("shortName", "dataDate"))   # (values, {"shortName": "z", ...})

The index finds messages by the lengths in their first bytes; the last four bytes show that a message is complete.

Threads. eccodes has no locks, so ``_ECCODES`` is held for every call: one thread decodes at a time.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, final

import numpy as np
import numpy.typing as npt

from farandole.data.formats.reading import Index, compression_of, translated
from farandole.data.formats.records import Extent, Read, RecordsSource
from farandole.data.formats.source import Decode, ForkGuard
from farandole.data.storage.listing import Where
from farandole.errors import DataError, UsageError

MISSING = -1.7e308
"""Marks missing values while eccodes unpacks: no field has this value."""
MOST_BETWEEN = 2**16
"""Bytes that may lie between messages: headings of bulletins, padding."""

_ECCODES = threading.Lock()
_FORKS = ForkGuard("eccodes")


@final
class GribSource(RecordsSource):
    """Messages of GRIB files: arrays, or pairs of array and keys. One thread decodes at a time."""

    format: ClassVar[str] = "grib"
    holds_lock: ClassVar[bool] = True
    suffixes: ClassVar[tuple[str, ...]] = tuple(
        f".{name}{number}" for name in ("grib", "grb", "GRIB", "GRB") for number in ("", "1", "2")
    )

    @classmethod
    def is_plain(cls, head: bytes) -> bool:
        return b"GRIB" in head or not compression_of(head)

    @classmethod
    def extents(cls, read: Read, size: int, path: str, details: Mapping[str, Any]) -> Iterator[Extent]:
        for at, nbytes in messages(read, size, path):
            where = f"{path}: the message at byte {at}"
            if select := details["select"]:
                told = unpacked(read(at, nbytes), where, tuple(select), fill=None)[1]
                if any(told[key] != value for key, value in select.items()):
                    continue
            yield at, nbytes

    def record(self, data: bytes, where: str) -> Any:
        values, told = unpacked(data, where, **self.options)
        return (values, told) if self.options["keys"] else values


def grib(
    path: Where,
    decode: Decode | None = None,
    *,
    select: Mapping[str, Any] | None = None,
    keys: Sequence[str] = (),
    grid: bool = False,
    fill: str = "nan",
    index: Index = None,
) -> GribSource:
    """Messages of GRIB files as float64, in the order of the file; a missing value of a bitmap is NaN.

        grib("/lustre/era5", select={"shortName": "2t"}, grid=True)[0].shape          # (721, 1440)

    Values are a flat array, as eccodes returns them. ``grid=True``: rows x columns, refused for reduced grids and
    others without rows and columns, and if values run along columns or in alternating directions. ``fill="raw"`` leaves
    missing values as 9999. ``keys``: samples are pairs with a dict of these keys. ``select`` takes the messages whose
    keys have these values; to find them, every message is read once.

    Raises ``DataError`` with file and offset for damaged messages, and for messages with several fields.
    """
    if fill not in ("nan", "raw"):
        raise UsageError(f"fill={fill!r}: give 'nan' or 'raw'")
    return GribSource.opened(
        path, decode, index, {"select": dict(select or {})}, keys=tuple(keys), grid=grid, fill=fill
    )


def messages(read: Read, size: int, path: str) -> Iterator[Extent]:
    """Offset and length of each message among ``size`` bytes, which ``read`` returns in parts.

    Raises ``DataError`` if a message is truncated or does not end with 7777, or if no message begins.
    """
    at = 0
    while at < size:
        if read(at, 4) != b"GRIB":
            between = read(at, MOST_BETWEEN)
            ahead = between.find(b"GRIB")
            if ahead < 0 and at and at + len(between) == size and not between.strip(b"\0\r\n\x03 "):
                return
            if ahead < 0:
                raise DataError(f"{path}: no GRIB message begins at byte {at} or soon after: it is damaged, or no GRIB")
            at += ahead
        where = f"{path}: the message at byte {at}"
        nbytes = _length(read, at, where)
        if at + nbytes > size:
            raise DataError(f"{where} is cut off: {nbytes} bytes, of which {size - at} are there; copy the file again")
        if nbytes < 16 or read(at + nbytes - 4, 4) != b"7777":
            raise DataError(f"{where} does not end with 7777 after {nbytes} bytes: it is damaged; copy the file again")
        yield at, nbytes
        at += nbytes


def _length(read: Read, at: int, where: str) -> int:
    """Length of a message by section 0: 3 bytes in edition 1, 8 in edition 2."""
    head = read(at, 16)
    if len(head) < 16 or head[7] not in (1, 2):
        raise DataError(f"{where} is cut off, or of an edition not read ({head[7:8].hex() or 'none'}; 1 and 2 are)")
    nbytes = int.from_bytes(head[4:7], "big") if head[7] == 1 else int.from_bytes(head[8:16], "big")
    if head[7] == 2 or not nbytes & 0x800000:
        return nbytes
    # Beyond 8 MiB: ECMWF counts in units of 120 bytes, less the length that the data section (section 4) claims.
    place, flags = at + 8, read(at + 15, 1)[0]
    for is_there in (True, bool(flags & 0x80), bool(flags & 0x40)):
        place += int.from_bytes(read(place, 3), "big") if is_there else 0
    claimed = int.from_bytes(read(place, 3), "big")
    return (nbytes & 0x7FFFFF) * 120 - claimed + 4 if claimed < 120 else nbytes


def unpacked(
    message: bytes, where: str, keys: Sequence[str] = (), grid: bool = False, fill: str | None = "nan"
) -> tuple[npt.NDArray[np.float64], dict[str, Any]]:
    """Values (none with ``fill=None``) and keys of a message; ``where`` names it in errors."""
    if message[7] == 2 and (count := _fields_of(message, where)) != 1:
        raise DataError(f"{where} holds {count} fields, and one is read: split them first (grib_copy IN OUT)")
    with translated(where, "GRIB", "data-formats"):
        import eccodes

        _FORKS.enter()
        with _ECCODES:
            handle = eccodes.codes_new_from_message(message)
            try:
                told = {key: eccodes.codes_get(handle, key) for key in keys}
                if fill is None:
                    return np.empty(0), told
                if fill == "nan":
                    eccodes.codes_set(handle, "missingValue", MISSING)
                values = np.asarray(eccodes.codes_get_values(handle), np.float64)
                shape = _shape(eccodes, handle, values.size, where) if grid else values.shape
            finally:
                eccodes.codes_release(handle)
    if fill == "nan":
        values[values == MISSING] = np.nan
    return values.reshape(shape), told


def _shape(eccodes: Any, handle: Any, size: int, where: str) -> tuple[int, int]:
    """Rows and columns of a regular grid."""
    names = ("Nj", "Ni", "jPointsAreConsecutive", "alternativeRowScanning")
    found = [eccodes.codes_get(handle, name) if eccodes.codes_is_defined(handle, name) else 0 for name in names]
    if found[2] or found[3] or found[0] is None or found[1] is None or found[0] * found[1] != size:
        kind = eccodes.codes_get(handle, "gridType")
        raise DataError(f"{where} has the grid {kind}, whose values are no rows x columns: leave out grid=True")
    return found[0], found[1]


def _fields_of(message: bytes, where: str) -> int:
    """Number of data sections (7) of a message of edition 2: one for each field."""
    at, count = 16, 0
    while at + 5 <= len(message) - 4:
        nbytes, number = int.from_bytes(message[at : at + 4], "big"), message[at + 4]
        if nbytes < 5 or not 1 <= number <= 7:
            raise DataError(f"{where} has a section {number} of {nbytes} bytes: it is damaged; copy the file again")
        count, at = count + (number == 7), at + nbytes
    return count
