"""Time series: Lorenz-96 is what its equations say, windows are what they should be, and ranks train as one does."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import zarr
from scipy.integrate import solve_ivp
from sklearn.linear_model import LinearRegression

from examples.timeseries import baselines
from examples.timeseries.data import (
    BUOY,
    HAS_BUOY,
    LORENZ96,
    NOISE,
    WITHOUT_BUOY,
    Task,
    Windows,
    loaded,
    read,
    write,
    write_buoy,
    write_lorenz96,
)
from examples.timeseries.lorenz96 import DAY, FORCING, SITES, Array, a_day_later, tendency, trajectories
from farandole.errors import DataError
from tests.support.data.made_arrays import zarr_library
from tests.support.examples.continued import continues
from tests.support.examples.killed import trained_with_a_kill
from tests.support.frameworks import without_compiler
from tests.support.launching import Launch, run_to_end
from tests.support.paths import ROOT, SUPPORT

WITH_ROOT = {"PYTHONPATH": os.pathsep.join(filter(None, [without_compiler().get("PYTHONPATH"), str(ROOT)]))}
LEAN = {**without_compiler(), **WITH_ROOT, "OMP_NUM_THREADS": "1"}


@pytest.fixture(autouse=True)
def ends_threads() -> Iterator[None]:
    """End the threads of the library that writes Zarr."""
    with zarr_library():
        yield


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six short trajectories to train on, two to test on."""
    folder = tmp_path_factory.mktemp("lorenz96")
    write_lorenz96(folder, seed=1, quick=True)
    return folder


# -- the model ---------------------------------------------------------------------------------------------------------


def by_sites(x: Array) -> list[float]:
    """Equation 1 of Lorenz (1996), site by site."""
    return [(x[(k + 1) % SITES] - x[(k - 2) % SITES]) * x[(k - 1) % SITES] - x[k] + FORCING for k in range(SITES)]


def test_the_tendency_is_that_of_the_equation_and_its_advection_keeps_energy() -> None:
    x = trajectories(3, 4, seed=0)
    assert tendency(x).shape == x.shape
    for state in x.reshape(-1, SITES):
        assert tendency(state) == pytest.approx(by_sites(state))
        assert state @ (tendency(state) + state - FORCING) == pytest.approx(0, abs=1e-6)


def test_a_day_is_that_of_a_finer_integration() -> None:
    for state in trajectories(4, 1, seed=2)[:, 0]:
        fine = solve_ivp(lambda _, x: by_sites(x), (0, DAY), state, rtol=1e-10, atol=1e-10).y[:, -1]
        assert a_day_later(state) == pytest.approx(fine, abs=2e-2)


def test_errors_grow_as_chaos_has_them() -> None:
    """Lorenz (1996) finds errors to double in about two days; with eight sites the leading rate is a little lower."""
    here = trajectories(50, 1, seed=3)[:, 0]
    there = here + 1e-6 * np.random.default_rng(0).normal(size=here.shape)
    growth = []
    for _ in range(40):
        before = np.linalg.norm(there - here, axis=1)
        here, there = a_day_later(here), a_day_later(there)
        growth.append(np.log(np.linalg.norm(there - here, axis=1) / before).mean())
    doubling_days = np.log(2) / np.mean(growth[10:])
    assert 1.0 < doubling_days < 4.0


# -- files and windows -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [2, 3])
def test_both_versions_of_zarr_are_read(version: Literal[2, 3], data: Path, tmp_path: Path) -> None:
    for part, members in (("train", 6), ("test", 2)):
        group = zarr.open_group(tmp_path / f"{part}.zarr", mode="w", zarr_format=version)
        group.create_array("x", data=zarr.open_array(data / f"{part}.zarr" / "x")[:], chunks=(1, 200, SITES))
        found = read(tmp_path, part)
        assert found.shape == (members, 200, SITES)
        assert found.dtype == np.float32
        assert (found == read(data, part)).all()


def test_observations_have_the_noise_that_is_told(data: Path) -> None:
    true = trajectories(8, 200, seed=1)
    seen = np.concatenate([read(data, "train"), read(data, "test")])
    assert (seen - true).std() == pytest.approx(NOISE * true.std(), rel=0.05)


