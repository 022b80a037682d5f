"""Zarr stores that the zarr package has written: equal to what it reads, chunk by chunk, or refused by name."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farandole.data.formats.stored_array import row_of
from farandole.data.formats.zarr_store import zarr
from farandole.errors import DataError
from tests.support.data.made_arrays import Case, FarStore, cases, same, zarr_library

pytest.importorskip("zarr")
pytest.importorskip("numcodecs")


@pytest.fixture
def library() -> Iterator[Any]:
    with zarr_library() as zarr_package:
        yield zarr_package


def compressors(version: int) -> list[Any]:
    """Compressors of a version of Zarr."""
    import numcodecs
    from zarr import codecs

    if version == 2:
        return [None, numcodecs.Blosc(), numcodecs.Zlib(), numcodecs.LZ4(), numcodecs.Zstd(), numcodecs.LZMA()]
    return [
        None,
        codecs.BloscCodec(),
        codecs.GzipCodec(),
        codecs.ZstdCodec(),
        [codecs.GzipCodec(), codecs.Crc32cCodec()],
    ]


def draw_options(data: st.DataObject, case: Case) -> dict[str, Any]:
    """How a store is to be written."""
    import numcodecs
    from zarr import codecs

    version = data.draw(st.sampled_from((2, 3)))
    options: dict[str, Any] = {"zarr_format": version, "chunks": case.chunk, "dtype": case.array.dtype}
    options["compressors"] = data.draw(st.sampled_from(compressors(version)))
    if version == 2:
        options["order"] = data.draw(st.sampled_from("CF"))
        separator = data.draw(st.sampled_from("./"))
        if case.array.dtype.kind in "iu":
            options["filters"] = data.draw(
                st.sampled_from([None, [numcodecs.Delta(case.dtype)], [numcodecs.Shuffle(case.array.itemsize)]])
            )
    else:
        separator = data.draw(st.sampled_from("./"))
        axes = data.draw(st.permutations(range(len(case.shape))))
        options["filters"] = data.draw(st.sampled_from([None, [codecs.TransposeCodec(order=axes)]]))
        options["serializer"] = codecs.BytesCodec(endian=data.draw(st.sampled_from(("little", "big"))))
        if data.draw(st.booleans()):
            options["shards"] = tuple(part * data.draw(st.integers(1, 3)) for part in case.chunk)
    if data.draw(st.booleans()):
        options["fill_value"] = case.array.dtype.type(1)
    options["chunk_key_encoding"] = {"name": "v2" if version == 2 else "default", "separator": separator}
    return options


def test_chunks_and_shards_equal_what_zarr_reads(library: Any) -> None:
    given(cases(), st.data())(lambda case, data: check_store(library, case, data))()


def check_store(package: Any, case: Case, data: st.DataObject) -> None:
    """Write a store with one array, and read it by both."""
    with tempfile.TemporaryDirectory() as folder:
        root = os.path.join(folder, "made.zarr")
        made = package.create_array(root, name="group/x", shape=case.shape, **draw_options(data, case))
        whole = tuple(slice(0, data.draw(st.integers(1, size))) for size in case.shape)
        made[whole] = case.array[whole]
        right = np.asarray(package.open_array(root, path="group/x", mode="r")[...])
        source = zarr(root, "group/x", along=case.axis, store=FarStore() if data.draw(st.booleans()) else None)
        assert len(source) == case.shape[case.axis]
        for number, row in enumerate(source):
            assert same(row, row_of(right, case.axis, number))
        assert same(zarr(root, "group/x", per="file")[0], right)
        assert not source.holds_lock
        with zipfile.ZipFile(os.path.join(folder, "made.zarr.zip"), "w") as archive:
            for path in sorted(path for path in Path(root).rglob("*") if path.is_file()):
                archive.write(path, path.relative_to(root))
        assert same(zarr(os.path.join(folder, "made.zarr.zip"), "group/x", per="file")[0], right)


def test_several_arrays_dimensions_and_stores(library: Any, tmp_path: Path) -> None:
    for number in range(2):
        root = library.open_group(tmp_path / f"{number}.zarr", mode="w")
        for name, dtype in (("t2m", "f4"), ("msl", "f8")):
            made = root.create_array(
                name, shape=(3, 4, 5), chunks=(1, 4, 5), dtype=dtype, dimension_names=("time", "y", "x")
            )
            made[...] = np.arange(60).reshape(3, 4, 5) + 100 * number
        root.create_array("y", shape=(4,), dtype="f4", dimension_names=("y",))
    source = zarr(
        f"{tmp_path}/*.zarr", ["t2m", "msl"], lambda sample: (sample["t2m"][0, 0], sample["msl"].dtype), along="time"
    )
    assert [int(first) for first, _ in source] == [0, 20, 40, 100, 120, 140]
    assert [len(extents) for extents in map(source.manifest.extents, range(6))] == [2] * 6
    source.manifest.save(tmp_path / "index")
    assert zarr(index=tmp_path / "index")[4]["t2m"][0, 1] == 121
    for asked, sentence in (
        (["t2m", "y"], "y has no axis 'time', but y"),
        ("z", r"no array 'z' \('msl', 't2m', 'y'\)"),
    ):
        with pytest.raises(DataError, match=sentence):
            zarr(tmp_path / "0.zarr", asked, along="time")
    with pytest.raises(DataError, match="t2m has 3, y has 4"):
        zarr(tmp_path / "0.zarr", ["t2m", "y"])


def test_values_as_cf_means_them_on_request(library: Any, tmp_path: Path) -> None:
    told = {"scale_factor": 0.5, "add_offset": 10.0, "_FillValue": -1}
    made = library.create_array(tmp_path / "x.zarr", shape=(3,), chunks=(1,), dtype="i2", attributes=told)
    made[...] = [2, -1, 4]
    assert [int(value) for value in zarr(tmp_path / "x.zarr")] == [2, -1, 4]
    assert [float(value) for value in zarr(tmp_path / "x.zarr", scaled=True)] == [11.0, 9.5, 12.0]
    assert np.array_equal(
        list(zarr(tmp_path / "x.zarr", scaled=True, fill="nan")), [11.0, np.nan, 12.0], equal_nan=True
    )


def test_damaged_shards_are_refused_by_name(library: Any, tmp_path: Path) -> None:
    root = tmp_path / "made.zarr"
    made = library.create_array(root, shape=(8, 4), chunks=(1, 4), shards=(4, 4), dtype="i4")
    made[...] = 7
    shard = root / "c" / "0" / "0"
    data = shard.read_bytes()
    shard.write_bytes(data[:-9] + bytes([data[-9] ^ 1]) + data[-8:])
    with pytest.raises(DataError, match="the index of the shard fails its CRC-32C"):
        zarr(root)
    shard.write_bytes(data[:20])
    with pytest.raises(DataError, match="index of the shard"):
        zarr(root)
    shard.write_bytes(bytes([data[0] ^ 255]) + data[1:])
    with pytest.raises(DataError, match=r"c/0/0: the array at byte \d+ cannot be read as"):
        list(zarr(root))


def test_what_is_not_read_is_refused_by_name(library: Any, tmp_path: Path) -> None:
    root = tmp_path / "made.zarr"
    library.create_array(root, shape=(8, 4), chunks=(1, 4), shards=(4, 4), dtype="i4")[...] = 7
    right = json.loads((root / "zarr.json").read_text())
    plain = {**right, "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}]}
    changes: dict[str, tuple[dict[str, Any], str]] = {
        "codec": ({**plain, "codecs": [*plain["codecs"], {"name": "zfp9"}]}, "encoded by 'zfp9'"),
        "package": ({**plain, "codecs": [{"name": "numcodecs.pcodec", "configuration": {}}]}, r"numcodecs\[pcodec\]"),
        "order": (
            {**plain, "codecs": [{"name": "transpose", "configuration": {"order": "F"}}, *plain["codecs"]]},
            "transposed by 'F'",
        ),
        "type": ({**plain, "data_type": "float8_e4m3"}, "data type 'float8_e4m3'"),
        "grid": ({**plain, "chunk_grid": {"name": "rectilinear"}}, "'rectilinear' grid"),
        "missing": ({key: value for key, value in plain.items() if key != "shape"}, "shape"),
    }
    v2 = {"zarr_format": 2, "shape": [2], "chunks": [2], "fill_value": None, "order": "C", "compressor": None}
    for name, codec in (("pickle", "pickle"), ("json", "json2"), ("none", None)):
        filters = [{"id": codec}] if codec else None
        sentence = f"encoded by '{codec}'" if codec else "Python objects"
        changes[name] = ({**v2, "dtype": "|O", "filters": filters}, sentence)
    for name, (document, sentence) in changes.items():
        folder = tmp_path / name
        folder.mkdir()
        (folder / ("zarr.json" if document.get("zarr_format") == 3 else ".zarray")).write_text(json.dumps(document))
        with pytest.raises(DataError, match=sentence) as error:
            zarr(folder)
        assert str(folder) in str(error.value), name
    shutil.make_archive(str(tmp_path / "packed.zarr"), "zip", root)
    with pytest.raises(DataError, match="is deflated in its zip"):
        zarr(tmp_path / "packed.zarr.zip")
    with pytest.raises(DataError, match="there is no store"):
        zarr(f"{tmp_path}/*.none")
