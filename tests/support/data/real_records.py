"""Checks of real files of records, images and tables: what a reader gives, compared with the manifest."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, final

import numpy as np
import pytest

from farandole.data.formats.array_record import array_record
from farandole.data.formats.fits import fits
from farandole.data.formats.geotiff import geotiff
from farandole.data.formats.grib import grib
from farandole.data.formats.images import images
from farandole.data.formats.parquet import parquet
from farandole.data.formats.source import Source
from farandole.data.formats.tar import tar
from farandole.data.formats.tfrecord import tfrecord
from farandole.data.storage.byte_store import ByteStore, SharedFiles
from farandole.errors import DataError
from tests.support.data.real_files import digest, finite_sum

LIBRARIES = {
    "tfrecord": "google_crc32c", "image": "PIL", "geotiff": "imagecodecs", "tiff": "imagecodecs", "fits": "astropy",
    "grib": "eccodes", "parquet": "pyarrow", "arrow": "pyarrow", "array_record": "array_record",
}  # fmt: skip
"""Library of a format that has one; a test of it skips without."""


def check_tfrecord(path: Path, values: dict[str, Any]) -> None:
    records = list(tfrecord(path))
    assert len(records) == values["records"]
    assert hashlib.sha256(b"".join(records)).hexdigest()[:32] == values["digest"]
    if values["kind"] != "tf.train.Example":
        with pytest.raises(DataError, match=r"no tf\.train\.Example") as refused:
            tfrecord(path, example=True)[0]
        assert str(path) in str(refused.value)
        return
    examples = list(tfrecord(path, example=True))
    assert {name for example in examples for name in example} == {*values["features"]}
    for name, right in values["features"].items():
        lists = [found for example in examples if (found := example.get(name)) is not None and len(found)]
        assert (len(lists), sum(map(len, lists))) == (right["in_records"], right["values"]), name
        flat = [value for each in lists for value in each]
        first = [value.decode() if isinstance(value, bytes) else value for value in flat[: len(right["first"])]]
        assert first == right["first"], name
        if "sum" in right:
            assert finite_sum(flat) == pytest.approx(right["sum"], rel=1e-12), name


def check_tar(path: Path, values: dict[str, Any]) -> None:
    samples = list(tar(path))
    assert len(samples) == values["samples_by_webdataset_rule"]
    found = [
        (key, extension, body)
        for sample in samples
        for extension, body in sample.items()
        if (key := sample["__key__"]) != body
    ]
    assert [(f"{key}.{extension}", len(body)) for key, extension, body in found][:8] == [
        tuple(each) for each in values["members"][:8]
    ]
    assert hashlib.sha256(b"".join(body for *_, body in found)).hexdigest()[:32] == values["digest_of_all_bodies"]


def check_image(path: Path, values: dict[str, Any]) -> None:
    check_array(images(path)[0], values, is_lossy=values["format"] in ("JPEG", "WEBP", "AVIF"))
    turned = images(path, exif=True)[0]
    assert list(turned.shape) == values.get("turned_shape", values["shape"])
    assert np.array_equal(turned, images(path)[0]) == (values["exif_orientation"] in (None, 1))


def check_tiff(path: Path, values: dict[str, Any]) -> None:
    gdal, stored = values["rasterio"], values["tifffile"]
    is_lossy = stored["compression"] in ("JPEG", "WEBP")
    check_array(geotiff(path, order="as stored")[0], stored, is_lossy)
    check_array(geotiff(path)[0], gdal, is_lossy or gdal["dtype"] != stored["dtype"])
    if gdal["nodata"] is not None:
        missing = geotiff(path, fill="mask")[0].mask
        assert np.array_equal(np.isnan(geotiff(path, fill="nan")[0]), missing)
        assert missing.any()


def check_fits(path: Path, values: dict[str, Any]) -> None:
    for number, right in enumerate(values["hdus"]):
        if "shape" in right:
            check_array(fits(path, hdu=number)[0], right)
        elif "columns" in right:
            columns = fits(path, hdu=number)[0]
            assert [*columns] == [*right["columns"]]
            assert {len(column) for column in columns.values()} == {right["rows"]}
        else:
            with pytest.raises(DataError, match="no data"):
                fits(path, hdu=number)[0]
    fits(path)[0]


def check_grib(path: Path, values: dict[str, Any]) -> None:
    names = ("edition", "shortName", "level", "dataDate", "dataTime", "gridType", "packingType")
    messages, raw = grib(path, keys=names), grib(path, fill="raw")
    assert len(messages) == len(raw) == values["count"]
    for number, right in enumerate(values["messages"]):
        found, told = messages[number]
        assert told == {name: right[name] for name in names}
        check_array(raw[number], right)
        assert np.isnan(found).sum() == right["numberOfMissing"]
        assert np.array_equal(np.nan_to_num(found, nan=9999.0), raw[number])


def check_parquet(path: Path, values: dict[str, Any]) -> None:
    if "with_checksum" in values:
        with pytest.raises(DataError, match="CRC checksum") as refused:
            parquet(path)[0]
        assert str(path) in str(refused.value)
        return
    rows = list(parquet(path))
    assert len(rows) == values["rows"]
    for name, right in values["columns"].items():
        column = [row[name] for row in rows]
        assert sum(value is None for value in column) == right["nulls"], name
        assert [_plain(value, right["type"]) for value in column[:2]] == right["first"], name
        if "sum" in right:
            assert finite_sum([value for value in column if value is not None]) == pytest.approx(
                right["sum"], rel=1e-12
            ), name


def _plain(value: Any, kind: str) -> Any:
    """A value as JSON has it."""
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    if isinstance(value, np.datetime64):
        return str(value).replace("T", " ").rstrip("0").rstrip(".").ljust(19, "0")
    return value


def check_array_record(path: Path, values: dict[str, Any]) -> None:
    records = list(array_record(path))
    assert len(records) == values["records"]
    assert hashlib.sha256(b"".join(records)).hexdigest()[:32] == values["digest"]


def check_array(found: Any, right: dict[str, Any], is_lossy: bool = False) -> None:
    """Compare shape, sum, and, unless decoders may differ in the last bit, every byte."""
    assert list(found.shape) == right["shape"]
    assert found.dtype.isnative
    assert finite_sum(found) == pytest.approx(right["sum"], rel=1e-5 if is_lossy else 1e-12)
    if is_lossy:
        assert np.allclose(np.asarray(found).ravel()[:4], right["first"], atol=2)
    else:
        assert digest(found) == right["digest"]


CHECKS = {
    "tfrecord": check_tfrecord, "tar": check_tar, "image": check_image, "geotiff": check_tiff, "tiff": check_tiff,
    "fits": check_fits, "grib": check_grib, "parquet": check_parquet, "arrow": check_parquet,
    "array_record": check_array_record,
}  # fmt: skip
"""The check of each format."""


def opened(kind: str, path: Path) -> Source:
    """The source of a real file."""
    openers: dict[str, Callable[[Path], Source]] = {
        "tfrecord": tfrecord, "tar": tar, "image": images, "geotiff": geotiff, "tiff": geotiff, "fits": fits,
        "grib": grib, "parquet": parquet, "arrow": parquet, "array_record": array_record,
    }  # fmt: skip
    return openers[kind](path)


@final
class WatchedFiles(ByteStore):
    """Files that no library may open by itself, and the ranges that were read of each."""

    def __init__(self) -> None:
        self._files, self.read_ranges = SharedFiles(), list[tuple[str, int, int]]()

    def size(self, path: str) -> int:
        return self._files.size(path)

    def read_into(self, path: str, offset: int, buffer: memoryview) -> None:
        self.read_ranges.append((path, offset, len(buffer)))
        self._files.read_into(path, offset, buffer)


def same(one: Any, other: Any) -> bool:
    """True if two samples are equal, NaN included."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(value, other[key]) for key, value in one.items())
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, np.ndarray | np.generic):
        return (
            one.dtype == other.dtype
            and np.shape(one) == np.shape(other)
            and np.asarray(one).tobytes() == np.asarray(other).tobytes()
        )
    return type(one) is type(other) and bool(one == other)
