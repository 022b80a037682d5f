"""Is a real file of arrays read right? Each function compares what a reader gives with the manifest's right values."""

from __future__ import annotations

import tarfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from farandole.data.formats.arrays import arrays
from farandole.data.formats.hdf5 import hdf5
from farandole.data.formats.netcdf import netcdf
from farandole.data.formats.source import Source
from farandole.data.formats.zarr_store import zarr
from farandole.errors import DataError
from tests.support.data.made_arrays import same
from tests.support.data.real_files import digest, finite_sum

with suppress(ImportError):  # h5py asks uname when it is loaded, SciPy sets an environment variable: no test may
    import h5py  # noqa: F401
    import scipy.io  # noqa: F401

Read = Callable[..., Source]
READERS: dict[str, Read] = {"hdf5": hdf5, "netcdf": netcdf, "zarr": zarr, "npy": arrays, "npz": arrays, "mat": arrays}
NEEDED = {"hdf5": "h5py", "netcdf": "h5netcdf", "zarr": "numcodecs", "mat": "scipy"}
"""Library of a format that has one; a test of it skips without."""


def unpacked(path: Path, folder: Path) -> Path:
    """A file of the collection; a store is unpacked first."""
    if not path.name.endswith(".tar.gz"):
        return path
    with tarfile.open(path) as archive:
        archive.extractall(folder, filter="data")
    return folder


def arrays_in(values: dict[str, Any]) -> Iterator[tuple[str | None, dict[str, Any]]]:
    """Name of each array of a file and its right values; ``None`` where the file is one array."""
    yield from values["arrays"].items() if "arrays" in values else [(None, values)]


def check_array(path: Path, kind: str, name: str | None, right: dict[str, Any]) -> None:
    """Whole, by rows, and decoded: as the manifest says, or refused by a sentence with the file's name."""
    reader = READERS[kind]
    told = {**right, **right.get("raw", {})}
    extra = {"raw": True} if kind == "netcdf" else {}
    if "error" in told or "reference" in str(name) or "ref_dataset" in str(name):
        with pytest.raises(DataError, match=r"pickled|references|transposed") as refused:
            reader(path, name)[0]
        assert str(path) in str(refused.value)
        return
    whole = reader(path, name, per="file", **extra)[0]
    compare(whole, told)
    if whole.shape:
        rows = reader(path, name, **extra)
        assert len(rows) == len(whole)
        for number, row in enumerate(rows):
            assert same(row, whole[number, ...]), (name, number)
    if "decoded_sum" in right:
        masked = netcdf(path, name, per="file", fill="mask")[0]
        assert int(np.ma.getmaskarray(masked).sum()) == right["masked"], name
        assert masked.dtype.str == right["decoded_dtype"] or not masked.shape, name  # a masked number is float64 there
        floats = netcdf(path, name, per="file")[0]
        if right["decoded_sum"] is not None:
            assert finite_sum(masked.compressed()) == pytest.approx(right["decoded_sum"], rel=1e-12), name
            if floats.dtype.kind == "f":
                assert finite_sum(floats) == pytest.approx(right["decoded_sum"], rel=1e-6), name


def compare(whole: Any, told: dict[str, Any]) -> None:
    """An array against its right values."""
    assert list(whole.shape) == told["shape"]
    if told["dtype"] != "StringDType()" and whole.dtype.names is None:
        assert whole.dtype.str == told["dtype"]
    if "digest" in told:
        assert digest(whole) == told["digest"]
    if isinstance(told.get("sum"), float):
        assert finite_sum(whole) == pytest.approx(told["sum"], rel=1e-12)
    if whole.dtype.kind in "OSU":
        found = [plain(value) for value in whole.ravel()[: len(told["first"])].tolist()]
        assert found == [plain(value) for value in told["first"]]


def plain(value: Any) -> Any:
    """A text of any kind as Python's own."""
    if isinstance(value, np.ndarray | list):
        return [plain(each) for each in np.asarray(value).ravel().tolist()]
    return value.decode("latin-1") if isinstance(value, bytes) else value
