"""``geotiff``: rasters of GeoTIFF and TIFF files as arrays, by tifffile and imagecodecs, without GDAL.

source = geotiff("/lustre/eurosat", labels="folder")                     # (bands, height, width), class
source = geotiff("/lustre/BigEarthNet", group="folder", bands=("B02", "B8A", "labels_metadata.json"))
"""

from __future__ import annotations

import io
import struct
from collections.abc import Sequence
from typing import Any, ClassVar, TypeAlias, final

import numpy as np
import numpy.typing as npt

from farandole.data.formats.files import FilesSource
from farandole.data.formats.reading import Index, translated
from farandole.data.formats.source import Decode, load_index
from farandole.data.storage.fields import Field
from farandole.data.storage.listing import Where, list_files, root_of
from farandole.data.storage.manifest import Manifest
from farandole.errors import DataError, UsageError

SUFFIXES = (".tif", ".tiff", ".TIF", ".TIFF", ".gtiff")
GDAL_METADATA, GDAL_NODATA = 42112, 42113
OF_PIXELS = frozenset({*range(256, 260), 262, 266, 273, 277, 278, 279, 284, 317, *range(322, 326), 338, 339, 347, 530})
"""Tags that decide how pixels are read."""
CHOICES = {"order": ("bands first", "as stored"), "fill": ("raw", "nan", "mask"), "pages": ("first", "all")}

Array: TypeAlias = npt.NDArray[Any]


@final
class GeoTiffSource(FilesSource):
    """Rasters: an array, with its class on request; for a group of files, a dict of arrays by band.

    Codecs release the GIL; tifffile's own Python code takes about a millisecond per file.
    """

    format: ClassVar[str] = "geotiff"

    def content(self, data: bytearray, path: str) -> Array:
        return decoded(data, path, **self.options)

    def sample(self, index: int) -> Any:
        bands = self.manifest.details.get("bands")
        if not bands:
            return super().sample(index)
        paths = [self.manifest.paths[file] for file, _, _ in self.manifest.extents(index)]
        return {
            band: self.content(part, path) if path.endswith(SUFFIXES) else bytes(part)
            for band, part, path in zip(bands, self.parts(index), paths, strict=True)
        }


def geotiff(
    path: Where,
    decode: Decode | None = None,
    *,
    order: str = "bands first",
    fill: str = "raw",
    scaled: bool = False,
    pages: str = "first",
    group: str | None = None,
    bands: Sequence[str] = (),
    labels: str | None = None,
    index: Index = None,
) -> GeoTiffSource:
    """Rasters of TIFF files, as stored: palettes as indices, half floats as float16; in native byte order.

        geotiff("/lustre/set", fill="nan")[0].shape          # (13, 64, 64)

    ``order="bands first"``: bands x height x width, also for one band; ``"as stored"``: the order of the file.
    ``pages``: the first page, or ``"all"`` pages, stacked; overviews and masks do not count. ``fill``: nodata stays,
    becomes NaN, or is masked (``numpy.ma``). ``scaled=True`` applies GDAL's scale and offset. With NaN or scaling,
    integers become float32, integers of 32 bits and more float64.

    ``group="folder"``: the files of a folder are one sample, a dict by band. The band is the name of the file without
    the name of the folder (``B02`` of ``S2A_1/S2A_1_B02.tif``). ``bands`` selects by the ends of names; other files
    than TIFF are bytes. ``labels="folder"``: pairs with the number of the folder below ``path``, as in ``files``.

    Raises ``DataError`` for damaged files, unknown codecs, and groups that lack a band.
    """
    options = {"order": order, "fill": fill, "pages": pages}
    for name, known in CHOICES.items():
        if options[name] not in known:
            raise UsageError(f"{name}={options[name]!r}: give {' or '.join(map(repr, known))}")
    if group not in (None, "folder") or (bands and not group) or (group and labels):
        raise UsageError("give group='folder', with bands= if some are enough, or labels='folder', or none of these")
    found = _grouped(path, bands) if group and index is None else index
    if index is not None:
        kept = load_index(index, "geotiff").details.get("bands")
        if (group is None) != (kept is None) or (bands and kept != list(bands)):
            raise UsageError(
                f"the index was made with {'bands=' + repr(kept) if kept else 'no group='}, and other ones are asked "
                "for: make it with the same arguments"
            )
    return GeoTiffSource.opened(path, decode, found, SUFFIXES, labels, scaled=scaled, **options)


def decoded(
    data: bytes | bytearray,
    path: str,
    order: str = "bands first",
    fill: str = "raw",
    scaled: bool = False,
    pages: str = "first",
) -> Array:
    """Pixels of a TIFF file, with the options of ``geotiff``; ``path`` names it in errors."""
    with translated(path, "TIFF"):
        import tifffile

        with tifffile.TiffFile(io.BytesIO(data)) as file:
            listed: list[Any] = [file.pages[0]]
            if pages == "all":
                listed = [page for page in file.pages if not getattr(page, "subfiletype", 0) & 0b101]
            for page in listed:
                _check_tags(file.tiff, page, data, path)
            read = [_page(page, path, len(data), order, fill, scaled) for page in listed]
    if pages == "first":
        return read[0]
    if len({(each.shape, each.dtype) for each in read}) > 1:
        raise DataError(f"{path} has pages of several shapes, {[each.shape for each in read]}: give pages='first'")
    stacked: Array = np.ma.stack(read) if fill == "mask" else np.stack(read)
    return stacked


