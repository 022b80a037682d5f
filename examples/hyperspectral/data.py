"""Scenes as files, and the pixels of them that a network is trained on.

write(make(seed=0), Path("out/scene.mat"))              # or scene.tif, with scene-labels.tif beside it
scene = read(Path("out/scene.mat"), cube="cube", labels="labels")
train, test = by_region(scene, np.random.default_rng(0))
patch, answer = Patches(scene, train)[0]                # 5 x 5 x bands x 1, and one-hot

A pixel is judged with its neighbours. So a test pixel that lies beside a training pixel is half known: ``at_random``
makes such tests, ``by_region`` keeps whole parcels apart (Lange et al. 2018).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, final

import numpy as np
import tifffile
from scipy.io import savemat
from scipy.ndimage import label

from examples.common.training import staged
from examples.hyperspectral.scene import Array, Scene
from farandole import data
from farandole.data import Source
from farandole.errors import DataError

REFLECTANCE = 10_000
"""Whole numbers in GeoTIFF: reflectance times this, as Sentinel-2 and many airborne instruments have it."""
UNLABELED = -1
RASTERS = (".tif", ".tiff")


def write(scene: Scene, path: Path) -> None:
    """Write ``.mat`` of version 5 or GeoTIFF, by the suffix; in files 0 is "no label", as in those of Indian Pines.

    Pixels of GeoTIFF have 20 m, and lie somewhere in UTM zone 16 north, where Indian Pines is.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    parts = {"cube": scene.cube, "labels": scene.labels + 1, "parcels": scene.parcels + 1}
    if path.suffix == ".mat":
        savemat(path, parts)
        return
    scale, corner = (20.0, 20.0, 0.0), (0.0, 0.0, 0.0, 500_000.0, 4_480_000.0, 0.0)
    keys = (1, 1, 0, 3, 1024, 0, 1, 1, 1025, 0, 1, 1, 3072, 0, 1, 32616)
    tags = [(33550, "d", 3, scale, True), (33922, "d", 6, corner, True), (34735, "H", len(keys), keys, True)]
    how: dict[str, Any] = {"photometric": "minisblack", "compression": "zlib", "extratags": tags}
    bands = np.moveaxis(scene.cube * REFLECTANCE, -1, 0).round().astype(np.uint16)
    tifffile.imwrite(path, bands, planarconfig="separate", **how)
    for part in ("labels", "parcels"):
        tifffile.imwrite(_beside(path, part), parts[part].astype(np.uint16), **how)


def read(path: Path, cube: str = "cube", labels: str = "labels", cache: str = "", limit: str | None = None) -> Scene:
    """A scene of any of the formats; ``cube`` and ``labels`` are names in a ``.mat``, of version 5 or 7.3.

    ``cache`` and ``limit``: have the cube copied to the disk of each host. Where there are no parcels, regions that
    hang together and are of one class are taken as such. Raises ``DataError`` where the labels do not fit.
    """
    pixels, classes = cube_of(path, cube, cache, limit), np.squeeze(_source(path, labels)[0])
    if classes.shape != pixels.shape[:2]:
        raise DataError(f"{path}: {labels!r} has the shape {classes.shape}, and {pixels.shape[:2]} pixels need labels")
    classes = classes.astype(np.int16) - 1
    try:
        parcels = _source(path, "parcels")
    except DataError:  # there are none; one that cannot be read must not pass for that
        return Scene(pixels, classes, regions_of(classes))
    return Scene(pixels, classes, np.squeeze(parcels[0]).astype(np.int16) - 1)


def cube_of(path: Path, key: str = "cube", cache: str = "", limit: str | None = None) -> Array:
    """Height x width x bands in float32; integers of GeoTIFF are reflectance times 10,000."""
    stored = staged(_source(path, key), cache, limit)[0]
    if path.suffix in RASTERS:
        stored = np.moveaxis(stored, 0, -1) / (REFLECTANCE if stored.dtype.kind in "iu" else 1)
    return np.asarray(stored, np.float32)


