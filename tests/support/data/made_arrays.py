"""Files of arrays made by the formats' own libraries, for tests of our readers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, final

import numpy as np
from hypothesis import strategies as st

from farandole.data.formats.stored_array import row_of
from farandole.data.storage.byte_store import ByteStore, SharedFiles

DTYPES = ("u1", "<i2", ">i4", "<i8", "<f4", ">f8", "<f2", "<c8", "?")


@final
class FarStore(ByteStore):
    """Files of this machine as a store without local paths has them: libraries must take its file objects."""

    def __init__(self) -> None:
        self._files = SharedFiles()

    def size(self, path: str) -> int:
        return self._files.size(path)

    def read_into(self, path: str, offset: int, buffer: memoryview) -> None:
        self._files.read_into(path, offset, buffer)

    def close(self) -> None:
        self._files.close()


@final
class Case:
    """An array, how it is cut into chunks, and the axis of its samples."""

    def __init__(self, draw: Callable[..., Any]) -> None:
        self.shape: tuple[int, ...] = tuple(draw(st.lists(st.integers(1, 7), min_size=1, max_size=3)))
        self.chunk = tuple(draw(st.integers(1, size)) for size in self.shape)
        self.dtype = draw(st.sampled_from(DTYPES))
        self.axis: int = draw(st.integers(0, len(self.shape) - 1))
        seed = draw(st.integers(0, 9))
        values = np.random.default_rng(seed).integers(0, 100, self.shape)
        self.array = values.astype(self.dtype)

    def __repr__(self) -> str:
        return f"Case({self.shape}, chunk={self.chunk}, {self.dtype}, axis={self.axis})"

    def row(self, number: int) -> Any:
        """One sample."""
        return row_of(self.array, self.axis, number)


cases = st.composite(Case)


def same(found: Any, right: Any) -> bool:
    """Equal values, NaN where NaN is; arrays of objects compare by their items."""
    found, right = np.asarray(found), np.asarray(right)
    if found.dtype.hasobject or found.dtype.names is not None:
        return bool(
            found.dtype == right.dtype and found.shape == right.shape and str(found.tolist()) == str(right.tolist())
        )
    return np.array_equal(found, right, equal_nan=found.dtype.kind in "fc") and found.dtype == right.dtype


@contextmanager
def zarr_library() -> Iterator[Any]:
    """The ``zarr`` package, whose event loop ends with the block."""
    import zarr
    from zarr.core.sync import cleanup_resources

    try:
        yield zarr
    finally:
        cleanup_resources()


def write_netcdf(path: Path, layout: str, variables: dict[str, tuple[tuple[str, ...], Any]], **attributes: Any) -> None:
    """A NetCDF file by the netCDF4 package; ``time`` is its record dimension."""
    import netCDF4

    with netCDF4.Dataset(path, "w", format=layout) as file:  # type: ignore[arg-type]
        for dims, values in variables.values():
            for dim, size in zip(dims, np.shape(values), strict=True):
                if dim not in file.dimensions:
                    file.createDimension(dim, None if dim == "time" else size)
        for name, (dims, values) in variables.items():
            fill = attributes.get(name, {}).pop("_FillValue", None)
            made = file.createVariable(name, np.asarray(values).dtype, dims, fill_value=fill)
            made.setncatts(attributes.get(name, {}))
            made.set_auto_maskandscale(False)
            made[...] = values
