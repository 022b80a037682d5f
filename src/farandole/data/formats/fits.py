"""``fits``: images and tables of FITS files, by astropy.

source = fits("/lustre/sdss", hdu="SCI")          # an array per file, BSCALE and BZERO applied
source = fits("/lustre/catalogs", hdu=1)          # of a table a dict of its columns
"""

from __future__ import annotations

import io
from typing import Any, ClassVar, final

import numpy as np

from farandole.data.formats.files import FilesSource
from farandole.data.formats.reading import Index, compression_of, translated, unpacked
from farandole.data.formats.source import Decode
from farandole.data.storage.listing import Where
from farandole.errors import DataError

SUFFIXES = tuple(f".{name}{packed}" for name in ("fits", "fit", "fts", "FITS") for packed in ("", ".gz", ".fz", ".bz2"))


@final
class FitsSource(FilesSource):
    """One unit (HDU) of each FITS file. astropy is written in Python, and holds the GIL."""

    format: ClassVar[str] = "fits"
    holds_lock: ClassVar[bool] = True

    def content(self, data: bytearray, path: str) -> Any:
        return decoded(unpacked(data, path) if compression_of(data) else data, path, **self.options)


def fits(
    path: Where,
    decode: Decode | None = None,
    *,
    hdu: int | str | None = None,
    raw: bool = False,
    checksum: bool = False,
    index: Index = None,
) -> FitsSource:
    """One unit of each FITS file: by number, by name, or the first unit with data. Byte order is native.

        fits("/lustre/sdss", hdu=0)[0]

    An image is an array with BSCALE, BZERO and BLANK applied as astropy does: as floats, or as unsigned integers if
    BZERO says so; ``raw=True``: as stored. Compressed tiles are unpacked. A table is a dict of its columns, scaled by
    TSCAL and TZERO; columns of variable length are lists of arrays. ``checksum=True`` verifies CHECKSUM and DATASUM.
    Files may be compressed by gzip or bzip2.

    Raises ``DataError`` for truncated or damaged files, and for random groups.
    """
    return FitsSource.opened(path, decode, index, SUFFIXES, hdu=hdu, raw=raw, checksum=checksum)


def decoded(data: bytes | bytearray, path: str, hdu: int | str | None, raw: bool, checksum: bool) -> Any:
    """A unit of a FITS file; ``path`` names it in errors."""
    with translated(path, "FITS", "data-formats"):
        from astropy.io import fits as astropy_fits

        file: Any
        with astropy_fits.open(
            io.BytesIO(data), memmap=False, checksum=checksum, do_not_scale_image_data=raw, uint=not raw
        ) as file:
            unit = _chosen(file, hdu, path)
            end = unit.fileinfo()["datLoc"] + unit.fileinfo()["datSpan"]
            causes = {"is cut off": end > len(data), "has random groups": isinstance(unit, astropy_fits.GroupsHDU)}
            for cause in [cause for cause, holds in causes.items() if holds] or ["has no data"] * (unit.data is None):
                raise DataError(f"{path}: unit {unit.name!r} {cause}: copy the file again, or give another hdu=")
            names = unit.data.dtype.names
            return {name: _native(unit.data[name]) for name in names} if names else _native(unit.data)


def _chosen(file: Any, hdu: int | str | None, path: str) -> Any:
    having = [unit for unit in file if unit.size] if hdu is None else None
    try:
        return having[0] if having is not None else file[hdu]
    except (KeyError, IndexError) as error:
        names = ", ".join(f"{number} {unit.name}".strip() for number, unit in enumerate(file))
        raise DataError(f"{path} has no unit {hdu!r} with data: it has {names}; give one of them as hdu=") from error


def _native(data: Any) -> Any:
    """An array in native byte order; a list of arrays if rows differ in length."""
    array = np.asarray(data)
    if array.dtype == object:
        return [_native(row) for row in array]
    return np.ascontiguousarray(array.astype(array.dtype.newbyteorder("="), copy=False))
