"""Ensembles and passes of dropout with real models: intervals that cover, entropy away from the data, same bits."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits  # here, as it sets variables of the environment
from sklearn.neural_network import MLPClassifier
from zarr.core.sync import cleanup_resources

from farandole.inference import (
    classification,
    coverage,
    ensemble,
    expected_calibration_error,
    normal_interval,
    predict,
    regression,
)
from tests.support.launching import run_to_end
from tests.support.paths import ROOT

torch = pytest.importorskip("torch")
PROGRAM = ROOT / "tests" / "support" / "inference" / "dropping.py"


@pytest.fixture(autouse=True)
def without_threads_of_zarr() -> Iterator[None]:
    """End the event loop that the package starts."""
    yield
    cleanup_resources()


def noise_of(x: Any) -> Any:
    """Standard deviation of the noise, which is known."""
    return 0.1 + 0.2 * (x > 0)


def trained_member(seed: int, x: Any, y: Any) -> Any:
    """Network of mean and logarithm of the variance, by the likelihood (Lakshminarayanan et al. 2017, eq. 1)."""
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(1, 32), torch.nn.Tanh(), torch.nn.Linear(32, 2))
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    inputs, targets = (torch.as_tensor(each, dtype=torch.float32) for each in (x, y))
    for _ in range(600):
        mean, log_variance = model(inputs).T
        loss = (log_variance + (targets - mean) ** 2 / log_variance.exp()).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    def answer(batch: Any) -> Any:
        with torch.no_grad():
            mean, log_variance = model(torch.as_tensor(np.array(batch), dtype=torch.float32)).T
        return mean.numpy(), log_variance.exp().numpy()

    return answer


@pytest.fixture(scope="module")
def members() -> list[Any]:
    rng = np.random.default_rng(0)
    x = rng.uniform(-2, 2, (600, 1))
    y = np.sin(2 * x[:, 0]) + noise_of(x[:, 0]) * rng.normal(size=600)
    return [trained_member(seed, x, y) for seed in range(4)]


def test_intervals_cover_what_they_say(members: list[Any], tmp_path: Path) -> None:
    """On both halves, whose noise differs; by the known noise alone, the dull oracle, coverage is .9."""
    rng = np.random.default_rng(1)
    x = rng.uniform(-2, 2, (4000, 1))
    y = np.sin(2 * x[:, 0]) + noise_of(x[:, 0]) * rng.normal(size=4000)
    found = predict(regression(ensemble(members)), x, tmp_path / "out.zarr", workers=2, batch_size=500)
    low, high = normal_interval(found["mean"][:], found["variance"][:], 0.9)
    for half in (slice(None), x[:, 0] > 0, x[:, 0] < 0):
        assert 0.85 <= coverage(y[half], low[half], high[half]) <= 0.95
    assert coverage(y, *normal_interval(np.sin(2 * x[:, 0]), noise_of(x[:, 0]) ** 2)) == pytest.approx(0.9, abs=0.02)
    aleatoric = np.sqrt(found["aleatoric"][:])
    assert aleatoric[x[:, 0] > 0.2].mean() == pytest.approx(0.3, abs=0.05)
    assert aleatoric[x[:, 0] < -0.2].mean() == pytest.approx(0.1, abs=0.05)
    away = predict(regression(ensemble(members)), 6 + x, tmp_path / "away.h5", batch_size=500)
    assert np.mean(away["epistemic"][:]) > 10 * np.mean(found["epistemic"][:])


def test_entropy_is_higher_away_from_the_data(tmp_path: Path) -> None:
    x, y = load_digits(return_X_y=True)
    x = x / 16
    train, test = slice(0, 1200), slice(1200, None)
    members = [
        MLPClassifier((64,), max_iter=200, learning_rate_init=0.01, random_state=i).fit(x[train], y[train])
        for i in range(5)
    ]
    asked = classification(ensemble([each.predict_proba for each in members]))
    rng = np.random.default_rng(0)
    shuffled, noise = x[test][:, rng.permutation(64)], rng.uniform(0, 1, x[test].shape)
    found = {
        name: predict(asked, inputs, tmp_path / name, batch_size=100)
        for name, inputs in (("test", x[test]), ("shuffled", shuffled), ("noise", noise))
    }
    for field in ("total", "epistemic"):
        means = {name: float(np.mean(each[field])) for name, each in found.items()}
        assert means["shuffled"] > 2 * means["test"]
        assert means["noise"] > 2 * means["test"]
    mean = found["test"]["mean"][:]
    assert (mean.argmax(axis=1) == y[test]).mean() > 0.9
    assert expected_calibration_error(mean, y[test]) < 0.1


@pytest.mark.parametrize("backend", ["torch", "keras torch", "keras tensorflow", "keras jax"])
def test_dropout_alone_is_as_in_training(backend: str, tmp_path: Path) -> None:
    """In a process of its own, as frameworks leave threads; see the program for what it checks."""
    environment = {"KERAS_BACKEND": backend.partition(" ")[2] or "torch", "OMP_NUM_THREADS": "1"}
    done = run_to_end([sys.executable, str(PROGRAM), backend.partition(" ")[0]], tmp_path, 400.0, environment)
    assert done.ok().stdout == "checked\n"
