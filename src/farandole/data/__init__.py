"""Read, stage, shuffle, load and profile scientific data sets in their own formats. NumPy only, for every framework.

    from farandole import data

    source = data.hdf5("/lustre/cosmo/train", keys=["x", "y"])
    source = data.stage(source, cache="$TMPDIR", limit="200GB")        # each byte is read from Lustre once in the job
    for batch in data.batches(source, global_batch_size=256, threads=8): ...
    print(data.report())                                               # who waited for input, how long, and why

``hvd.data`` is the same module. It needs ``pip install "farandole[data]"``; names are imported when first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from farandole.data.tools.command import FORMATS

if TYPE_CHECKING:
    from farandole.data.formats.array_record import array_record as array_record
    from farandole.data.formats.arrays import arrays as arrays
    from farandole.data.formats.files import files as files
    from farandole.data.formats.fits import fits as fits
    from farandole.data.formats.geotiff import geotiff as geotiff
    from farandole.data.formats.grib import grib as grib
    from farandole.data.formats.hdf5 import hdf5 as hdf5
    from farandole.data.formats.images import images as images
    from farandole.data.formats.netcdf import netcdf as netcdf
    from farandole.data.formats.parquet import parquet as parquet
    from farandole.data.formats.source import Source as Source
    from farandole.data.formats.tar import tar as tar
    from farandole.data.formats.tfrecord import tfrecord as tfrecord
    from farandole.data.formats.zarr_store import zarr as zarr
    from farandole.data.loading import augment as augment
    from farandole.data.loading.batches import Batches as Batches
    from farandole.data.loading.batches import batches as batches
    from farandole.data.loading.report import report as report
    from farandole.data.staging.progress import await_staged as await_staged
    from farandole.data.staging.stage import stage as stage
    from farandole.data.storage.manifest import Manifest as Manifest
    from farandole.data.tools.doctor import diagnose as diagnose
    from farandole.data.tools.pack import pack as pack

_LATER = {
    "Batches": "loading.batches",
    "Manifest": "storage.manifest",
    "Source": "formats.source",
    "augment": "loading.augment",
    "await_staged": "staging.progress",
    "batches": "loading.batches",
    "diagnose": "tools.doctor",
    "pack": "tools.pack",
    "report": "loading.report",
    "stage": "staging.stage",
}

__all__ = [*FORMATS, *_LATER]  # noqa: PLE0604 (names)


def __getattr__(name: str) -> Any:
    found: Any
    try:
        if name in FORMATS:
            found = importlib.import_module("farandole.data.tools.formats").reader(name)
        elif name in _LATER:
            module = importlib.import_module(f"farandole.data.{_LATER[name]}")
            found = getattr(module, name, module)
        else:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    except ModuleNotFoundError as error:
        if error.name in ("numpy", "xxhash"):
            raise ModuleNotFoundError(
                f'farandole.data needs the package {error.name}: pip install "farandole[data]"', name=error.name
            ) from error
        raise
    globals()[name] = found
    return found
