"""HDF5 and NetCDF files that h5py and netCDF4 have written: equal to what these libraries read, or refused by name."""

from __future__ import annotations

import gc
import re
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farandole.data.formats.arrays import arrays
from farandole.data.formats.hdf5 import hdf5
from farandole.data.formats.netcdf import netcdf
from farandole.data.formats.source import Source
from farandole.errors import DataError, UsageError
from tests.support.data.made_arrays import Case, FarStore, cases, same, write_netcdf

h5py = pytest.importorskip("h5py")
pytest.importorskip("netCDF4")

RANGES: list[dict[str, Any]] = [
    {},
    {"compression": "gzip"},
    {"shuffle": True, "fletcher32": True},
    {"compression": "gzip", "shuffle": True},
]
LIBRARY: list[dict[str, Any]] = [{"compression": "lzf"}, {"scaleoffset": 0}]
SKIPPED: list[dict[str, Any]] = []
"""Filters that leave out chunks which would grow: a data set with one is read by HDF5."""

with suppress(ImportError):
    import hdf5plugin

    SKIPPED += [dict(hdf5plugin.Blosc()), dict(hdf5plugin.Zstd())]
    LIBRARY += [dict(hdf5plugin.LZ4()), dict(hdf5plugin.Bitshuffle()), dict(hdf5plugin.Blosc2())]


def lane_of(source: Source) -> str:
    """How the only array of a source is read."""
    return str(source.manifest.details["layouts"][0]["lane"])


@given(cases(), st.sampled_from([*RANGES, *LIBRARY, *SKIPPED, None]), st.booleans())
def test_chunks_and_rows_equal_what_h5py_reads(case: Case, filters: dict[str, Any] | None, is_far: bool) -> None:
    if filters is not None and "scaleoffset" in filters and case.array.dtype.kind not in "iu":
        filters = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "made.h5"
        with h5py.File(path, "w") as file:
            more = {} if filters is None else {"chunks": case.chunk, **filters}
            file.create_dataset("group/x", data=case.array, **more)
        source = hdf5(path, "group/x", along=case.axis, store=FarStore() if is_far else None)
        assert len(source) == case.shape[case.axis]
        for number in range(len(source)):
            assert same(source[number], case.row(number))
        assert same(hdf5(path, "group/x", per="file")[0], case.array)
        assert source.holds_lock == (lane_of(source) == "library")
        if filters not in SKIPPED:
            assert source.holds_lock == (filters in LIBRARY)


def test_chunks_that_were_never_written_hold_the_fill_value_and_user_blocks_are_skipped(tmp_path: Path) -> None:
    path = tmp_path / "made.h5"
    with h5py.File(path, "w", userblock_size=1024) as file:
        made = file.create_dataset("x", (6, 4), ">i2", chunks=(2, 3), fillvalue=-7, compression="gzip")
        made[2] = 5
        file.create_dataset("y", data=np.arange(12.0).reshape(6, 2))
        file.create_dataset("late", (6, 2), "<f4", fillvalue=3)
    for key in ("x", "y", "late"):
        with h5py.File(path, locking=False) as file:
            right = file[key][()]
        source = hdf5(path, key)
        assert all(same(source[number], right[number]) for number in range(6)), key
        assert same(hdf5(path, key, native=True)[2], right[2].astype(right.dtype.newbyteorder("=")))
    gc.collect()


