"""Throughput of a search beside Optuna's threads and Ray Tune, and the epochs that its rungs save."""

from __future__ import annotations

import functools
import importlib.util
import itertools
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import farandole
from benchmarks.measure import Row, Sample, Table, Verdict

WORKERS, EPOCH_S = 2, 0.02
MOST_MS = 20.0
"""Longest time between two trials of a function that does nothing."""
RAY_ROUNDS = 1  # of Ray Tune, which takes some minutes
TUNE_NEEDS = ("ray", "pandas", "pyarrow", "pydantic", "requests", "tensorboardX")


def run(quick: bool) -> list[Table]:
    """All tables of this section."""
    return [_throughput(16 if quick else 64, 3 if quick else 7), _between(100), _rungs(3 if quick else 7)]


def work(seconds: float = EPOCH_S) -> None:
    """Compute in Python for so long, of this thread's own time: threads that share an interpreter take turns."""
    until_s = time.thread_time() + seconds
    while time.thread_time() < until_s:
        pass


def loss(x: float, epoch: int = 1) -> float:
    """Loss of a training after so many epochs."""
    return (x - 0.3) ** 2 + 0.1 / epoch


def objective(trial: Any) -> float:
    """Trial of one epoch, as ``farandole.search`` calls it."""
    work()
    return loss(trial.parameters["x"])


def optuna_objective(trial: Any) -> float:
    """The same for Optuna."""
    work()
    return loss(trial.suggest_float("x", 0.0, 1.0))


def ray_objective(config: dict[str, float]) -> dict[str, float]:
    """The same for Ray Tune."""
    work()
    return {"loss": loss(config["x"])}


def curve(trial: Any) -> None:
    """Trial of 27 epochs, of which rungs save most."""
    for epoch in range(1, trial.epochs + 1):
        trial.report(loss(trial.parameters["x"], epoch), epoch)


def _throughput(trials: int, rounds: int) -> Table:
    """Trials in a second, start and end of the workers included; in turn, so that all have the same machine."""
    contenders: dict[str, Callable[[int], object]] = {"farandole": _farandole, "Optuna, n_jobs": _optuna}
    missing = [name for name in TUNE_NEEDS if importlib.util.find_spec(name) is None]
    if missing:
        print(
            f"Ray Tune is left out, as {', '.join(missing)} is not installed: pip install 'ray[tune]'", file=sys.stderr
        )
    else:
        contenders["Ray Tune"] = _ray
    taken: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(rounds):
        for name, contender in contenders.items():
            if name == "Ray Tune" and turn >= RAY_ROUNDS:
                continue
            begun_s = time.perf_counter()
            contender(trials)
            taken[name].append(trials / (time.perf_counter() - begun_s))
    samples = {name: Sample.of(values) for name, values in taken.items()}
    verdicts = tuple(
        Verdict(samples["farandole"].median / samples[name].median, f"times {name}")
        for name in contenders
        if name != "farandole"
    )
    what = f"{trials} trials of {1e3 * EPOCH_S:g} ms"
    return Table(f"Search, random, {WORKERS} workers", "trials/s", rows=[Row(what, samples, verdicts)])


def at_once(trial: Any) -> None:
    """Trial that does nothing; its value is the time."""
    trial.report(time.monotonic(), 1)


def _between(trials: int) -> Table:
    """Time between two trials on a warm worker, of a function that reports at once."""
    with tempfile.TemporaryDirectory() as folder:
        search = functools.partial(farandole.search, at_once, {"x": (0.0, 1.0)}, trials, 1, 1, advisor="random")
        found = search(folder=Path(folder) / "run", progress=False).trials
    times = [float(trial.value or 0.0) for trial in found]
    gaps = [1e3 * (after - before) for before, after in itertools.pairwise(times[1:])]  # the first has imported
    sample = Sample.of(gaps)
    row = Row(f"{trials} trials of nothing", {"farandole": sample}, (Verdict(sample.median, "ms", most=MOST_MS),))
    return Table("Between two trials of a search, 1 worker", "ms", rows=[row])


def _rungs(rounds: int) -> Table:
    """Share of the epochs that 27 trials train, and how far the best is from the best of all."""
    shares, gaps = [], []
    for seed in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            search = functools.partial(farandole.search, curve, {"x": (0.0, 1.0)}, 27, 1, WORKERS, epochs=27)
            result = search(advisor="random", seed=seed, folder=Path(folder) / "run", progress=False)
        best = min(loss(float(trial.parameters["x"]), 27) for trial in result.trials)
        assert result.best is not None
        assert result.best.value is not None
        shares.append(100 * result.epochs / result.epochs_of_all)
        gaps.append(100 * (result.best.value / best - 1))
    verdicts = (Verdict(max(shares), "% at most", most=45.0), Verdict(max(gaps), "% from the best", most=1.0))
    row = Row("27 trials of 27 epochs", {"epochs": Sample.of(shares)}, verdicts)
    return Table("Epochs of a search with rungs", "%", rows=[row])


def _farandole(trials: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        options: dict[str, Any] = {"advisor": "random", "folder": Path(folder) / "run", "progress": False}
        farandole.search(objective, {"x": (0.0, 1.0)}, trials, 1, WORKERS, **options)


def _optuna(trials: int) -> None:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    study.optimize(optuna_objective, n_trials=trials, n_jobs=WORKERS)


def _ray(trials: int) -> None:
    import ray
    from ray import tune

    ray.init(num_cpus=WORKERS, include_dashboard=False, log_to_driver=False)
    try:
        config = tune.TuneConfig(num_samples=trials, max_concurrent_trials=WORKERS)
        tune.Tuner(ray_objective, param_space={"x": tune.uniform(0.0, 1.0)}, tune_config=config).fit()
    finally:
        ray.shutdown()