def test_windows_are_those_of_a_loop_and_never_reach_into_another_member(tmp_path: Path) -> None:
    x = np.arange(2 * 9 * 3).reshape(2, 9, 3)
    write(tmp_path / "train.zarr", x)
    task = Task(3, (1, 4))
    windows = Windows(read(tmp_path, "train"), task)
    x = (x - x.mean()) / x.std()
    right = [(x[member, i : i + 3], x[member, [i + 3, i + 6]]) for member in range(2) for i in range(9) if i + 6 < 9]
    assert len(windows) == len(right) == 6
    for (lags, targets), (own_lags, own_targets) in zip(right, (windows[i] for i in range(6)), strict=True):
        assert own_lags == pytest.approx(lags, abs=1e-6)
        assert own_targets == pytest.approx(targets, abs=1e-6)
    assert windows.all()[1] == pytest.approx(np.stack([targets for _, targets in right]), abs=1e-6)
    with pytest.raises(DataError, match="give longer runs"):
        Windows(read(tmp_path, "train"), LORENZ96)


def test_baselines_are_those_of_others(data: Path) -> None:
    windows, test = loaded(data, LORENZ96)
    (x, y), (lags, targets) = windows.all(), test.all()
    assert (test.mean, test.deviation) == (windows.mean, windows.deviation)
    fitted = LinearRegression().fit(x.reshape(len(x), -1), y.reshape(len(y), -1))
    right = fitted.predict(lags.reshape(len(lags), -1)).reshape(targets.shape)
    assert baselines.linear(lags, windows) == pytest.approx(right, abs=1e-3)
    assert (baselines.persistence(lags, LORENZ96)[:, 5] == lags[:, -1]).all()
    known = baselines.errors(baselines.true_model(lags, windows), targets)
    assert known[0] < 0.15  # of which the noise of what is compared with is 0.05
    assert known == sorted(known)
    assert known[-1] < 1.2 < baselines.errors(baselines.true_model(lags, windows, members=1), targets)[-1]


def test_the_buoy_has_no_gaps_and_its_test_comes_after(tmp_path: Path) -> None:
    if not HAS_BUOY:
        pytest.skip(WITHOUT_BUOY)
    write_buoy(tmp_path)
    train, test = read(tmp_path, "train"), read(tmp_path, "test")
    assert train.shape[1:] == test.shape[1:] == (480, 1)
    assert train[0, :3, 0] == pytest.approx([4.929, 4.887, 4.821])
    assert len(train) > 2 * len(test) > 20
    assert np.abs(np.diff(train, axis=1)).max() < 5  # kelvins in half an hour
    lags, targets = loaded(tmp_path, BUOY)[1].all()
    still = baselines.errors(baselines.persistence(lags, BUOY), targets)
    assert still[0] == pytest.approx(0.009, abs=0.001)
    assert still[BUOY.horizons.index(24)] == pytest.approx(0.050, abs=0.005)


# -- training ----------------------------------------------------------------------------------------------------------


def test_ranks_train_as_one_and_as_plain_jax(data: Path, launch: Launch, tmp_path: Path) -> None:
    found = {}
    for size in (1, 2, 3):  # three share no batch evenly
        result = tmp_path / f"{size}.npz"
        script = SUPPORT / "examples" / "train_timeseries.py"
        launch(size, script, arguments=[str(data), str(result)], environment=LEAN).ok()
        found[size] = dict(np.load(result))
    names = [name for name in found[1] if f"plain-{name}" in found[1]]
    assert len(names) == 6
    for size, each in found.items():
        assert each["losses"] == pytest.approx(found[1]["losses"], rel=1e-2), size
        assert each["jax"] == pytest.approx(each["loops"], abs=1e-4)
        for name in names:
            assert each[name] == pytest.approx(found[1][f"plain-{name}"], abs=2e-3), (size, name)
    assert found[1]["losses"][1] < found[1]["losses"][0]


def test_each_window_counts_once_when_a_worker_is_killed(tmp_path: Path) -> None:
    write_lorenz96(tmp_path / "made", seed=0)
    arguments = ["--data", str(tmp_path / "made"), "--epochs", "2"]
    history = trained_with_a_kill("examples.timeseries.train", arguments, tmp_path, steps=4, environment=LEAN)
    assert history.problems(60 * 973, 2) == []
    assert {record.size for records in history.begun.values() for record in records} >= {1, 2}


def test_a_training_goes_on_from_its_checkpoint_and_from_a_stage(data: Path, tmp_path: Path) -> None:
    continues(
        "examples.timeseries.train",
        ["--data", str(data)],
        tmp_path,
        says="loss",
        ends="after 16 steps; persistence",
        environment=LEAN,
    )


def test_the_table_is_made(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "examples.timeseries", "--reproduce", "--quick", "--out", str(tmp_path)]
    said = run_to_end(command, tmp_path, 300.0, LEAN).ok().stdout
    assert "the LSTM beats linear after 4 days" in said
    assert {path.name for path in (tmp_path / "timeseries").iterdir()} == {"results.json", "table.md", "picture.png"}