def test_layouts_of_cosmoflow_and_deepcam(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    for number in range(3):
        with h5py.File(tmp_path / f"cosmo-{number}.hdf5", "w") as file:
            file["full"], file["unitPar"] = rng.integers(0, 9, (8, 8, 8, 4), np.int16), rng.random(4, np.float32)
        with h5py.File(tmp_path / f"data-2000-{number}.h5", "w") as file:
            file.create_dataset("climate/data", data=rng.random((12, 16, 16), np.float32), chunks=(1, 16, 16))
            file.create_dataset("climate/labels_0", data=rng.integers(0, 3, (12, 16)))
    cosmo = hdf5(
        f"{tmp_path}/cosmo-*", ["full", "unitPar"], lambda s: (s["full"].shape, s["unitPar"].shape), per="file"
    )
    assert list(cosmo) == [((8, 8, 8, 4), (4,))] * 3
    climate = hdf5(f"{tmp_path}/data*.h5", ["climate/data", "climate/labels_0"], per="file")
    assert len(climate) == 3
    assert not climate.holds_lock
    with h5py.File(tmp_path / "data-2000-2.h5") as file:
        assert same(climate[2]["climate/data"], file["climate/data"][()])
    both = hdf5(f"{tmp_path}/data*.h5", ["climate/labels_0", "climate/data"])
    assert len(both) == 36
    assert both[35]["climate/data"].shape == (16, 16)
    both.manifest.save(tmp_path / "index")
    again = hdf5(index=tmp_path / "index")
    assert all(same(again[17][key], both[17][key]) for key in both[17])


def test_virtual_data_sets_in_one_file_are_read_and_numbers_in_other_files_refused(tmp_path: Path) -> None:
    path, other = tmp_path / "virtual.h5", tmp_path / "part.h5"
    with h5py.File(other, "w") as file:
        file["x"] = np.arange(4)
    with h5py.File(path, "w") as file:
        file["own"] = np.arange(4)
        near, far = h5py.VirtualLayout((4,), "i8"), h5py.VirtualLayout((4,), "i8")
        near[:], far[:] = h5py.VirtualSource(".", "own", (4,)), h5py.VirtualSource("part.h5", "x", (4,))
        file.create_virtual_dataset("near", near)
        file.create_virtual_dataset("far", far)
        file.create_dataset("outside", (4,), "i8", external=[("numbers.raw", 0, 32)])
        file["linked"] = h5py.ExternalLink("part.h5", "x")
    assert [int(row) for row in hdf5(path, "near")] == [0, 1, 2, 3]
    for key, name in {"far": "part.h5", "outside": "numbers.raw", "linked": "part.h5"}.items():
        with pytest.raises(DataError, match=f"{key} keeps its numbers in .*{name}: read"):
            hdf5(path, key)
    gc.collect()


def test_a_file_that_this_process_has_open_and_locked_is_read(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("x", data=np.arange(4), compression="lzf")
    with h5py.File(tmp_path / "x.h5", "r", locking=True):
        assert hdf5(tmp_path / "x.h5", "x")[3] == 3
    gc.collect()


def test_what_is_not_read_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "made.h5"
    with h5py.File(path, "w") as file:
        file["x"], file["y"] = np.arange(4), np.arange(5)
        file["empty"] = h5py.Empty("f4")
        file["refers"] = np.array([(1, file["x"].ref)], [("n", "i4"), ("to", h5py.ref_dtype)])
        plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        plist.set_chunk((4,))
        plist.set_filter(305, h5py.h5z.FLAG_OPTIONAL)
        h5py.h5d.create(file.id, b"lzo", h5py.h5t.NATIVE_INT32, h5py.h5s.create_simple((4,)), plist)
    refused = {
        ("x", "y"): "keys differ in the number of samples: x has 4, y has 5",
        "z": r"has no array 'z' \('empty', 'lzo', 'refers', 'x', 'y'\)",
        "empty": "null data space",
        "refers": "references",
        "lzo": r"filter 305 \(LZO\), which this HDF5 lacks",
    }
    for keys, sentence in refused.items():
        with pytest.raises(DataError, match=sentence) as error:
            hdf5(path, keys)
        assert str(path) in str(error.value)
    with pytest.raises(DataError, match="several arrays"):
        hdf5(path)
    with pytest.raises(UsageError, match="per="):
        hdf5(path, "x", per="row")
    for name, data, sentence in (("a.h5", b"\x0e\x03\x13\x01 and more", "HDF4"), ("b.h5", b"no HDF5", "no HDF5 file")):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(DataError, match=sentence):
            hdf5(tmp_path / name)
    half = tmp_path / "half.h5"
    half.write_bytes(path.read_bytes()[:3000])
    with pytest.raises(DataError, match="cannot be read as HDF5"):
        hdf5(half, "x")


FORK = """
import multiprocessing, sys
from farandole.data.formats.hdf5 import hdf5
from farandole.errors import DataError
def read(key):
    try:
        return [int(row) for row in hdf5(sys.argv[1], key)] if key == "x" else [int(row) for row in free]
    except DataError as error:
        return str(error)
free = hdf5(sys.argv[1], "y")
with multiprocessing.get_context("fork").Pool(1) as pool:
    print(*pool.map(read, ["x", "y"]), sep=chr(10))
"""


def test_a_fork_of_a_process_that_has_used_h5py_is_refused_and_ranges_are_read(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("x", data=np.arange(4), chunks=(2,), compression="lzf")
        file.create_dataset("y", data=np.arange(4))
    command = [sys.executable, "-W", "error", "-c", FORK, str(tmp_path / "x.h5")]
    refused, read = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    assert re.search("forked from one that has used h5py.*forkserver", refused)
    assert read == "[0, 1, 2, 3]"


LAYOUTS = ("NETCDF3_CLASSIC", "NETCDF3_64BIT_OFFSET", "NETCDF3_64BIT_DATA", "NETCDF4", "NETCDF4_CLASSIC")


@given(
    st.sampled_from(LAYOUTS), st.integers(0, 4), st.integers(1, 3), st.sampled_from(("i1", "i2", "f4", "f8")), st.data()
)
def test_netcdf_equals_what_netcdf4_reads(layout: str, records: int, odd: int, dtype: str, data: st.DataObject) -> None:
    import netCDF4

    more = data.draw(st.lists(st.sampled_from(("i1", "i2", "i4", "f8")), max_size=2))
    made: dict[str, Any] = {"x": (("time", "odd"), np.arange(records * odd).reshape(records, odd).astype(dtype))}
    made |= {f"r{at}": (("time",), np.arange(records).astype(each)) for at, each in enumerate(more)}
    made["fixed"] = (("lat", "odd"), np.arange(2 * odd).reshape(2, odd).astype(dtype))
    made["scalar"] = ((), np.array(3, "i4"))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "made.nc"
        write_netcdf(path, layout, made)
        with netCDF4.Dataset(path) as file:
            file.set_auto_maskandscale(False)
            right = {name: np.asarray(file[name][...]) for name in made}
        for name, (dims, _) in made.items():
            assert same(netcdf(path, name, per="file", raw=True)[0], right[name])
            for axis, dim in enumerate(dims):
                source = netcdf(path, name, along=dim, raw=True)
                assert len(source) == right[name].shape[axis]
                assert all(same(row, right[name].take(at, axis)) for at, row in enumerate(source)), (name, dim)
                assert not source.holds_lock or layout.startswith("NETCDF4")


ATTRIBUTES: list[tuple[str, dict[str, Any]]] = [
    ("i2", {"scale_factor": 0.5, "add_offset": 10.0, "_FillValue": np.int16(3)}),
    ("i2", {"scale_factor": np.float32(0.5), "missing_value": np.array([1, 4], "i2")}),
    ("i1", {"_Unsigned": "true", "_FillValue": np.int8(-1), "scale_factor": 2.0}),
    ("f4", {"valid_range": np.array([1, 5], "f4")}),
    ("f8", {"valid_min": 2.0}),
    ("i4", {"valid_max": np.int32(4), "missing_value": "none"}),
    ("f4", {"_FillValue": np.float32(np.nan)}),
    ("f4", {"missing_value": 1e20}),
]


@pytest.mark.parametrize("layout", ["NETCDF3_CLASSIC", "NETCDF4"])
@pytest.mark.parametrize(("dtype", "told"), ATTRIBUTES)
@pytest.mark.filterwarnings("ignore:WARNING. missing_value not used:UserWarning")
def test_values_mean_what_netcdf4_says(tmp_path: Path, layout: str, dtype: str, told: dict[str, Any]) -> None:
    import netCDF4

    values = np.array([0, 1, 2, 3, 4, 5, 6, -1], dtype)
    values[-1] = 1e20 if dtype[0] == "f" else -1
    write_netcdf(tmp_path / "made.nc", layout, {"x": (("time",), values)}, x=dict(told))
    with netCDF4.Dataset(tmp_path / "made.nc") as file:
        right: Any = np.ma.asarray(file["x"][...])
    masked = netcdf(tmp_path / "made.nc", "x", per="file", fill="mask")[0]
    assert (np.ma.getmaskarray(masked) == np.ma.getmaskarray(right)).all()
    assert same(masked.compressed(), right.compressed())
    found = netcdf(tmp_path / "made.nc", "x", per="file")[0]
    assert found.dtype.kind == "f"
    assert same(found.astype("f8"), right.astype("f8").filled(np.nan))
    stored = netcdf(tmp_path / "made.nc", "x", per="file", raw=True)[0]
    assert same(stored, values)


def test_times_as_numbers_and_as_dates(tmp_path: Path) -> None:
    pytest.importorskip("cftime")
    hours = np.array([0, 12, 36], "i4")
    for name, calendar in (("a", "standard"), ("b", "360_day")):
        told = {"units": "hours since 2001-02-27 00:30", "calendar": calendar}
        write_netcdf(tmp_path / f"{name}.nc", "NETCDF3_CLASSIC", {"time": (("time",), hours)}, time=told)
    standard, other = tmp_path / "a.nc", tmp_path / "b.nc"
    assert [int(time) for time in netcdf(standard, "time")] == [0, 12, 36]
    dates = netcdf(standard, "time", per="file", time="datetime64")[0]
    assert dates.tolist() == np.array(["2001-02-27T00:30", "2001-02-27T12:30", "2001-02-28T12:30"], "M8[us]").tolist()
    assert str(netcdf(other, "time", per="file", time="cftime")[0][2]) == "2001-02-28 12:30:00"
    with pytest.raises(DataError, match=r"calendar '360_day' have no datetime64.*time='cftime'"):
        netcdf(other, "time", per="file", time="datetime64")[0]


def test_damaged_netcdf3_and_what_is_none_are_refused_by_name(tmp_path: Path) -> None:
    good = tmp_path / "good.nc"
    made: dict[str, Any] = {"big": (("lat",), np.arange(9.0)), "small": (("lat",), np.arange(9.0))}
    write_netcdf(good, "NETCDF3_64BIT_DATA", made)
    data = bytearray(good.read_bytes())
    begin = data.rindex((len(data) - 72).to_bytes(8, "big"))
    overlap = bytes(data[:begin]) + (len(data) - 144 + 8).to_bytes(8, "big") + bytes(data[begin + 8 :])
    cases = {
        "small begins at byte": overlap,
        "is truncated": bytes(data[:-8]),
        "its header goes on beyond its end": bytes(data[:60]),
        "type 99 at byte": bytes(data).replace(b"\0\0\0\6", b"\0\0\0\x63"),
        "HDF4": b"\x0e\x03\x13\x01" + bytes(99),
        "no NetCDF file": b"just a text, and no file of numbers",
    }
    for number, (sentence, text) in enumerate(cases.items()):
        path = tmp_path / f"{number}.nc"
        path.write_bytes(text)
        with pytest.raises(DataError, match=sentence) as error:
            netcdf(path, "big")
        assert str(path) in str(error.value)
    with pytest.raises(DataError, match="served by DAP"):
        netcdf("https://host/thredds/dodsC/era5.nc", "big")
    with pytest.raises(DataError, match="no axis 'time', but lat"):
        netcdf(good, "big", along="time")


@pytest.mark.parametrize("filters", [{}, {"chunks": (2, 1, 2), "compression": "gzip"}, {"compression": "lzf"}])
def test_mat_7_3_has_the_axes_of_matlab(tmp_path: Path, filters: dict[str, Any]) -> None:
    x = np.arange(24.0).reshape(4, 3, 2)
    with h5py.File(tmp_path / "made.mat", "w", userblock_size=512 if not filters else 0) as file:
        made = file.create_dataset("x", data=x.T, **filters)
        made.attrs["MATLAB_class"] = np.bytes_("double")
        file.create_dataset("#refs#/a", data=np.arange(2))
        empty = file.create_dataset("none", data=np.array([0, 0], "u8"))
        empty.attrs["MATLAB_empty"] = 1
    assert same(arrays(tmp_path / "made.mat", "x", per="file")[0], x)
    for axis in range(3):
        source = arrays(tmp_path / "made.mat", "x", along=axis)
        assert all(same(row, x.take(at, axis)) for at, row in enumerate(source))
    with pytest.raises(DataError, match="none is an empty array"):
        arrays(tmp_path / "made.mat", "none")
