"""Training and test data for ``train.py``: synthetic patches in memory, or the real archive.

data = synthetic(8192, 2048, spectral_gap=0.1)
data = real(Path("BigEarthNet-v1.0"), Path("train.csv"), Path("test.csv"), nomenclature=19, pixels=30)
data.train[0]                               # image (12, 30, 30) and labels, float32
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias, final

import numpy as np
import torch
from torch.utils.data import TensorDataset

from examples.bigearthnet.archive import Archive, split
from examples.bigearthnet.nomenclature import CLASSES
from examples.bigearthnet.scaling import Standard
from examples.bigearthnet.synthetic import CLASSES as SYNTHETIC_CLASSES
from examples.bigearthnet.synthetic import Patches, patches

Items: TypeAlias = Archive | TensorDataset
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


def real(folder: Path, train: Path, test: Path, *, nomenclature: int, pixels: int) -> Data:
    """The patches of the archive that two lists of names choose; the bands' scale is measured on some of the first."""
    raw = Archive(folder, nomenclature=nomenclature, pixels=pixels, names=split(train))
    some = range(0, len(raw), max(1, len(raw) // MEASURED_ON))
    scale = Standard.of(np.stack([raw[i][0].numpy() for i in some]))
    parts = [
        Archive(folder, nomenclature=nomenclature, pixels=pixels, names=split(names), scale=scale)
        for names in (train, test)
    ]
    return Data(parts[0], parts[1], len(CLASSES[nomenclature]))


def _tensors(made: Patches, scale: Standard) -> TensorDataset:
    return TensorDataset(torch.from_numpy(scale(made.images)), torch.from_numpy(made.labels).float())
