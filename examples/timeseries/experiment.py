"""What the table and the picture are made of: the network, beside baselines and the limit, on the same windows.

The network is trained by two processes; the baselines are fitted on the windows that it is trained on, and all
forecasts are asked for the same test windows.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, final

import msgspec
import numpy as np

import farandole
from examples.common.reproduce import ROOT, Figure, Finding, Measured, Results
from examples.timeseries import baselines
from examples.timeseries.data import BUOY, LORENZ96, Scale, Task, Windows, has_buoy, read, write_buoy, write_lorenz96
from examples.timeseries.training import Plan, forecasts, train

PLANS = {"lorenz96": Plan(), "buoy": Plan(epochs=10, rate=1e-3)}
TASKS = {"lorenz96": LORENZ96, "buoy": BUOY}
SHOWN = {"lorenz96": ((1, "1 day"), (4, "4 days")), "buoy": ((1, "half an hour"), (24, "12 hours"))}
"""Horizons in the table."""
TOLERANCES = {"lorenz96": 0.02, "buoy": 0.005}
KINDS = {"persistence": "baseline", "linear": "baseline", "LSTM": "own", "true model": "oracle"}
NAMES = {"lorenz96": "Lorenz-96", "buoy": "buoy"}


@final
class Curves(msgspec.Struct):
    """Errors by forecast at the horizons of a task, in standard deviations of the climate."""

    horizons: list[int]
    errors: dict[str, list[float]]

    def ratio(self, forecast: str, other: str, horizon: int) -> float:
        """Error of one forecast, in units of that of the other."""
        at = self.horizons.index(horizon)
        return self.errors[forecast][at] / self.errors[other][at]


def tasks() -> tuple[str, ...]:
    """The tasks whose data are here."""
    return ("lorenz96", "buoy") if has_buoy() else ("lorenz96",)


def figures() -> tuple[Figure, ...]:
    """Rows of the table."""
    return tuple(
        Figure(f"{task} {forecast} {at}", f"{NAMES[task]}: RMSE of {forecast} after {said}", kind, TOLERANCES[task])
        for task in tasks()
        for forecast, kind in KINDS.items()
        if (task, forecast) != ("buoy", "true model")
        for at, said in SHOWN[task]
    )


def measure(seed: int, quick: bool) -> Measured:
    """Train and compare on every task whose data are here; see ``Application``."""
    found = {task: compare(task, seed, quick) for task in tasks()}
    values = {
        f"{task} {forecast} {at}": errors[curves.horizons.index(at)]
        for task, curves in found.items()
        for forecast, errors in curves.errors.items()
        for at, _ in SHOWN[task]
    }
    return Measured(values, {task: msgspec.to_builtins(curves) for task, curves in found.items()})


def compare(name: str, seed: int, quick: bool) -> Curves:
    """Errors of all forecasts of one task."""
    plan = replace(PLANS[name], seed=seed, epochs=1 if quick else PLANS[name].epochs)
    task = TASKS[name]
    with tempfile.TemporaryDirectory() as folder:
        make(name, Path(folder) / name, seed, quick)
        scale, windows, test = loaded(Path(folder) / name, task)
        params = farandole.run(trained, args=(Path(folder) / name, task, plan), np=2, python_path=[str(ROOT)])[0]
    lags, targets = test.all()
    found = {
        "persistence": baselines.persistence(lags, task),
        "linear": baselines.linear(windows, lags),
        "LSTM": forecasts(params, lags),
        "climatology": np.zeros_like(targets),
    }
    if name == "lorenz96":
        found["true model"] = baselines.true_model(lags, task, scale)
    return Curves(list(task.horizons), {each: baselines.errors(found[each], targets) for each in found})


def make(name: str, folder: Path, seed: int, quick: bool) -> None:
    """Write the data of a task."""
    if name == "buoy":
        write_buoy(folder)
    else:
        write_lorenz96(folder, seed, quick=quick)


def loaded(folder: Path, task: Task, cache: str = "", limit: str | None = None) -> tuple[Scale, Windows, Windows]:
    """Windows to train on and to test on, both in units of the first ones' climate."""
    seen, unseen = (read(folder, part, cache, limit) for part in ("train", "test"))
    scale = Scale.of(seen)
    return scale, Windows(seen, scale, task), Windows(unseen, scale, task)


def trained(folder: Path, task: Task, plan: Plan) -> Any:
    """Parameters as arrays of NumPy. Called on every rank."""
    import farandole.jax as hvd

    hvd.init()
    _, windows, _ = loaded(folder, task)
    params = {name: np.asarray(value) for name, value in train(windows, plan).items()}
    hvd.shutdown()
    return params


def findings(results: Results) -> Sequence[Finding]:
    """What the numbers show."""
    chaos = [msgspec.convert(each.drawn["lorenz96"], Curves) for each in results.values()]
    found = []
    for other in ("persistence", "linear"):
        for horizon, said in SHOWN["lorenz96"]:
            worst = max(each.ratio("LSTM", other, horizon) for each in chaos)
            claim = f"the LSTM beats {other} after {said}"
            found.append(Finding(claim, f"its error is {worst:.2f} x that, at most", worst < 1))
    least = min(each.ratio("LSTM", "true model", horizon) for each in chaos for horizon in each.horizons)
    limit = "it never beats the true model from what was observed"
    found.append(Finding(limit, f"its error is {least:.2f} x that, at least", least > 1))
    last = chaos[0].horizons[-1]
    gain = max(1 - each.ratio("LSTM", "climatology", last) for each in chaos)
    found.append(Finding(f"after {last} days climatology is as good", f"within {gain:.1%}", gain < 0.05))
    sea = [msgspec.convert(each.drawn["buoy"], Curves) for each in results.values() if "buoy" in each.drawn]
    if sea:
        gains = {
            at: max(1 - each.ratio(one, "persistence", at) for each in sea for one in ("linear", "LSTM"))
            for at in sea[0].horizons
        }
        best = max(gains, key=lambda at: gains[at])
        numbers = f"at most {gains[best]:.1%}, after {best / 2:g} hours; {gains[24]:.1%} after 12 hours"
        claim = "on the buoy nobody gains 5 % on persistence at any horizon, and none 12 hours ahead"
        found.append(Finding(claim, numbers, gains[best] < 0.05 and gains[24] <= 0))
    return found
