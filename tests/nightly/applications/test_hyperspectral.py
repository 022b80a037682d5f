"""Hyperspectral scenes: what they are made of, every format alike, honest splits, and networks that move elsewhere."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from scipy.spatial import cKDTree

from examples.hyperspectral import scene as scenes
from examples.hyperspectral.data import SPLITS, Patches, cube_of, few, permuted, read, regions_of, write
from examples.hyperspectral.scene import Scene, make, spectra
from farandole.errors import DataError
from tests.support.data.real_files import entries, path_of
from tests.support.examples.continued import continues
from tests.support.examples.killed import trained_with_a_kill
from tests.support.frameworks import without_compiler
from tests.support.launching import Launch, run_to_end
from tests.support.paths import ROOT, SUPPORT

try:
    import rasterio
except ImportError:
    rasterio = None
WITH_ROOT = {"PYTHONPATH": os.pathsep.join(filter(None, [without_compiler().get("PYTHONPATH"), str(ROOT)]))}
LEAN = {**without_compiler(), **WITH_ROOT, "OMP_NUM_THREADS": "1", "KERAS_BACKEND": "torch"}
HEAD, BODY_VARIABLES = 32 * 6 + 6, 6


# -- scenes ------------------------------------------------------------------------------------------------------------


def test_parcels_are_the_cells_of_a_voronoi_diagram_and_have_one_class_each() -> None:
    scene = make(3)
    sites = np.random.default_rng((3, 2)).random((scenes.PARCELS, 2)) * scenes.SIZE
    y, x = np.mgrid[: scenes.SIZE, : scenes.SIZE] + 0.5
    assert (cKDTree(sites).query(np.stack([y, x], axis=-1))[1] == scene.parcels).all()
    for parcel in np.unique(scene.parcels):
        assert len(set(scene.labels[scene.parcels == parcel].tolist())) == 1
    shares = np.bincount(scene.labels.ravel()) / scene.labels.size
    assert shares.min() > 0.01
    assert shares[0] > shares[-1]


def test_parcels_differ_by_a_random_walk_over_the_bands(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("BLUR", "NOISE", "LIGHT"):
        monkeypatch.setattr(scenes, name, 1e-9)
    offsets = []
    for seed in range(40):
        scene = make(seed)
        first = np.unique(scene.parcels, return_index=True)[1]
        pixels = scene.cube.reshape(-1, scenes.BANDS)[first]
        offsets.append(pixels - spectra(0)[scene.labels.ravel()[first]])
    spread = np.concatenate(offsets).var(axis=0)
    walk = scenes.OFFSET**2 * np.arange(1, scenes.BANDS + 1) / scenes.BANDS
    assert spread == pytest.approx(walk, rel=0.15)


def test_scenes_of_a_library_are_of_the_same_kinds_of_land() -> None:
    one, other, elsewhere = (
        np.array([scene.cube[scene.labels == kind].mean(axis=0) for kind in range(scenes.CLASSES)])
        for scene in (make(1), make(2), make(1, library=1))
    )
    assert np.abs(one - other).mean() < 0.5 * np.abs(one - elsewhere).mean()


# -- files -------------------------------------------------------------------------------------------------------------


def as_npy(scene: Scene, path: Path) -> None:
    """A file for each part, 0 is "no label"."""
    np.save(path, scene.cube)
    np.save(path.with_stem("scene-labels"), scene.labels + 1)
    np.save(path.with_stem("scene-parcels"), scene.parcels + 1)


@pytest.mark.parametrize("name", ["scene.mat", "scene.tif", "scene.npy"])
def test_a_scene_comes_back_from_each_format(name: str, tmp_path: Path) -> None:
    scene = make(0)
    (as_npy if name.endswith("npy") else write)(scene, tmp_path / name)
    found = read(tmp_path / name)
    assert found.cube == pytest.approx(scene.cube, abs=0.51e-4 if name.endswith("tif") else 0)
    assert found.cube.dtype == np.float32
    assert (found.labels == scene.labels).all()
    assert (found.parcels == scene.parcels).all()


def test_gdal_reads_the_geotiff_as_we_do(tmp_path: Path) -> None:
    if rasterio is None:
        pytest.skip("rasterio is not installed")
    write(make(0), tmp_path / "scene.tif")
    with rasterio.open(tmp_path / "scene.tif") as file:
        assert (file.count, file.height, file.width) == (32, 64, 64)
        assert file.crs.to_epsg() == 32616
        assert file.transform.to_gdal() == (500_000.0, 20.0, 0.0, 4_480_000.0, 0.0, -20.0)
        assert np.moveaxis(file.read(), 0, -1) / 10_000 == pytest.approx(cube_of(tmp_path / "scene.tif"))


@pytest.mark.parametrize(
    ("name", "key", "shape", "total"),
    [
        ("geotiff-torchgeo-MLBS_4.tif", "cube", (2, 2, 369), 2214 / 10_000),
        ("mat-scipy-big_endian.mat", "floats", (2, 2), 12),
        ("mat-scipy-test3dmatrix_7.4_GLNX86.mat", "test3dmatrix", (2, 3, 4), 300),
    ],
)
def test_real_files_are_read_as_they_are(name: str, key: str, shape: tuple[int, ...], total: float) -> None:
    if name not in entries():
        pytest.skip(f"{name} is not in ../shared/data")
    found = cube_of(path_of(name), key)
    assert found.shape == shape
    assert float(found.sum(dtype=np.float64)) == pytest.approx(total, rel=1e-6)


def test_the_layout_of_indian_pines_is_read_from_matlab_7_3(tmp_path: Path) -> None:
    """MATLAB 7.3 is HDF5 with axes turned; scenes have a name of their own in it, and a truth where 0 is no label."""
    scene = make(0)
    truth = scene.labels.astype(np.uint8) + 1
    truth[:5] = 0
    with h5py.File(tmp_path / "pines.mat", "w", userblock_size=512) as file:
        file["indian_pines_corrected"] = (scene.cube * 1e4).astype(np.uint16).T
        file["indian_pines_gt"] = truth.T
    found = read(tmp_path / "pines.mat", "indian_pines_corrected", "indian_pines_gt")
    assert (found.cube == (scene.cube * 1e4).astype(np.uint16)).all()
    assert (found.labels == truth.astype(int) - 1).all()
    assert (found.parcels[:5] == -1).all()
    for split in SPLITS.values():
        assert not {-1} & set(found.labels.ravel()[np.concatenate(split(found, np.random.default_rng(0)))].tolist())
    with pytest.raises(DataError, match="need labels"):
        read(tmp_path / "pines.mat", "indian_pines_corrected", "indian_pines_corrected")


def test_regions_are_those_of_a_flood() -> None:
    labels = np.random.default_rng(0).integers(-1, 2, (14, 15))
    found, seen = regions_of(labels), np.zeros(labels.shape, bool)
    for at in np.ndindex(*labels.shape):
        if seen[at] or labels[at] < 0:
            continue
        region, edge = set[tuple[int, ...]](), [at]
        while edge:
            y, x = edge.pop()
            if (y, x) in region or not (0 <= y < 14 and 0 <= x < 15) or labels[y, x] != labels[at]:
                continue
            region.add((y, x))
            seen[y, x] = True
            edge += [(y + 1, x), (y - 1, x), (y, x + 1), (y, x - 1)]
        assert {tuple(each) for each in np.argwhere(found == found[at])} == region
    assert (found[labels < 0] == -1).all()


# -- pixels ------------------------------------------------------------------------------------------------------------


def test_splits_share_no_pixel_and_regions_no_parcel() -> None:
    scene = make(4)
    for name, split in SPLITS.items():
        seen, unseen = split(scene, np.random.default_rng(0))
        assert sorted([*seen, *unseen]) == list(range(scene.labels.size))
        shared = set(scene.parcels.ravel()[seen]) & set(scene.parcels.ravel()[unseen])
        assert bool(shared) == (name == "random")
        assert set(scene.labels.ravel()[seen]) == set(scene.labels.ravel()[unseen]) == set(range(6))
    chosen = few(scene, seen, 20)
    assert np.bincount(scene.labels.ravel()[chosen]).tolist() == [20] * 6
    mixed = permuted(scene, np.random.default_rng(0))
    assert (mixed.labels == scene.labels).mean() < 0.6
    assert all(len(set(mixed.labels[mixed.parcels == parcel])) == 1 for parcel in np.unique(scene.parcels))


def test_a_patch_is_the_pixel_with_its_neighbours_mirrored_at_edges() -> None:
    rng = np.random.default_rng(0)
    scene = Scene(rng.random((6, 7, 4)).astype(np.float32), rng.integers(0, 3, (6, 7)), np.zeros((6, 7), int))
    patches = Patches(scene, np.arange(42), size=3)
    scaled = (scene.cube - scene.cube.mean()) / scene.cube.std()
    mirror: list[Any] = [[1, *range(n), n - 2] for n in (6, 7)]
    for pixel in range(42):
        y, x = divmod(pixel, 7)
        right = scaled[np.ix_(mirror[0][y : y + 3], mirror[1][x : x + 3])][..., None]
        patch, answer = patches[pixel]
        assert (patch == right).all()
        assert answer.argmax() == scene.labels[y, x] == patches.answers[pixel]
        assert (patches.all()[pixel] == right).all()


# -- training ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[int, dict[str, Any]]:
    """What one rank and two ranks come to."""
    from tests.support.tiers import Tier

    folder, found = tmp_path_factory.mktemp("trained"), {}
    for size in (1, 2):
        script = SUPPORT / "examples" / "train_hyperspectral.py"
        Launch(folder, Tier.NIGHTLY)(size, script, arguments=[f"{size}.npz"], environment=LEAN).ok()
        found[size] = dict(np.load(folder / f"{size}.npz"))
    return found


def test_two_workers_train_as_one_and_as_keras_alone(trained: dict[int, dict[str, Any]]) -> None:
    one, two = trained[1], trained[2]
    assert two["losses"] == pytest.approx(one["losses"], rel=1e-2)
    assert one["losses"][1] < one["losses"][0]
    for i in range(BODY_VARIABLES + 2):
        assert two[f"trained-{i}"] == pytest.approx(one[f"trained-{i}"], abs=5e-3)
        assert one[f"plain-{i}"] == pytest.approx(one[f"trained-{i}"], abs=5e-3)


def test_what_is_frozen_stays_and_is_not_reduced(trained: dict[int, dict[str, Any]]) -> None:
    for found in trained.values():
        for i in range(BODY_VARIABLES + 2):
            same = (found[f"frozen-{i}"] == found[f"trained-{i}"]).all()
            assert same == (i < BODY_VARIABLES)
        assert found["frozen-reduced"].tolist() == [HEAD] * 40  # of epochs of one step each, none is left out
        assert found["frozen-kept"] == 2 * HEAD + 2  # two moments, the step and the rate


def test_what_is_thawed_learns_slowly_and_alike_on_all_ranks(trained: dict[int, dict[str, Any]]) -> None:
    weights = sum(trained[1][f"trained-{i}"].size for i in range(BODY_VARIABLES + 2))
    for found in trained.values():
        assert set(found["thawed-reduced"].tolist()) == {weights}
        assert found["is-alike"]
        moved = [np.abs(found[f"thawed-{i}"] - found[f"frozen-{i}"]).max() for i in range(BODY_VARIABLES + 2)]
        assert min(moved) > 0
        assert max(moved[:BODY_VARIABLES]) < max(moved[BODY_VARIABLES:])


def test_each_pixel_counts_once_when_a_worker_is_killed(tmp_path: Path) -> None:
    write(make(1), tmp_path / "made" / "scene.mat")
    arguments = ["--data", "made", "--scene", "scene.mat", "--epochs", "4", "--seed", "1"]
    history = trained_with_a_kill("examples.hyperspectral.train", arguments, tmp_path, steps=2, environment=LEAN)
    seen, _ = SPLITS["region"](make(1), np.random.default_rng(1))
    assert history.problems(len(seen) // 64 * 64, 4) == []
    assert {record.size for records in history.begun.values() for record in records} >= {1, 2}


def test_a_training_goes_on_from_its_checkpoint_and_from_a_stage(tmp_path: Path) -> None:
    continues("examples.hyperspectral.train", ["--quick"], tmp_path, says="loss", ends="accuracy 0.", environment=LEAN)


def test_the_network_of_the_table_trains(tmp_path: Path) -> None:
    train = [sys.executable, "-m", "examples.hyperspectral.train", "--quick", "--network", "lange", "--epochs", "1"]
    said = run_to_end([sys.executable, "-m", "farandole", "run", "-np", "1", *train], tmp_path, 200.0, LEAN).ok()
    assert "200 pixels of 6 classes" in said.stdout
    assert "1/1 loss" in said.stdout


def test_the_table_is_made(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "examples.hyperspectral", "--reproduce", "--quick", "--out", str(tmp_path)]
    said = run_to_end(command, tmp_path, 300.0, LEAN).ok().stdout
    assert "random pixels promise more than other regions keep" in said
    made = {path.name for path in (tmp_path / "hyperspectral").iterdir()}
    assert made == {"results.json", "table.md", "picture.png"}
