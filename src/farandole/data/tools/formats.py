"""Readers by the names of their formats, for the commands and for ``farandole.data``.

reader("hdf5")("/lustre/set", keys=["x"])
format_of("/lustre/set")                    # "hdf5", by the names of the files
"""

from __future__ import annotations

import functools
import importlib
import inspect
from collections import Counter
from collections.abc import Callable
from pathlib import PurePath
from typing import Any

from farandole.data.formats.source import Source, load_index, made_once
from farandole.data.storage.listing import Where, list_files
from farandole.data.storage.manifest import Manifest
from farandole.data.tools.command import FORMATS
from farandole.errors import UsageError

Reader = Callable[..., Source]

MODULES = {name: name for name in FORMATS} | {"zarr": "zarr_store"}
"""Module of each format below ``farandole.data.formats``; its function has the name of the format."""

BAKED = ("hdf5", "netcdf", "zarr", "arrays")
"""Formats whose index also fixes what is read: keys, axis, scaling."""

SUFFIXES = {
    ".tfrecord": "tfrecord", ".tfrecords": "tfrecord", ".h5": "hdf5", ".hdf5": "hdf5", ".nc": "netcdf",
    ".nc4": "netcdf", ".zarr": "zarr", ".tif": "geotiff", ".tiff": "geotiff", ".tar": "tar", ".png": "images",
    ".jpg": "images", ".jpeg": "images", ".npy": "arrays", ".npz": "arrays", ".mat": "arrays", ".fits": "fits",
    ".grib": "grib", ".grb": "grib", ".parquet": "parquet", ".arrow": "parquet", ".array_record": "array_record",
}  # fmt: skip


def reader(name: str) -> Reader:
    """The reader of a format. In a job of several ranks all of them call it, and rank 0 lists and indexes.

    Raises ``UsageError``, with all names, for an unknown format.
    """
    if name not in MODULES:
        raise UsageError(f"there is no format {name!r}, but {', '.join(MODULES)}")
    read: Reader = getattr(importlib.import_module(f"farandole.data.formats.{MODULES[name]}"), name)

    def listed(path: Where, *arguments: Any, **options: Any) -> Manifest:
        manifest = read(path, *arguments, **options).manifest
        if name in BAKED:
            manifest.details["asked"] = _asked(read, arguments, options)
        return manifest

    @functools.wraps(read)
    def once(path: Where = "", *arguments: Any, index: Any = None, **options: Any) -> Source:
        if index is None:
            index = made_once(lambda: listed(path, *arguments, **options))
        elif name in BAKED:
            index = load_index(index, name)
            _require_asked(index, _asked(read, arguments, options))
        return read(path, *arguments, index=index, **options)

    return once


def _asked(read: Reader, arguments: tuple[Any, ...], options: dict[str, Any]) -> dict[str, str]:
    """Arguments on which the index of a reader depends, if they differ from the defaults."""
    signature = inspect.signature(read)
    given = signature.bind_partial("", *arguments, **options).arguments
    defaults = {name: parameter.default for name, parameter in signature.parameters.items()}
    free = ("path", "decode", "index", "store")
    return {name: repr(value) for name, value in given.items() if name not in free and value != defaults[name]}


def _require_asked(manifest: Manifest, asked: dict[str, str]) -> None:
    made = manifest.details.get("asked", {})
    for name, value in asked.items():
        if made.get(name) != value:
            raise UsageError(
                f"{name}={value} is asked for, and the index was made with {made.get(name, 'its default')}: leave "
                "it out, or make another index"
            )


def format_of(path: Where) -> str:
    """Format of the files of a data set, by their suffixes. Raises ``UsageError`` if these do not determine one."""
    names = [PurePath(entry.path) for entry in list_files(path)]
    if any(part.endswith(".zarr") for name in names for part in name.parts):
        return "zarr"
    found = Counter(SUFFIXES[suffix] for name in names for suffix in name.suffixes if suffix in SUFFIXES)
    if len(found) == 1:
        return next(iter(found))
    seen = ", ".join(sorted({name.suffix or name.name for name in names})[:8])
    raise UsageError(
        f"the names of the files tell no single format ({seen}): give --format, one of {', '.join(MODULES)}"
    )
