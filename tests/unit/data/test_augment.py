"""Augmentation: its randomness, its steps, one transformation for all fields, refusals."""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farandole.data.loading.augment import (
    Crop,
    Flip,
    GaussianNoise,
    MixUp,
    Normalize,
    Roll,
    Rotate,
    Rotate90,
    SampleLoader,
    generator,
)  # fmt: skip
from farandole.errors import DataError, UsageError

IMAGE = np.arange(8 * 8 * 3, dtype=np.float32).reshape(8, 8, 3)
CUBE = np.arange(27).reshape(3, 3, 3)


class Pair(NamedTuple):
    image: Any
    label: int


@given(st.integers(-(2**63), 2**63 - 1), st.integers(0, 10**6), st.integers(0, 10**9))
def test_random_numbers_follow_from_seed_epoch_and_sample(seed: int, epoch: int, sample: int) -> None:
    first = generator(seed, epoch, sample).random(4)
    assert np.array_equal(first, generator(seed, epoch, sample).random(4))
    others = [(seed + 1, epoch, sample, 0), (seed, epoch + 1, sample, 0), (seed, epoch, sample + 1, 0),
              (seed, epoch, sample, 1)]  # fmt: skip
    assert all(not np.array_equal(first, generator(*other).random(4)) for other in others)


def test_steps_draw_from_numbers_of_their_own() -> None:
    """One more step does not change what the others do."""
    noise = SampleLoader([IMAGE], [Normalize(0, 1), GaussianNoise(1.0)], seed=5)(2, 0)
    with_crop = SampleLoader([IMAGE], [Crop((8, 8)), GaussianNoise(1.0)], seed=5)(2, 0)
    assert np.array_equal(noise, with_crop)


@pytest.mark.parametrize("axes", [(0, 1), (0, 1, 2)])
def test_quarter_turns_are_all_rotations_and_nothing_else(axes: tuple[int, ...]) -> None:
    found = {Rotate90(axes)(CUBE, generator(0, 0, sample)).tobytes() for sample in range(600)}
    assert len(found) == (4 if len(axes) == 2 else 24)
    mirrored = {np.flip(CUBE, axis).tobytes() for axis in axes}
    assert not found & mirrored


def test_quarter_turns_of_a_plane_are_those_of_numpy() -> None:
    found = {Rotate90()(IMAGE, generator(1, 0, sample)).tobytes() for sample in range(64)}
    assert found == {np.rot90(IMAGE, turns).tobytes() for turns in range(4)}
    with pytest.raises(DataError, match=r"\(4, 8, 3\): put Crop to equal lengths"):
        Rotate90()(IMAGE[:4], generator(1, 0, 0))


def test_flips_are_independent_along_each_axis() -> None:
    found = [Flip((0, 1, 2), p=0.25)(CUBE, generator(0, 0, sample)).tobytes() for sample in range(400)]
    expected = {np.flip(CUBE, axes).tobytes() for n in range(4) for axes in itertools.combinations(range(3), n)}
    assert {*found} == expected
    assert 0.3 < found.count(CUBE.tobytes()) / 400 < 0.55


def test_rolls_are_all_shifts_around_the_end() -> None:
    found = {Roll((0, 1))(IMAGE, generator(0, 0, sample)).tobytes() for sample in range(600)}
    assert found == {np.roll(IMAGE, shift, (0, 1)).tobytes() for shift in itertools.product(range(8), range(8))}


def test_crops_are_parts_at_random_places_or_in_the_centre() -> None:
    corners = {tuple(Crop((2, 3))(IMAGE, generator(0, 0, sample))[0, 0]) for sample in range(500)}
    assert len(corners) == 7 * 6
    assert np.array_equal(Crop((4, 4), where="centre")(IMAGE, generator(0, 0, 0)), IMAGE[2:6, 2:6])
    padded = Crop((12, 12), padding=2)(IMAGE, generator(0, 0, 0))
    assert np.array_equal(padded[2:10, 2:10], IMAGE)
    assert padded.sum() == IMAGE.sum()
    assert Crop((2,), axes=(2,))(IMAGE, generator(0, 0, 0)).shape == (8, 8, 2)
    with pytest.raises(DataError, match="give padding="):
        Crop((9, 9))(IMAGE, generator(0, 0, 0))
    with pytest.raises(UsageError, match="'random' or 'centre'"):
        Crop((2, 2), where="center")


def test_named_fields_get_the_same_transformation() -> None:
    sample = {"image": IMAGE, "mask": IMAGE[..., 0].astype(np.int16), "name": "a"}
    steps = [Flip((0, 1), fields=("image", "mask")), Rotate90(fields=("image", "mask")),
             Crop((5, 5), fields=("image", "mask")), GaussianNoise(0.0, fields="image")]  # fmt: skip
    for number in range(20):
        found = SampleLoader([sample] * 20, steps, seed=3)(0, number)
        assert np.array_equal(found["image"][..., 0].astype(np.int16), found["mask"])
        assert found["mask"].dtype == np.int16
        assert found["name"] == "a"


