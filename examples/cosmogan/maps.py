"""Maps of matter: slabs of volumes, seen from the side, in ``.npy`` files that ``farandole.data`` reads.

    write(Path("out/cosmogan"), Sizes(), seed=0)                # train.npy, float32 (4000, 32, 32), and test.npy
    source = maps(Path("out/cosmogan/train.npy"))               # sample: float32 (1, 32, 32), from -1 to 1

All maps are of one cosmology; each is the mean density of a slab of 16 Mpc/h out of a box of 128 Mpc/h, so it is
periodic, as the box is. Slabs of one box are never in both files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

import numpy as np

from examples.common.volumes import UNITS, VOLUMES_OF_A_SEED, Array, Box, Cosmology, volume
from farandole import data

SLABS = 8


@final
@dataclass(frozen=True)
class Sizes:
    """Number of volumes for each file, eight maps of each; and their cells along a side."""

    train: int = 500
    test: int = 500
    cells: int = 32


QUICK = Sizes(train=24, test=8)


def write(folder: Path, sizes: Sizes, seed: int) -> None:
    """Make ``train.npy`` and ``test.npy``."""
    folder.mkdir(parents=True)
    box, number = Box(cells=sizes.cells, redshifts=(0.0,)), VOLUMES_OF_A_SEED * seed
    for part, count in (("train", sizes.train), ("test", sizes.test)):
        made = [slabs(volume(Cosmology(), box, number + each)[..., 0]) for each in range(count)]
        np.save(folder / f"{part}.npy", np.concatenate(made))
        number += count


def slabs(counts: Array) -> Array:
    """Mean density of eight slabs across the third axis of a volume, float32, 8 x cells x cells."""
    cells = counts.shape[0]
    thick: Array = counts.reshape(cells, cells, SLABS, cells // SLABS).mean(axis=-1) / UNITS
    made: Array = np.moveaxis(thick, -1, 0).astype(np.float32)
    return made


def scaled(density: Array) -> Array:
    """Densities as -1 (nothing) to 1 (infinitely much), 0 for the mean: (d - 1) / (d + 1).

    Rodríguez et al. 2018 (arXiv 1801.09070, section 3.2) with a = 1.
    """
    return (density - 1) / (density + 1)  # type: ignore[no-any-return]


def decoded(density: Array) -> Array:
    """A map as the networks take it: one channel, -1 to 1."""
    return scaled(density)[None]


def maps(file: Path) -> data.Source:
    """Source of the maps in a file, of ``write`` or of anyone: maps x rows x columns, densities of mean 1."""
    return data.arrays(str(file), decode=decoded)


def augmentation() -> Sequence[data.augment.Step]:
    """All symmetries of a periodic map: shifts, quarter turns and reflections, by (seed, epoch, sample)."""
    return [data.augment.Roll(axes=(1, 2)), data.augment.Rotate90(axes=(1, 2)), data.augment.Flip(axes=(1,))]


def in_memory(source: data.Source) -> Array:
    """All maps, float32, maps x rows x columns, -1 to 1."""
    return np.stack([source[index][0] for index in range(len(source))])