def _page(page: Any, path: str, size: int, order: str, fill: str, scaled: bool) -> Array:
    end = max((at + count for at, count in zip(page.dataoffsets, page.databytecounts, strict=False)), default=0)
    parts, axes = int(np.prod(page.chunked)), page.axes
    if len(page.dataoffsets) < parts or end > size:
        raise DataError(
            f"{path} is cut off or damaged: {parts} parts of its pixels are said to end at byte {end}; it has "
            f"{size} bytes and {len(page.dataoffsets)} parts; copy it again"
        )
    array = page.asarray(maxworkers=1)
    array = _filled(array.astype(array.dtype.newbyteorder("="), copy=False), page, fill)
    if axes not in ("YX", "YXS", "SYX") and (order == "bands first" or scaled):
        raise DataError(f"{path} has the axes {axes}: give order='as stored'")
    if scaled:
        array = _scaled(array, page, axes)
    if order == "bands first":
        array = np.moveaxis(array, -1, 0) if axes == "YXS" else array[None] if axes == "YX" else array
    return array if fill == "mask" else np.ascontiguousarray(array)


def _check_tags(layout: Any, page: Any, data: bytes | bytearray, path: str) -> None:
    """Refuse a page with a damaged tag that decides about pixels, because tifffile skips a tag that it cannot read."""
    at = page.offset + layout.tagnosize
    [count] = struct.unpack_from(layout.tagnoformat, data, page.offset)
    codes = {
        struct.unpack_from(layout.byteorder + "H", data, at + number * layout.tagsize)[0] for number in range(count)
    }
    if damaged := sorted(code for code in codes & OF_PIXELS if code not in page.tags):
        raise DataError(f"{path} has damaged tags of pixels, {damaged}: copy it again")


def _filled(array: Array, page: Any, fill: str) -> Array:
    """The array with its nodata pixels treated as ``fill`` says."""
    if fill == "raw":
        return array
    told = page.tags.get(GDAL_NODATA)
    text = str(told.value).strip("\0 ") if told is not None else ""
    try:
        nodata: Any = int(text) if text.lstrip("-").isdigit() else float(text)
    except ValueError:
        nodata = None
    if array.dtype.kind in "iu" and nodata is not None:  # a value beyond the dtype's range matches no pixel
        limits = np.iinfo(array.dtype)
        nodata = int(nodata) if limits.min <= nodata <= limits.max and nodata == int(nodata) else None
    found = np.isnan(array) if nodata != nodata else array == (0 if nodata is None else array.dtype.type(nodata))
    missing = found & (nodata is not None)
    return np.ma.MaskedArray(array, missing) if fill == "mask" else np.where(missing, np.nan, _floating(array))


def _scaled(array: Array, page: Any, axes: str) -> Array:
    """Each band times GDAL's scale, plus its offset."""
    from xml.etree import ElementTree as ET

    told = page.tags.get(GDAL_METADATA)
    array = _floating(array)
    bands = array.shape[axes.index("S")] if "S" in axes else 1
    factors = {"scale": np.ones(bands), "offset": np.zeros(bands)}
    for item in ET.fromstring(told.value).iter("Item") if told is not None else ():  # noqa: S314 (no file is opened)
        if item.get("role") in factors:
            factors[str(item.get("role"))][int(item.get("sample", 0))] = float(item.text or 0)
    shape = [bands if axis == "S" else 1 for axis in axes]
    scale, offset = (each.reshape(shape).astype(array.real.dtype) for each in factors.values())
    found: Array = array * scale + offset
    return found


def _floating(array: Array) -> Array:
    """The array in floats that hold its numbers: float32 up to 16 bits, else float64; floats and complex stay."""
    wide = np.float32 if array.dtype.itemsize <= 2 else np.float64
    return array if array.dtype.kind in "fc" else array.astype(wide)


def _grouped(path: Where, bands: Sequence[str]) -> Manifest:
    """Manifest of folders: each folder is a sample, with a field for each band."""
    entries = list_files(path, () if bands else SUFFIXES)
    folders: dict[str, dict[str, int]] = {}
    for number, entry in enumerate(entries):
        folder, _, name = entry.path.rpartition("/")
        stem = name.rpartition(".")[0] if name.endswith(SUFFIXES) else name
        folders.setdefault(folder, {})[stem.removeprefix(f"{folder.rpartition('/')[2]}_")] = number
    asked = tuple(bands) or tuple(sorted(next(iter(folders.values()))))
    for folder, found in folders.items():
        if not bands and {*found} - {*asked}:
            raise DataError(f"{folder} has {sorted({*found} - {*asked})}, which others lack: choose with bands=")
    numbers = np.array([[_band(folder, found, band) for band in asked] for folder, found in folders.items()])
    used, places = np.unique(numbers, return_inverse=True)
    kept = [entries[number] for number in used]
    sizes = np.array([entry.size for entry in kept])
    ones, starts = np.ones(len(numbers)), np.zeros(len(numbers))
    fields = [Field.listed(column, ones, starts, sizes[column]) for column in places.reshape(numbers.shape).T]
    return Manifest.of("geotiff", root_of(path), kept, fields, {"bands": list(asked)})


def _band(folder: str, found: dict[str, int], band: str) -> int:
    """Number of the file of a band in a folder."""
    matching = [number for name, number in found.items() if name == band or name.endswith(f"_{band}")]
    if len(matching) != 1:
        raise DataError(
            f"{folder} has {len(matching)} files of band {band!r}, and one is needed in every folder; it has "
            f"{', '.join(sorted(found)[:20])}: complete it, or choose others with bands="
        )
    return matching[0]
