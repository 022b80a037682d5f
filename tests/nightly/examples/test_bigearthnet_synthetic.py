"""The synthetic patches of ``examples/bigearthnet``: what they show, and that they are as hard as they should be."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from sklearn.linear_model import LogisticRegression

from examples.bigearthnet.bands import METRES
from examples.bigearthnet.synthetic import CLASSES, Patches, patches

TRAIN, TEST = 700, 500
Features = npt.NDArray[np.float64]


@pytest.fixture(scope="module")
def train() -> Patches:
    """What baselines are fitted on."""
    return patches(TRAIN, seed=1)


@pytest.fixture(scope="module")
def test() -> Patches:
    """What they are measured on."""
    return patches(TEST, seed=2)


def micro_f1(labels: npt.NDArray[np.uint8], said: npt.NDArray[np.bool_]) -> float:
    """From the counts of all decisions."""
    return float(2 * (said & (labels == 1)).sum() / (said.sum() + labels.sum()))


def linear_f1(train: Patches, test: Patches, *statistics: str) -> float:
    """Micro-F1 of one logistic regression per class on statistics of each band over the patch."""

    def features(part: Patches) -> Features:
        return np.concatenate([getattr(part.images, s)(axis=(2, 3)) for s in statistics], axis=1).astype(float)

    mean, deviation = features(train).mean(axis=0), features(train).std(axis=0)
    fitted = (features(train) - mean) / deviation, (features(test) - mean) / deviation
    said = [
        LogisticRegression(C=30, max_iter=3000).fit(fitted[0], train.labels[:, c]).predict(fitted[1])
        for c in range(len(CLASSES))
    ]
    return micro_f1(test.labels, np.stack(said, axis=1) == 1)


def test_a_patch_depends_on_its_seed_and_number_only() -> None:
    whole = patches(300, seed=5, spectral_gap=0.3)
    part = patches(7, seed=5, first=254, spectral_gap=0.3)
    assert np.array_equal(part.images, whole.images[254:261])
    assert np.array_equal(part.labels, whole.labels[254:261])
    assert not np.array_equal(patches(7, seed=6, spectral_gap=0.3).images, whole.images[:7])


def test_patches_look_like_the_product(train: Patches) -> None:
    assert train.images.shape == (TRAIN, 12, 30, 30)
    assert train.images.dtype == np.uint16
    assert train.labels.shape == (TRAIN, 8)
    assert 100 < np.median(train.images) < 4000  # reflectance x 10,000
    for band, metres in enumerate(METRES.values()):
        side = metres // 10
        first_of_block = train.images[:, band, ::side, ::side].repeat(side, axis=1).repeat(side, axis=2)
        assert np.array_equal(train.images[:, band], first_of_block)
        finer = train.images[:, band, ::side, ::side]
        assert (finer[:, :, 1:] != finer[:, :, :-1]).mean() > 0.5


def test_labels_have_a_long_tail(train: Patches) -> None:
    frequency = train.labels.mean(axis=0)
    assert frequency.max() / frequency.min() > 4
    assert (train.labels.sum(axis=1) <= 4).all()
    assert 1.4 < train.labels.sum(axis=1).mean() < 1.9
    assert 0.005 < (train.labels.sum(axis=1) == 0).mean() < 0.06  # patches of one class, which was forgotten


def test_the_spectral_gap_pulls_classes_together() -> None:
    same = patches(64, seed=3, spectral_gap=0.0)
    apart = patches(64, seed=3)
    assert np.array_equal(same.labels, apart.labels)
    assert apart.images[:, 7].mean(axis=(1, 2)).std() > 2 * same.images[:, 7].mean(axis=(1, 2)).std()


def test_baselines_are_as_good_as_they_should_be(train: Patches, test: Patches) -> None:
    order = np.argsort(-train.labels.mean(axis=0))
    constant = max(micro_f1(test.labels, np.tile(np.isin(range(8), order[:count]), (TEST, 1))) for count in range(1, 9))
    assert 0.36 < constant < 0.46  # the labels that are most frequent: 0.41
    means = linear_f1(train, test, "mean")
    assert 0.67 < means < 0.83  # 0.75
    statistics = linear_f1(train, test, "mean", "std", "min", "max")
    assert 0.80 < statistics < 0.97  # 0.92
    assert statistics > means + 0.03


def test_a_part_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="there is no such part"):
        patches(0, seed=1)
    with pytest.raises(ValueError, match="there is no such part"):
        patches(1, seed=1, first=-1)
