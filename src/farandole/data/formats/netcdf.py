"""NetCDF files, 3 and 4: variables by name, decoded by the Climate and Forecast conventions.

    source = netcdf("/lustre/era5/*.nc", variables=["t2m", "msl"], along="time")
    source = netcdf("/lustre/modis.nc", "ndvi", raw=True)                   # the numbers as stored

Scale and offset are applied and missing values are NaN (``fill="mask"``: masked arrays; ``fill="raw"``: unchanged);
``farandole.data.formats.cf`` has the rules. Time axes stay numbers unless ``time="datetime64"`` or ``time="cftime"``
asks for dates. Values have the byte order of this machine.

NetCDF-3 (CDF-1, CDF-2, CDF-5) is read by byte ranges, NetCDF-4 like HDF5. The netCDF4 library is never loaded beside
h5py, because the two crash when threads use both.
"""

from __future__ import annotations

from contextlib import suppress

from farandole.data.formats import cf
from farandole.data.formats.hdf5 import Hdf5Library, h5_file, keys_of, stored_array
from farandole.data.formats.netcdf3 import is_netcdf3, read_arrays
from farandole.data.formats.reading import Index, translated
from farandole.data.formats.source import Decode, Source, load_index
from farandole.data.formats.stored_array import Keys, Member, Options, array_source, chosen_keys, opened
from farandole.data.storage.byte_store import ByteStore
from farandole.data.storage.listing import FileEntry, Where, list_files
from farandole.data.storage.stores import store_for
from farandole.errors import DataError

SUFFIXES = (".nc", ".nc3", ".nc4", ".nc5", ".cdf", ".netcdf")


def netcdf(
    path: Where = "",
    variables: Keys = None,
    decode: Decode | None = None,
    *,
    along: int | str = 0,
    per: str = "sample",
    raw: bool = False,
    fill: cf.Fill = "nan",
    time: cf.Time = "numbers",
    index: Index = None,
    store: ByteStore | None = None,
) -> Source:
    """Samples of NetCDF files: steps along a dimension of all files in the order of their paths; or whole files.

    ``along`` is a dimension's name or number, ``per="file"`` makes each file a sample. Raises ``DataError`` with file
    and reason for HDF4, DAP, a header that contradicts itself, and dates without a datetime64.
    """
    if index is not None:
        return opened(load_index(index, "netcdf"), decode, store, Hdf5Library)
    if isinstance(path, str) and "/dodsC/" in path:
        raise DataError(f"{path} is served by DAP, which is not read: download the file itself (…/fileServer/…)")
    entries = list_files(path, SUFFIXES)
    reader = store or store_for(entries[0].path)
    members = [_member(reader, entry, number, variables) for number, entry in enumerate(entries)]
    asked = None if raw else {"fill": fill, "time": time}
    options = Options(variables, along, per, True, asked)
    return array_source("netcdf", path, entries, members, options, Hdf5Library, decode, store)


def _member(store: ByteStore, entry: FileEntry, number: int, variables: Keys) -> Member:
    path = entry.path
    if is_netcdf3(store.read(path, 0, min(4, entry.size))):
        arrays = read_arrays(store, path)
        return number, {name: arrays[name] for name in chosen_keys(variables, list(arrays), path, "variables")}
    with translated(path, "NetCDF-4"), h5_file(store, path, "NetCDF") as file:
        import h5netcdf

        names = keys_of(file, variables, path, "variables")
        dims: dict[str, tuple[str, ...]] = {}
        no_names = suppress(KeyError, ValueError, RuntimeError, TypeError)  # the file is plain HDF5
        with no_names, h5netcdf.File(file, "r", phony_dims="access") as named:
            dims = {name: tuple(named[name].dimensions) for name in names}
        return number, {name: stored_array(file, name, path, number, dims.get(name, ())) for name in names}