def _source(path: Path, part: str) -> Source:
    if path.suffix in RASTERS:
        return data.geotiff(_beside(path, part))
    return data.arrays(_beside(path, part), part if path.suffix == ".mat" else None, per="file", native=True)


def _beside(path: Path, part: str) -> Path:
    """The file with a part of a scene: ``scene-labels.tif``; a ``.mat`` has them all."""
    return path if part == "cube" or path.suffix == ".mat" else path.with_name(f"{path.stem}-{part}{path.suffix}")


def regions_of(labels: Array) -> Array:
    """Numbers of regions that hang together, of one class each; -1 where there is no label."""
    found, count = np.full(labels.shape, UNLABELED, np.int16), 0
    for kind in np.unique(labels[labels != UNLABELED]):
        regions, many = label(labels == kind)
        found[regions > 0] = regions[regions > 0] + count - 1
        count += many
    return found


def at_random(scene: Scene, rng: np.random.Generator) -> tuple[Array, Array]:
    """Half of the labeled pixels to train on and the others, both in random order."""
    pixels = rng.permutation(np.flatnonzero(scene.labels != UNLABELED))
    return pixels[: len(pixels) // 2], pixels[len(pixels) // 2 :]


def by_region(scene: Scene, rng: np.random.Generator) -> tuple[Array, Array]:
    """Pixels of half of the parcels of each class, and those of the others."""
    labels, parcels = scene.labels.ravel(), scene.parcels.ravel()
    chosen: list[int] = []
    for kind in np.unique(labels[labels != UNLABELED]):
        of_kind = rng.permutation(np.unique(parcels[labels == kind]))
        chosen += of_kind[: max(1, len(of_kind) // 2)].tolist()
    is_labeled, is_chosen = labels != UNLABELED, np.isin(parcels, chosen)
    return rng.permutation(np.flatnonzero(is_labeled & is_chosen)), np.flatnonzero(is_labeled & ~is_chosen)


def few(scene: Scene, pixels: Array, each: int) -> Array:
    """The first ``each`` pixels of each class, or as many as there are."""
    labels = scene.labels.ravel()[pixels]
    return np.concatenate([pixels[labels == kind][:each] for kind in np.unique(labels)])


def permuted(scene: Scene, rng: np.random.Generator) -> Scene:
    """The scene with the classes of its parcels exchanged at random: there is nothing left to be learned."""
    names, first = np.unique(scene.parcels, return_index=True)
    kinds = rng.permutation(scene.labels.ravel()[first])
    return Scene(scene.cube, kinds[np.searchsorted(names, scene.parcels)], scene.parcels)


SPLITS = {"random": at_random, "region": by_region}


@final
class Patches:
    """Pixels with their neighbours, in standard deviations of the scene, and ``answers``: one-hot in samples."""

    def __init__(self, scene: Scene, pixels: Array, size: int = 5) -> None:
        self.answers, self.classes = scene.labels.ravel()[pixels], int(scene.labels.max()) + 1
        half, cube = size // 2, (scene.cube - scene.cube.mean()) / scene.cube.std()
        around = np.pad(cube, ((half, half), (half, half), (0, 0)), mode="reflect")
        windows: Any = np.lib.stride_tricks.sliding_window_view(around, (size, size), axis=(0, 1))
        self._windows = windows.transpose(0, 1, 3, 4, 2)[..., None]
        self._y, self._x = np.unravel_index(pixels, scene.labels.shape)
        self.shape: tuple[int, ...] = self._windows.shape[2:]

    def __len__(self) -> int:
        return len(self.answers)

    def __getitem__(self, index: int) -> tuple[Array, Array]:
        patch = self._windows[self._y[index], self._x[index]]
        return patch, np.eye(self.classes, dtype=np.float32)[self.answers[index]]

    def all(self) -> Array:
        """The patches as one array."""
        return np.ascontiguousarray(self._windows[self._y, self._x])
