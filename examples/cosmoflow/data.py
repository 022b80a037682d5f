"""Volumes in the layout of the CosmoFlow benchmark: one to a file, TFRecord under gzip, read by ``farandole.data``.

    write(Path("out/cosmoflow"), Sizes(train=3000), Box(cells=16), seed=0)
    source = volumes(Path("out/cosmoflow/train"))               # sample: float32 (16, 16, 16, 2), labels float32 (4,)

A record is a ``tf.train.Example``: ``x`` holds the bytes of int16 counts, depth x height x width x redshifts, ``y``
four floats from -1 to 1 (https://github.com/mlcommons/hpc, cosmoflow). How large the cube is follows from its bytes.
"""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np

from examples.common.volumes import VOLUMES_OF_A_SEED, Array, Box, Cosmology, drawn, volume
from farandole import data
from farandole.data.formats.tfrecord import framed
from farandole.data.tools.example_writer import example
from farandole.errors import DataError


@final
@dataclass(frozen=True)
class Sizes:
    """Number of volumes of each part; those for validation tell how large errors are, and choose nothing."""

    train: int = 3000
    validation: int = 300
    test: int = 600


QUICK = Sizes(train=192, validation=32, test=32)


def record(counts: Array, cosmology: Cosmology) -> bytes:
    """The file of one volume."""
    made = example({"x": np.ascontiguousarray(counts, "<i2").tobytes(), "y": cosmology.labels()})
    return gzip.compress(framed(made), compresslevel=1, mtime=0)


def write(folder: Path, sizes: Sizes, box: Box, seed: int) -> None:
    """Make ``train``, ``validation`` and ``test``: every volume has a cosmology and phases of its own."""
    number = VOLUMES_OF_A_SEED * seed
    for part, count in vars(sizes).items():
        (folder / part).mkdir(parents=True)
        for _ in range(count):
            cosmology = drawn(number)
            (folder / part / f"{number:012}.tfrecord.gz").write_bytes(record(volume(cosmology, box, number), cosmology))
            number += 1


def cube(content: Array, redshifts: int) -> Array:
    """The bytes of ``x`` as a cube. Raises ``DataError`` where they are none."""
    counts = content.view("<i2")
    cells = round((counts.size / redshifts) ** (1 / 3))
    if cells**3 * redshifts != counts.size:
        raise DataError(
            f"x holds {counts.size} numbers of int16: no cube at {redshifts} redshifts; give the number of these: "
            "--redshifts 4 for the data of the benchmark"
        )
    return counts.reshape(cells, cells, cells, redshifts)


@final
class Scaled:
    """Decoder: log(1 + counts / their mean at that redshift), and the labels."""

    def __init__(self, redshifts: int) -> None:
        self.redshifts = redshifts

    def __call__(self, sample: Any) -> tuple[Array, Array]:
        counts = cube(sample["x"], self.redshifts)
        return np.log1p(counts / counts.mean(axis=(0, 1, 2), dtype=np.float32)), sample["y"]


def volumes(folder: Path, redshifts: int = 2) -> data.Source:
    """Source of the volumes in a folder of files, those of ``write`` or of the benchmark (``redshifts=4``)."""
    features = {"x": "uint8", "y": ("float32", (4,))}
    return data.tfrecord(str(folder), features=features, decode=Scaled(redshifts))


def augmentation() -> Sequence[data.augment.Step]:
    """All symmetries of a periodic cube: shifts, its 24 rotations, and reflections, by (seed, epoch, sample)."""
    return [
        data.augment.Roll(axes=(0, 1, 2)),
        data.augment.Rotate90(axes=(0, 1, 2)),
        data.augment.Flip(axes=(0,)),
    ]


def in_memory(source: data.Source) -> tuple[Array, Array]:
    """All volumes and labels, in the order of their files."""
    samples = [source[index] for index in range(len(source))]
    return np.stack([x for x, _ in samples]), np.stack([y for _, y in samples])
