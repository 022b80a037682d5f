"""Training and test data for ``train.py``: synthetic patches in memory, or the real archive.

data = synthetic(8192, 2048, spectral_gap=0.1)
data = real(Path("BigEarthNet-v1.0"), Path("train.csv"), Path("test.csv"), nomenclature=19, pixels=30)
data.train[0]                               # image (12, 30, 30) and labels, float32
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias, final

import numpy as np
import torch
from torch.utils.data import TensorDataset

import farandole.torch as hvd
from examples.bigearthnet.archive import PatchDecoder, archive, split
from examples.bigearthnet.nomenclature import CLASSES
from examples.bigearthnet.scaling import Standard
from examples.bigearthnet.synthetic import CLASSES as SYNTHETIC_CLASSES
from examples.bigearthnet.synthetic import Patches, patches

Items: TypeAlias = "hvd.data.Source | TensorDataset"
"""Images and labels, with a length."""

TRAIN_SEED, TEST_SEED, VALIDATION_SEED = 1, 2, 3
"""Of synthetic patches. Settings are chosen on those for validation, so that those for the test are new to them."""
MEASURED_ON = 1024
"""How many training images tell the scale of the bands."""


@final
@dataclass(frozen=True)
class Data:
    """What to train on and what to test on, and how many classes there are."""

    train: Items
    test: Items
    classes: int


def synthetic(train: int, test: int, *, spectral_gap: float, test_seed: int = TEST_SEED) -> Data:
    """The same patches on every rank and in every run. The smaller the gap, the harder (see ``synthetic.py``)."""
    made = patches(train, seed=TRAIN_SEED, spectral_gap=spectral_gap)
    scale = Standard.of(made.images[:MEASURED_ON])
    other = patches(test, seed=test_seed, spectral_gap=spectral_gap)
    return Data(_tensors(made, scale), _tensors(other, scale), len(SYNTHETIC_CLASSES))


def real(
    folder: Path, train: Path, test: Path, *, nomenclature: int, pixels: int, cache: str = "", limit: str | None = None
) -> Data:
    """The patches of the archive that two lists of names choose; the bands' scale is measured on some of the first.

    With a ``cache``, they are staged into that folder of each host, and each part of them gets ``limit`` bytes there.
    In a job all ranks call this together.
    """
    parts = [archive(folder, nomenclature=nomenclature, pixels=pixels, names=split(names)) for names in (train, test)]
    if cache:
        parts = [hvd.data.stage(part, cache=cache, limit=limit) for part in parts]
    scale = measured(parts[0])
    for part in parts:
        part.decode = PatchDecoder(nomenclature, pixels, scale)
    return Data(parts[0], parts[1], len(CLASSES[nomenclature]))


def measured(found: hvd.data.Source) -> Standard:
    """The scale of the bands in some of the patches, which rank 0 reads for all."""
    if hvd.is_initialized() and hvd.rank() > 0:
        scale = None
    else:
        some = range(0, len(found), max(1, len(found) // MEASURED_ON))
        with ThreadPoolExecutor() as pool:
            scale = Standard.of(np.stack([image for image, _ in pool.map(found.__getitem__, some)]))
    return hvd.broadcast_object(scale, root_rank=0) if hvd.is_initialized() else scale


def _tensors(made: Patches, scale: Standard) -> TensorDataset:
    return TensorDataset(torch.from_numpy(scale(made.images)), torch.from_numpy(made.labels).float())
