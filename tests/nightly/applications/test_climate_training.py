"""The climate example trains: as plain PyTorch on any number of ranks, on from a checkpoint, and under ``kill -9``."""

from __future__ import annotations

import json
import math
import os
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

from examples.climate.files import write
from examples.climate.train import Plan
from farandole.testing.ledger import read
from tests.support.examples.climate_on_ranks import PLANS
from tests.support.examples.killed import trained_with_a_kill
from tests.support.frameworks import without_compiler
from tests.support.launching import Finished, Launch, run_to_end
from tests.support.paths import ROOT, SUPPORT
from tests.support.tiers import Tier

QUICK_START = without_compiler()
PYTHONPATH = (str(ROOT), QUICK_START.get("PYTHONPATH", os.environ.get("PYTHONPATH", "")))
IMPORTS = {**QUICK_START, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, PYTHONPATH))}
STATES = 10
"""Not a multiple of the batch: ranks have unequally many in the last step."""


def python(*arguments: str, folder: Path, deadline_s: float = 300.0) -> Finished:
    """Run Python with the examples."""
    return run_to_end([sys.executable, "-m", *arguments], folder, deadline_s, IMPORTS)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data, and what two jobs have made of them: see ``climate_on_ranks.py``."""
    made = tmp_path_factory.mktemp("climate")
    write(made / "data", (STATES, 3), seed=7)
    script = SUPPORT / "examples" / "climate_on_ranks.py"
    for ranks in (1, 2):
        arguments = [str(made / "data"), str(made)]
        Launch(made, Tier.NIGHTLY)(ranks, script, arguments=arguments, environment=IMPORTS).ok()
    return made


def plain(data: Path, plan: Plan, batches: list[list[int]]) -> dict[str, Any]:
    """The same training in one process by PyTorch, h5py and NumPy alone, on states by number."""
    with h5py.File(data / "stats.h5") as file:
        low, high = file["climate/minval"][:], file["climate/maxval"][:]
    states = []
    for path in sorted((data / "train").iterdir()):
        with h5py.File(path) as file:
            image = (file["climate/data"][:] - low) / (high - low)
            states.append((image.transpose(2, 0, 1).astype(np.float32), file["climate/labels_0"][:].astype(np.int64)))
    pixels = np.stack([labels for _, labels in states])
    share = torch.tensor([float((pixels == number).mean()) for number in range(3)])
    weight = share**-0.5 / (share * share**-0.5).sum()
    model = plan.network(8, share * weight)
    optimizer = torch.optim.Adam(model.parameters(), 0.004)
    late = [[torch.zeros_like(each) for each in model.parameters()] for _ in range(plan.lag)]
    losses, done = [0.0] * plan.epochs, 0
    for rows in batches:
        epoch = done // STATES
        optimizer.zero_grad()
        for row in rows:  # one after the other: their gradients add up
            key = np.array([1_000_003 * plan.seed, row], np.uint64)
            philox = np.random.Philox(key=key, counter=np.array([0, 0, 0, epoch], np.uint64))
            shift = int(np.random.Generator(philox).integers(144))
            image, labels = (torch.from_numpy(np.roll(each, shift, -1)) for each in states[row])
            logs = model(image[None])[0].log_softmax(0)
            loss = torch.zeros(())
            for number in range(3):
                loss -= weight[number] * logs[number][labels == number].sum() / labels.numel()
            (loss / len(rows)).backward()
            losses[epoch] += float(loss.detach()) / STATES
        late.append([gradient.clone() for each in model.parameters() if (gradient := each.grad) is not None])
        for each, gradient in zip(model.parameters(), late.pop(0), strict=True):
            each.grad = gradient
        for group in optimizer.param_groups:
            group["lr"] = 0.004 * (1 + math.cos(math.pi * done / (STATES * plan.epochs))) / 2
        optimizer.step()
        done += len(rows)
    return {"model": model.state_dict(), "losses": losses}


def flat(model: dict[str, torch.Tensor]) -> torch.Tensor:
    """All weights but those of the last bias, in which the networks differ before they are trained."""
    return torch.cat([value.flatten() for value in [*model.values()][:-1]])


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: f"lag-{plan.lag}")
def test_one_and_two_workers_train_what_plain_pytorch_does(
    folder: Path, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(folder))  # which the first optimizer sets
    histories = [read(folder / f"ledger-{ranks}-{plan.lag}") for ranks in (1, 2)]
    batches = histories[0].batches()
    assert histories[1].batches() == batches
    assert [history.problems(STATES, plan.epochs) for history in histories] == [[], []]
    expected = plain(folder / "data", plan, batches)
    one, two = (torch.load(folder / f"{ranks}-{plan.lag}.pt", weights_only=True) for ranks in (1, 2))
    begun = flat(plan.network(8, torch.ones(3)).state_dict())
    way = (flat(expected["model"]) - begun).norm()
    for found in (one, two):
        assert found["losses"] == pytest.approx(expected["losses"], rel=2e-3)
        # Adam steps by a whole rate where a gradient is next to nothing, whose sign is rounding: single weights differ.
        assert (flat(found["model"]) - flat(expected["model"])).norm() < 0.05 * way
    assert (flat(one["model"]) - flat(two["model"])).norm() < 0.05 * way
    assert one["iou"] == pytest.approx(two["iou"], abs=2e-3)


def test_a_lag_is_another_training(folder: Path) -> None:
    late, timely = (torch.load(folder / f"2-{lag}.pt", weights_only=True)["model"] for lag in (1, 0))
    assert max((late[name] - timely[name]).abs().max().item() for name in late) > 2e-3


@pytest.mark.parametrize(("lag", "bound"), [(0, 38.0), (1, 1.0)])
def test_a_lag_lowers_the_rate_that_is_stable_with_momentum(lag: int, bound: float) -> None:
    """What the README says of rate times curvature: gradient descent with a momentum of .9 on w²/2, late by a lag."""
    for rate in (0.95 * bound, 1.05 * bound):
        weights, momentum = [1.0] * (lag + 1), 0.0
        for _ in range(2000):
            momentum = 0.9 * momentum + 0.1 * weights[-1 - lag]
            weights.append(weights[-1] - rate * momentum)
        assert (max(map(abs, weights[-20:])) < 1) == (rate < bound)


def test_weights_are_powers_of_the_frequency_and_one_in_the_mean() -> None:
    share = torch.tensor([0.98, 0.005, 0.015])
    for power in (0.0, 0.125, 0.5, 1.0):
        weights = Plan(weighting=power).weights(share)
        assert float((weights * share).sum()) == pytest.approx(1)
        assert float(weights[0] / weights[1]) == pytest.approx((0.005 / 0.98) ** power, rel=1e-5)


def test_the_first_answers_are_near_the_prior() -> None:
    prior = torch.tensor([0.9, 0.04, 0.06])
    for model in ("tiramisu", "deeplab"):
        network = replace(Plan(), model=model).network(8, prior)
        with torch.no_grad():
            said = network(torch.rand(1, 8, 96, 144)).softmax(1).mean((0, 2, 3))
        assert said[0] > 0.7


def trained(folder: Path, *arguments: str, ranks: int = 2) -> str:
    """What the script says on some ranks."""
    command = ("farandole", "run", "-np", str(ranks), sys.executable, "-m", "examples.climate.train")
    return python(*command, *arguments, folder=folder).ok().stdout


def test_the_script_stages_netcdf_and_goes_on_from_a_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    common = (
        "--quick",
        "--form",
        "netcdf",
        "--stage",
        str(tmp_path / "cache"),
        "--limit",
        "50MB",
        "--model",
        "deeplab",
    )
    options = (*common, "--larc", "--checkpoints", "kept")
    first = trained(tmp_path, *options, "--epochs", "1")
    assert re.search(r"1/1 loss [\d.]+ mean IoU [\d.]+", first)
    assert [*(tmp_path / "cache").rglob("*.sums")]
    second = trained(tmp_path, *options, "--epochs", "2", ranks=1)
    assert re.search(r" 2/2 loss [\d.]+ mean IoU [\d.]+", second)
    assert " 1/2 loss" not in second
    assert re.search(r"mean IoU [\d.]+ on other states: background [\d.]+, tropical cyclone ", second)
    assert re.search(r"input(-bound: \d+ % of the step waits| keeps up: )", second)


def test_each_state_counts_once_though_a_worker_is_killed(tmp_path: Path) -> None:
    history = trained_with_a_kill(
        "examples.climate.train", ["--quick", "--epochs", "6", "--model", "deeplab"], tmp_path
    )
    assert history.problems(24, 6) == []
    assert {len(batch) for batch in history.batches()} == {4}
    assert {record.size for records in history.begun.values() for record in records} >= {1, 2}


def test_all_is_reproduced_by_one_command(tmp_path: Path) -> None:
    said = python("examples.climate", "--reproduce", "--quick", "--out", "made", folder=tmp_path, deadline_s=400.0).ok()
    made = tmp_path / "made" / "climate"
    figures = json.loads((made / "results.json").read_text())["seeds"]["0"]["figures"]
    assert figures["background everywhere"] == pytest.approx(0.33, abs=0.01)
    assert figures["linear, 1/f"] < figures["linear, no weighting"]
    for name in ("Tiramisu, no weighting", "Tiramisu, 1/√f", "DeepLabv3+, LARC"):
        assert name in (made / "table.md").read_text()
    assert "cyclones half as deep" in said.stdout
    assert (made / "picture.png").read_bytes().startswith(b"\x89PNG")
