"""What the table and the picture are made of: the network, beside baselines and the limit, on the same windows.

The network is trained by two processes; the baselines are fitted on the windows that it is trained on, and all
forecasts are asked for the same test windows.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import farandole
from examples.common.reproduce import ROOT, Figure, Finding, Measured, Results
from examples.timeseries import baselines
from examples.timeseries.data import BUOY, HAS_BUOY, LORENZ96, WITHOUT_BUOY, Task, loaded, write_buoy, write_lorenz96
from examples.timeseries.training import Plan, forecasts, train

PLANS = {"lorenz96": Plan(), "buoy": Plan(epochs=10, rate=1e-3)}
TASKS = {"lorenz96": LORENZ96, "buoy": BUOY}
NAMES = {"lorenz96": "Lorenz-96", **({"buoy": "buoy"} if HAS_BUOY else {})}
"""The tasks whose data are here."""
SHOWN = {"lorenz96": ((1, "1 day"), (4, "4 days")), "buoy": ((1, "half an hour"), (24, "12 hours"))}
"""Horizons in the table."""
TOLERANCES = {"lorenz96": 0.02, "buoy": 0.005}
KINDS = {"persistence": "baseline", "linear": "baseline", "LSTM": "own", "true model": "oracle"}
FIGURES = tuple(
    Figure(f"{task} {forecast} {at}", f"{name}: RMSE of {forecast} after {said}", kind, TOLERANCES[task])
    for task, name in NAMES.items()
    for forecast, kind in KINDS.items()
    if (task, forecast) != ("buoy", "true model")
    for at, said in SHOWN[task]
)


def measure(seed: int, quick: bool) -> Measured:
    """Train and compare on every task whose data are here; see ``Application``."""
    found = {task: compare(task, seed, quick) for task in NAMES}
    values = {
        f"{task} {forecast} {at}": errors[curves["horizons"].index(at)]
        for task, curves in found.items()
        for forecast, errors in curves["errors"].items()
        for at, _ in SHOWN[task]
    }
    return Measured(values, found)


def compare(name: str, seed: int, quick: bool) -> dict[str, Any]:
    """Errors of all forecasts of one task at its horizons, in standard deviations of the climate."""
    plan = replace(PLANS[name], seed=seed, epochs=1 if quick else PLANS[name].epochs)
    task = TASKS[name]
    with tempfile.TemporaryDirectory() as folder:
        make(name, Path(folder) / name, seed, quick)
        windows, test = loaded(Path(folder) / name, task)
        params = farandole.run(trained, args=(Path(folder) / name, task, plan), np=2, python_path=[str(ROOT)])[0]
    lags, targets = test.all()
    found = {
        "persistence": baselines.persistence(lags, task),
        "linear": baselines.linear(lags, windows),
        "LSTM": forecasts(params, lags),
        "climatology": np.zeros_like(targets),
    }
    if name == "lorenz96":
        found["true model"] = baselines.true_model(lags, windows)
    return {"horizons": task.horizons, "errors": {who: baselines.errors(said, targets) for who, said in found.items()}}


def make(name: str, folder: Path, seed: int, quick: bool) -> None:
    """Write the data of a task."""
    if name == "buoy":
        write_buoy(folder)
    else:
        write_lorenz96(folder, seed, quick=quick)


def trained(folder: Path, task: Task, plan: Plan) -> Any:
    """Parameters as arrays of NumPy. Called on every rank."""
    import farandole.jax as hvd

    hvd.init()
    return {name: np.asarray(value) for name, value in train(loaded(folder, task)[0], plan).items()}


def findings(results: Results) -> Sequence[Finding]:
    """What the numbers show."""
    chaos, sea = ([each.drawn[task] for each in results.values() if task in each.drawn] for task in TASKS)
    found = []
    for other in ("persistence", "linear"):
        for horizon, said in SHOWN["lorenz96"]:
            worst = max(ratio(each, "LSTM", other, horizon) for each in chaos)
            claim = f"the LSTM beats {other} after {said}"
            found.append(Finding(claim, f"its error is {worst:.2f} x that, at most", worst < 1))
    least = min(ratio(each, "LSTM", "true model", horizon) for each in chaos for horizon in LORENZ96.horizons)
    limit = "it never beats the true model from what was observed"
    found.append(Finding(limit, f"its error is {least:.2f} x that, at least", least > 1))
    last = LORENZ96.horizons[-1]
    gain = max(1 - ratio(each, "LSTM", "climatology", last) for each in chaos)
    found.append(Finding(f"after {last} days climatology is as good", f"within {gain:.1%}", gain < 0.05))
    if not sea:
        found.append(Finding("the buoy is compared, too", WITHOUT_BUOY, False))
    else:
        gains = {
            at: max(1 - ratio(each, one, "persistence", at) for each in sea for one in ("linear", "LSTM"))
            for at in BUOY.horizons
        }
        best = max(gains, key=lambda at: gains[at])
        numbers = f"at most {gains[best]:.1%}, after {best / 2:g} hours; {gains[24]:.1%} after 12 hours"
        claim = "on the buoy nobody gains 5 % on persistence at any horizon, and none 12 hours ahead"
        found.append(Finding(claim, numbers, gains[best] < 0.05 and gains[24] <= 0))
    return found


def ratio(curves: Mapping[str, Any], forecast: str, other: str, horizon: int) -> float:
    """Error of one forecast, in units of that of the other."""
    at = curves["horizons"].index(horizon)
    return float(curves["errors"][forecast][at] / curves["errors"][other][at])
