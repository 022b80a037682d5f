"""What a data set is told of when a reader or a command refuses or describes it: what was found, and what to type."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from farandole.cli import main
from farandole.data.formats.arrays import arrays
from farandole.data.formats.images import images
from farandole.data.formats.zarr_store import zarr
from farandole.data.tools.doctor import Diagnosis
from farandole.errors import DataError, UsageError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Folder of 20 sorted samples in one file, beside a text."""
    np.save(tmp_path / "x.npy", np.arange(20.0))
    (tmp_path / "LICENSE").write_text("free")
    return tmp_path


def test_a_folder_without_zarr_is_called_no_store(folder: Path) -> None:
    with pytest.raises(
        DataError, match=r"is no Zarr store: no zarr\.json.*, but files: 2 that end with LICENSE or \.npy\."
    ):
        zarr(folder)
    with pytest.raises(DataError, match=r"but files: 1 that ends with \.npy\."):
        zarr(folder / "x.npy")


def test_an_empty_store_is_called_empty(tmp_path: Path) -> None:
    (tmp_path / "zarr.json").write_text('{"zarr_format": 3, "node_type": "group"}')
    with pytest.raises(DataError, match="has no array"):
        zarr(tmp_path)


def test_a_folder_without_images_is_described_in_a_line(folder: Path) -> None:
    with pytest.raises(DataError) as refused:
        images(folder)
    assert str(refused.value) == (
        f"{folder}: there is no file that ends with .jpg, .jpeg, .png, .webp or one of 8 others, "
        "but 2 that end with LICENSE or .npy; give a folder, a file, a pattern or a URL"
    )


def test_a_slice_is_refused_with_what_to_write(folder: Path) -> None:
    source = arrays(folder)
    for asked in (slice(2, 4), 1.5, np.arange(2)):
        with pytest.raises(UsageError, match=r"for some samples \[source\[i\] for i in range"):
            source[asked]  # type: ignore[index]
    assert source[np.int64(3)] == source[-17] == 3.0


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        (Diagnosis(20, 1, 1.0, 8), "20 samples of 1 piece looked at: clustering unknown, window 8 pieces\nsmall: "),
        (Diagnosis(400, 4, 100.0, 4), "small: one window holds all pieces, sorted or not: "),
        (Diagnosis(100, 100, 1.0, 8), "each sample is a piece, and pieces come in random order: "),
        (Diagnosis(400, 40, 10.0, 8), "neighbours are alike, but a window of 8 pieces hides that: "),
        (Diagnosis(400, 40, 1.5, 8), "well shuffled: "),
        (Diagnosis(400, 4, 100.0, 1), "sorted: neighbours are alike, and a window of 1 piece does not hide that."),
    ],
)
def test_only_samples_at_random_are_called_well_shuffled(found: Diagnosis, verdict: str) -> None:
    assert verdict in str(found)
    assert ("well shuffled" in str(found)) == verdict.startswith("well")


@pytest.mark.parametrize(("into", "call"), [("tar", "tar({0!r})"), ("tfrecord", "tfrecord({0!r}, example=True)")])
def test_pack_says_what_it_has_written_and_how_to_read_it(
    folder: Path, into: str, call: str, capsys: pytest.CaptureFixture[str]
) -> None:
    target = folder / "packed"
    options = ["--format", "arrays", "--into", into, "--shard", "100B"]
    assert main(["data", "pack", str(folder), str(target), *options]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("20 samples in 20 shards: ")
    assert said[1] == "read them by farandole.data." + call.format(str(target)).replace("'", '"')
