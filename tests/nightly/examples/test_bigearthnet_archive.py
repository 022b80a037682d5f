"""What ``examples/bigearthnet`` reads: a real archive in small, and files written in the layout of the whole one."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tifffile

from examples.bigearthnet.archive import archive, split
from examples.bigearthnet.bands import BANDS, METRES
from examples.bigearthnet.data import real
from examples.bigearthnet.nomenclature import CLASSES, SUCCESSOR, classes_of
from examples.bigearthnet.scaling import Percentile, Standard
from farandole import data
from farandole.errors import DataError
from tests.support.data.real_files import REASON, path_of

REAL = path_of("tar-torchgeo-BigEarthNet-S2-v1.0.tar.gz")
FIRST, SECOND = "S2A_MSIL2A_20170613T101031_0_45", "S2B_MSIL2A_20180204T94160_57_7"
GEOTIFF = (
    (33550, "d", 3, (10.0, 10.0, 0.0)),  # pixel scale
    (33922, "d", 6, (0.0, 0.0, 0.0, 643200.0, 5798040.0, 0.0)),  # tie point
    (34735, "H", 16, (1, 1, 0, 3, 1024, 0, 1, 1, 1025, 0, 1, 1, 3072, 0, 1, 32629)),  # UTM zone 29N
)


def unpacked(folder: Path) -> Path:
    """The real archive in small: four patches of 2 x 2 pixels, unpacked into this folder; skips where it is not."""
    if not REAL.is_file():
        pytest.skip(REASON)
    with tarfile.open(REAL) as packed:
        packed.extractall(folder, filter="data")
    return folder / "BigEarthNet-v1.0"


def write_band(folder: Path, band: str, pixels: np.ndarray[tuple[int, ...], np.dtype[np.uint16]]) -> Path:
    """A GeoTIFF as the archive has it."""
    file = folder / f"{folder.name}_{band}.tif"
    tifffile.imwrite(file, pixels, extratags=[(tag, kind, count, value, True) for tag, kind, count, value in GEOTIFF])
    return file


def write_patch(root: Path, name: str, labels: list[str], seed: int = 0) -> Path:
    """A patch in which every band differs from all others."""
    folder = root / name
    folder.mkdir()
    generator = np.random.default_rng(seed)
    for i, (band, metres) in enumerate(METRES.items()):
        side = 1200 // metres
        write_band(folder, band, generator.integers(500 * i, 500 * i + 400, (side, side), np.uint16))
    about = {"labels": labels, "coordinates": {"ulx": 643200, "uly": 5798040, "lrx": 644400, "lry": 5796840}}
    (folder / f"{name}_labels_metadata.json").write_text(json.dumps(about))
    return folder


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """An archive of two patches, and a file that is none."""
    write_patch(tmp_path, SECOND, ["Port areas", "Sea and ocean"], seed=2)
    write_patch(tmp_path, FIRST, ["Non-irrigated arable land", "Pastures", "Rice fields"], seed=1)
    (tmp_path / "README.txt").write_text("not a patch")
    return tmp_path


def test_the_real_archive_is_read_as_it_unpacks(tmp_path: Path) -> None:
    folder = unpacked(tmp_path)
    found = archive(folder, nomenclature=43, pixels=2)
    names = sorted(patch.name for patch in folder.iterdir())
    assert (len(found), len(names), len(found.manifest.paths)) == (4, 4, 4 * 13)
    for name, (image, labels) in zip(names, found, strict=True):
        bands = [tifffile.imread(folder / name / f"{name}_{band}.tif") for band in BANDS]
        np.testing.assert_array_equal(image, np.stack(bands))
        told = json.loads((folder / name / f"{name}_labels_metadata.json").read_text())["labels"]
        assert {CLASSES[43][int(c)] for c in labels.nonzero()[0]} == {*told}
    staged = data.stage(found, cache=tmp_path, limit="1MB")
    [(images, all_labels)] = data.Batches(staged, batch_size=4, shuffle=False, threads=3)
    np.testing.assert_array_equal(images, np.stack([image for image, _ in found]))
    np.testing.assert_array_equal(all_labels, np.stack([labels for _, labels in found]))


def test_patches_come_with_all_bands_and_their_labels(root: Path) -> None:
    found = archive(root)
    assert len(found) == 2
    [(images, labels)] = data.Batches(found, batch_size=2, shuffle=False)
    assert (images.shape, images.dtype) == ((2, 12, 120, 120), np.float32)
    named = [[CLASSES[19][int(c)] for c in row.nonzero()[0]] for row in labels]
    assert named == [["Arable land", "Pastures"], ["Marine waters"]]  # port areas have no successor
    for i in range(len(BANDS)):  # in the order of BANDS, with nothing mixed
        assert 500 * i <= images[:, i].min()
        assert images[:, i].max() < 500 * i + 400


def test_the_other_nomenclature_keeps_all_labels(root: Path) -> None:
    _, labels = archive(root, nomenclature=43)[1]
    assert [CLASSES[43][int(c)] for c in labels.nonzero()[0]] == ["Port areas", "Sea and ocean"]


def test_bands_are_resampled_to_one_grid(root: Path) -> None:
    stored = tifffile.imread(root / FIRST / f"{FIRST}_B02.tif").astype(np.float32)
    assert np.array_equal(archive(root)[0][0][BANDS.index("B02")], stored)
    flat = {band: np.full((1200 // m, 1200 // m), 100 + i, np.uint16) for i, (band, m) in enumerate(METRES.items())}
    for band, pixels in flat.items():
        write_band(root / FIRST, band, pixels)
    for pixels_ in (20, 30, 60, 120, 240):
        image = archive(root, pixels=pixels_)[0][0]
        assert image.shape == (12, pixels_, pixels_)
        np.testing.assert_allclose(image.max((1, 2)), np.arange(100.0, 112.0), rtol=1e-5)
        np.testing.assert_allclose(image.min((1, 2)), np.arange(100.0, 112.0), rtol=1e-5)
    halves = np.zeros((60, 60), np.uint16)
    halves[:, 30:] = 1000
    write_band(root / FIRST, "B05", halves)
    left, right = np.split(archive(root)[0][0][BANDS.index("B05")], 2, axis=1)
    assert left.mean() < 5  # still on its side
    assert right.mean() > 995


def test_scales_are_measured_per_band(root: Path) -> None:
    images = np.stack([image for image, _ in archive(root)])
    scaled = Standard.of(images)(images)
    np.testing.assert_allclose(scaled.mean((0, 2, 3)), 0, atol=1e-3)
    np.testing.assert_allclose(scaled.std((0, 2, 3)), 1, atol=1e-3)
    percentile = Percentile.of(images, low=5, high=95)
    clipped = percentile(images)
    assert (clipped.min(), clipped.max()) == (0, 1)
    for share in ((clipped == 0).mean((0, 2, 3)), (clipped == 1).mean((0, 2, 3))):
        np.testing.assert_allclose(share, 0.05, atol=0.02)
    image, _ = archive(root, scale=percentile)[0]
    assert 0 <= image.min() < image.max() <= 1
    constant = np.full((2, 12, 4, 4), 7, np.uint16)
    assert np.isfinite(Standard.of(constant)(constant)).all()
    assert np.isfinite(Percentile.of(constant)(constant)).all()
    with pytest.raises(ValueError, match="0 <= low < high <= 100"):
        Percentile.of(images, low=98, high=2)


def test_published_splits_choose_patches(root: Path) -> None:
    (root / "train.csv").write_text(f"{SECOND}\n\n")
    (root / "test.csv").write_text(f"{FIRST},S1A_IW_GRDH_1SDV_20170613T165043_33UUP_61_39\n")
    found = archive(root, names=split(root / "test.csv"))
    assert [Path(found.path_of(i)).parent.name for i in range(len(found))] == [FIRST]
    both = archive(root, names=[SECOND, FIRST])
    assert [Path(both.path_of(i)).parent.name for i in range(len(both))] == [SECOND, FIRST]
    made = real(root, root / "train.csv", root / "test.csv", nomenclature=19, pixels=30)
    assert (len(made.train), len(made.test), made.classes) == (1, 1, 19)
    np.testing.assert_allclose(made.train[0][0].mean((1, 2)), np.zeros(12), atol=1e-4)


def remove_bands(patch: Path) -> None:
    for band in ("B05", "B8A"):
        (patch / f"{patch.name}_{band}.tif").unlink()


def shrink_a_band(patch: Path) -> None:
    write_band(patch, "B11", np.zeros((59, 60), np.uint16))


def store_floats(patch: Path) -> None:
    write_band(patch, "B11", np.zeros((60, 60), np.float32))


def cut_a_file_short(patch: Path) -> None:
    file = patch / f"{patch.name}_B03.tif"
    file.write_bytes(file.read_bytes()[:5000])


def overwrite_a_file(patch: Path) -> None:
    (patch / f"{patch.name}_B03.tif").write_text("<html>404</html>")


def labels_file(patch: Path) -> Path:
    return patch / f"{patch.name}_labels_metadata.json"


def misspell(patch: Path) -> None:
    labels_file(patch).write_text('{"labels": ["Coniferous forrest"]}')


def invent(patch: Path) -> None:
    labels_file(patch).write_text('{"labels": ["xyzzy"]}')


def cut_json_short(patch: Path) -> None:
    labels_file(patch).write_text('{"labels": ["Past')


def leave_labels_out(patch: Path) -> None:
    labels_file(patch).write_text("{}")


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (shrink_a_band, r"B11 holds 59 x 60 uint16, and a square of uint16 is expected: .*unpacked without errors"),
        (store_floats, r"B11 holds 60 x 60 float32, and a square of uint16 is expected"),
        (cut_a_file_short, r"_B03.tif is cut off or damaged: .*copy it again"),
        (overwrite_a_file, r"_B03.tif cannot be read .*: it is damaged"),
        (misspell, r"'Coniferous forrest' is none of the 43 classes.*did you mean 'Coniferous forest'"),
        (invent, r"'xyzzy' is none of the 43 classes.*such as 'Continuous urban fabric'"),
        (cut_json_short, r"its labels are damaged, not .*unpack it again"),
        (leave_labels_out, r"its labels are damaged, not .*unpack it again"),
    ],
)
def test_damage_is_named_with_its_cure(root: Path, damage: Callable[[Path], None], says: str) -> None:
    damage(root / FIRST)
    found = archive(root)
    with pytest.raises(DataError, match=says) as raised:
        next(iter(data.Batches(found, batch_size=1, shuffle=False)))
    assert FIRST in str(raised.value)
    found[1]  # nothing else is touched


def test_what_is_not_there_is_named(root: Path) -> None:
    with pytest.raises(DataError, match=r"nowhere/S2\*/\*: there is no file; give a folder"):
        archive(root / "nowhere")
    with pytest.raises(DataError, match="there is no file"):
        archive(root / FIRST)
    with pytest.raises(DataError, match=r"S2C_x does not exist: give a folder"):
        archive(root, names=["S2C_x"])
    labels_file(root / FIRST).unlink()
    with pytest.raises(DataError, match=rf"{FIRST} has 0 files of band 'labels_metadata.json'.*complete it"):
        archive(root)
    remove_bands(root / SECOND)
    with pytest.raises(DataError, match=rf"{SECOND} has 0 files of band 'B05', and one is needed in every folder"):
        archive(root, names=[SECOND])
    with pytest.raises(ValueError, match="nomenclature=20: BigEarthNet has two, 19 and 43"):
        archive(root, nomenclature=20)
    with pytest.raises(ValueError, match="pixels=0"):
        archive(root, pixels=0)


def test_the_nomenclatures_are_the_published_ones() -> None:
    assert len(CLASSES[43]) == 43
    assert len(CLASSES[19]) == len(set(CLASSES[19])) == 19
    successors = [name for name in SUCCESSOR.values() if name]
    assert set(successors) == set(CLASSES[19])
    assert len(SUCCESSOR) - len(successors) == 11  # the classes that were given up
    merged = {name: successors.count(name) for name in successors if successors.count(name) > 1}
    assert merged == {
        "Urban fabric": 2,
        "Arable land": 3,
        "Permanent crops": 4,
        "Natural grassland and sparsely vegetated areas": 2,
        "Moors, heathland and sclerophyllous vegetation": 2,
        "Inland wetlands": 2,
        "Coastal wetlands": 2,
        "Inland waters": 2,
        "Marine waters": 3,
    }
    assert classes_of(["Peatbogs", "Airports", "Inland marshes"], 19) == ["Inland wetlands"]
