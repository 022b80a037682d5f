"""``.npy``, ``.npz`` and ``.mat`` files as NumPy, SciPy and MATLAB write them: read right, or refused by name."""

from __future__ import annotations

import io
import tempfile
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farandole.data.formats.arrays import arrays
from farandole.errors import DataError
from tests.support.data.made_arrays import Case, cases, same

with suppress(ImportError):
    import scipy.io  # noqa: F401 (sets an environment variable, which no test may)


@given(cases(), st.sampled_from([(1, 0), (2, 0), (3, 0)]), st.booleans())
def test_npy_of_every_version_order_and_axis(case: Case, version: tuple[int, int], is_turned: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "made.npy"
        with path.open("wb") as file:
            np.lib.format.write_array(file, np.asfortranarray(case.array) if is_turned else case.array, version)
        source = arrays(path, along=case.axis)
        assert len(source) == case.shape[case.axis]
        assert all(same(row, case.row(number)) for number, row in enumerate(source))
        assert same(arrays(path, per="file")[0], case.array)
        assert not source.holds_lock


def test_a_wrong_key_is_answered_with_the_right_ones_for_a_script_or_a_command(tmp_path: Path) -> None:
    np.savez(tmp_path / "made.npz", x=np.zeros(3), y=np.ones(3))
    with pytest.raises(DataError, match=r"\('x', 'y'\): name one by keys='...', .*; in a command: --keys A,B"):
        arrays(tmp_path / "made.npz", keys="z")


def test_structured_dtypes_and_names_beyond_ascii(tmp_path: Path) -> None:
    dtype = np.dtype([("µ", "<f4"), ("box", [("low", ">i2"), ("high", ">i2", (2,))]), ("name", "S3")], align=True)
    made = np.zeros(3, dtype)
    made["µ"], made["box"]["high"], made["name"] = [1, 2, 3], [[4, 5]] * 3, b"ab"
    with (tmp_path / "made.npy").open("wb") as file:
        np.lib.format.write_array(file, made, (3, 0))
    found = arrays(tmp_path / "made.npy", per="file")[0]
    assert found.dtype == dtype
    assert (found == made).all()
    assert arrays(tmp_path / "made.npy")[1]["box"]["high"].tolist() == [4, 5]


def test_files_are_joined_in_the_order_of_their_paths_and_may_differ_in_length(tmp_path: Path) -> None:
    for number in (2, 0, 1):
        np.save(tmp_path / f"{number}.npy", np.full((number + 1, 2), number))
    source = arrays(tmp_path)
    assert [int(row[0]) for row in source] == [0, 1, 1, 2, 2, 2]
    assert [each.shape for each in arrays(tmp_path, per="file")] == [(1, 2), (2, 2), (3, 2)]
    assert [source.path_of(index)[-5] for index in (0, 1, -1)] == ["0", "1", "2"]


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_members_of_npz(tmp_path: Path, save: Any) -> None:
    x, y = np.arange(24.0).reshape(4, 3, 2), np.asfortranarray(np.arange(8, dtype=">i2").reshape(4, 2))
    save(tmp_path / "made.npz", x=x, y=y)
    source = arrays(tmp_path / "made.npz")
    assert all(same(source[at]["x"], x[at]) and same(source[at]["y"], y[at]) for at in range(4))
    assert same(arrays(tmp_path / "made.npz", "x", along=2)[1], x[..., 1])
    assert same(arrays(tmp_path / "made.npz", "y", per="file", native=True)[0], y.astype("i2"))
    with pytest.raises(DataError, match=r"has no array 'z' \('x', 'y'\)"):
        arrays(tmp_path / "made.npz", ["x", "y", "z"])


def test_damaged_and_pickled_ones_are_refused_by_name(tmp_path: Path) -> None:
    saved = io.BytesIO()
    np.save(saved, np.arange(100.0))
    good = saved.getvalue()
    np.savez_compressed(tmp_path / "bad.npz", x=np.arange(1000))
    packed = bytearray((tmp_path / "bad.npz").read_bytes())
    packed[len(packed) // 2] ^= 1
    with zipfile.ZipFile(tmp_path / "bz.npz", "w", zipfile.ZIP_BZIP2) as archive:
        archive.writestr("x.npy", good)
    objects = io.BytesIO()
    np.save(objects, np.array([{}, None], object), allow_pickle=True)
    made: dict[str, tuple[bytes, str]] = {
        "short.npy": (good[:-1], "is truncated"),
        "header.npy": (good.replace(b"'descr'", b"'ddddd'"), "damaged header"),
        "version.npy": (good[:6] + b"\x09" + good[7:], "version 1, 2 or 3"),
        "negative.npy": (good.replace(b"(100,)", b"(-10,)"), "is truncated"),
        "objects.npy": (objects.getvalue(), "pickled Python objects"),
        "bad.npz": (bytes(packed), "CRC-32|inflate"),
        "bz.npz": ((tmp_path / "bz.npz").read_bytes(), "method 12"),
        "half.npz": (bytes(packed[:300]), "zip"),
        "text.npy": (b"no array", "no .npy, .npz or .mat"),
    }
    for name, (data, sentence) in made.items():
        (tmp_path / name).write_bytes(data)
        with pytest.raises(DataError, match=sentence) as error:
            arrays(tmp_path / name, per="file")[0]
        assert str(tmp_path / name) in str(error.value)


def test_sparse_arrays_and_structures_of_matlab(tmp_path: Path) -> None:
    scipy_io, sparse = pytest.importorskip("scipy.io"), pytest.importorskip("scipy.sparse")
    x = np.array([[0.0, 2, 0], [3, 0, 0]])
    scipy_io.savemat(tmp_path / "made.mat", {"x": sparse.csc_matrix(x), "s": {"a": np.arange(3)}})
    assert same(arrays(tmp_path / "made.mat", "x", per="file")[0], x)
    assert arrays(tmp_path / "made.mat", "s", per="file")[0]["a"][0, 0].ravel().tolist() == [0, 1, 2]


@pytest.mark.parametrize(("layout", "compressed"), [("4", False), ("5", False), ("5", True)])
def test_mat_before_7_3(tmp_path: Path, layout: str, compressed: bool) -> None:
    scipy_io = pytest.importorskip("scipy.io")
    x, y = np.arange(12.0).reshape(4, 3), np.arange(4, dtype="u1").reshape(4, 1)
    scipy_io.savemat(tmp_path / "made.mat", {"x": x, "y": y}, format=layout, do_compression=compressed)
    source = arrays(tmp_path / "made.mat")
    assert source.holds_lock
    assert all(same(source[at]["x"], x[at]) and same(source[at]["y"], y[at]) for at in range(4))
    assert same(arrays(tmp_path / "made.mat", "x", along=1)[2], x[:, 2])
    if compressed:
        data = bytearray((tmp_path / "made.mat").read_bytes())
        data[150] ^= 255
        (tmp_path / "bad.mat").write_bytes(data)
        with pytest.raises(DataError, match=r"bad\.mat cannot be read as a \.mat file"):
            arrays(tmp_path / "bad.mat", "x")