def test_of_a_tuple_the_first_element_is_meant_and_of_a_dict_nothing_is_guessed() -> None:
    found = Flip((0,), p=1.0)(Pair(IMAGE, 7), generator(0, 0, 0))
    assert isinstance(found, Pair)
    assert np.array_equal(found.image, IMAGE[::-1])
    assert found.label == 7
    with pytest.raises(UsageError, match=r"Flip of a dict: name its fields, Flip\(\.\.\., fields=\('a', 'b'\)\)"):
        Flip()({"a": IMAGE, "b": IMAGE}, generator(0, 0, 0))
    with pytest.raises(UsageError, match="the sample has 2 elements"):
        Flip(fields=(2,))((IMAGE, 1), generator(0, 0, 0))
    with pytest.raises(DataError, match=r"Crop of fields that differ in shape: 'a' is \(8, 8, 3\), 'b' is \(4, 8, 3\)"):
        Crop((2, 2), fields=("a", "b"))({"a": IMAGE, "b": IMAGE[:4]}, generator(0, 0, 0))


def test_a_rotation_is_bilinear_and_nearest_for_labels() -> None:
    assert np.allclose(Rotate(0.0)(IMAGE, generator(0, 0, 0)), IMAGE)
    step = Rotate(10.0, fields=("image", "mask"), labels=("mask",), fill=-1)
    found = step({"image": IMAGE, "mask": np.ones((8, 8), np.int8)}, generator(0, 0, 0))
    assert {*found["mask"].ravel()} <= {-1, 1}
    assert found["image"].dtype == np.float32
    assert not np.allclose(found["image"], IMAGE)
    i, j = np.indices((8, 8))
    assert np.array_equal(Rotate(90.0).change(0, IMAGE, (j, 7 - i), generator(0, 0, 0)), np.rot90(IMAGE))
    grey = Rotate(5.0)(np.full((8, 8), 200, np.uint8), generator(0, 0, 0))
    assert grey.dtype == np.uint8
    assert {*grey[3:5, 3:5].ravel()} == {200}


def test_noise_has_its_sigma_and_refuses_integers() -> None:
    found = GaussianNoise(2.0)(np.zeros((100, 100), np.float64), generator(0, 0, 0))
    assert abs(found.std() - 2.0) < 0.05
    assert GaussianNoise(1.0)(np.zeros(4, np.float16), generator(0, 0, 0)).dtype == np.float16
    with pytest.raises(DataError, match="put Normalize"):
        GaussianNoise(1.0)(np.zeros(4, np.uint8), generator(0, 0, 0))


def test_normalize_takes_numbers_and_channels() -> None:
    assert np.allclose(Normalize(3.0, 2.0)(np.array([5, 7], np.uint8), generator(0, 0, 0)), [1, 2])
    found = Normalize([1, 2, 3], [1, 2, 4])(IMAGE, generator(0, 0, 0))
    assert np.allclose(found, (IMAGE - [1, 2, 3]) / [1, 2, 4])
    assert Normalize([1, 2], [1, 1], axis=0)(np.ones((2, 4, 4)), generator(0, 0, 0)).dtype == np.float64


def test_mix_up_takes_its_partner_from_the_whole_data_set() -> None:
    numbers = [(np.float32(i), i % 3) for i in range(50)]
    load = SampleLoader(numbers, [MixUp(0.5, classes=3)], seed=1)
    partners = [MixUp().partner(generator(1, 4, index), 50) for index in range(50)]
    assert len({*partners}) > 20
    for index, partner in enumerate(partners):
        x, y = load(4, index)
        assert min(index, partner) <= x <= max(index, partner)
        share = (x - partner) / (index - partner) if index != partner else 1.0
        assert np.isclose(y.sum(), 1.0)
        assert np.allclose(y, share * np.eye(3)[index % 3] + (1 - share) * np.eye(3)[partner % 3], atol=1e-5)
    assert load(4, 7)[0] == load(4, 7)[0] != load(5, 7)[0]


def test_mix_up_says_what_it_needs() -> None:
    with pytest.raises(UsageError, match=r"MixUp of the integer 1: give MixUp\(classes=N\)"):
        SampleLoader([(np.ones(2), 1)], [MixUp()], seed=1)(0, 0)
    with pytest.raises(UsageError, match="give it in augment="):
        MixUp()(IMAGE, generator(0, 0, 0))
    assert SampleLoader([(np.ones(2), 1)], [MixUp(fields=(0,))], seed=1)(0, 0)[1] == 1
