"""What is measured: three weightings, two networks, a lag, LARC, and weak cyclones, beside linear models; and drawn."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy.ndimage import uniform_filter
from sklearn import linear_model, pipeline, preprocessing

import farandole
import farandole.torch as hvd
from examples.climate.files import STRENGTHS, load, made, write
from examples.climate.train import Plan, evaluated, said, train
from examples.climate.weather import LAT, LON, Array, label
from examples.common.reproduce import ROOT, Figure, Finding, Measured, Results

WEIGHTINGS = {"no weighting": 0.0, "1/√f": 0.5, "1/f": 1.0}
PLANS = {
    **{f"Tiramisu, {name}": Plan(weighting=power) for name, power in WEIGHTINGS.items()},
    "DeepLabv3+, Adam": Plan("deeplab"),
    "DeepLabv3+, lag 1": Plan("deeplab", lag=1),
    "DeepLabv3+, LARC": Plan("deeplab", larc=True),
}
NOTHING, WEAK = "background everywhere", "cyclones half as deep"
LINEAR = [f"linear, {name}" for name in WEIGHTINGS]
FIGURES = [Figure(name, name, "baseline") for name in (NOTHING, *LINEAR, f"linear, {WEAK}")]
FIGURES += [Figure(name, name) for name in (*PLANS, f"Tiramisu, {WEAK}")]


def measure(seed: int, quick: bool) -> Measured:
    """Mean IoU of all models on states that they have not seen; trained by two processes."""
    sizes = (16, 8, 8) if quick else (200, 40, 40)
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), sizes, seed)
        return Measured(*farandole.run(on_ranks, (Path(folder), seed, quick), np=2, python_path=[str(ROOT)])[0])


def on_ranks(folder: Path, seed: int, quick: bool) -> tuple[dict[str, float], dict[str, Any]]:
    """Fit and train on this job's ranks: figures, and what is drawn."""
    hvd.init()
    states, others, weak = (load(folder, part) for part in STRENGTHS)
    models: dict[str, Callable[[Array], Array]] = {NOTHING: lambda image: 0 * image[0]}
    models |= {f"linear, {name}": linear(states, power) for name, power in WEIGHTINGS.items()}
    for name, plan in PLANS.items():
        state = train(replace(plan, seed=seed, epochs=1 if quick else plan.epochs), states, others)
        models[name] = partial(said, state.model)
    figures = {name: float(np.mean(evaluated(model, others))) for name, model in models.items()}
    for name in ("linear", "Tiramisu"):
        figures[f"{name}, {WEAK}"] = float(np.mean(evaluated(models[f"{name}, no weighting"], weak)))
    number = next((n for n in range(len(others)) if len({*others[n][1].flat}) == 3), 0)
    masks = ["".join(map(str, row)) for row in models["Tiramisu, no weighting"](others[number][0])]
    return figures, {"number": number, "masks": masks}


def linear(states: hvd.data.Source, weighting: float) -> Callable[[Array], Array]:
    """Predictor by a logistic regression on fields, their squares, and both smoothed, of one pixel in four."""

    def features(image: Array) -> Array:
        smooth = uniform_filter(image, (0, 5, 5), mode=("nearest", "nearest", "wrap"))
        return np.concatenate([image, smooth, image**2, smooth**2]).reshape(4 * len(image), -1).T

    seen = [(features(image)[::4], labels.ravel()[::4]) for image, labels in states]
    x, y = (np.concatenate(each) for each in zip(*seen, strict=True))
    weights = dict(enumerate((np.bincount(y) / len(y)) ** -weighting))
    regression = linear_model.LogisticRegression(solver="newton-cholesky", class_weight=weights)
    model = pipeline.make_pipeline(preprocessing.StandardScaler(), regression).fit(x.astype(float), y)
    return lambda image: model.predict(features(image)).reshape(image.shape[1:])


def findings(results: Results) -> Sequence[Finding]:
    """What the figures of all seeds show, good or bad."""
    of = {figure.name: np.array([each.figures[figure.name] for each in results.values()]) for figure in FIGURES}
    own = {name: of[f"Tiramisu, {name}"] for name in WEIGHTINGS}
    best = max(own, key=lambda name: float(own[name].mean()))
    gain = {name: own[name] - of[f"linear, {name}"] for name in own}
    weak, root = of[f"Tiramisu, {WEAK}"] - of[f"linear, {WEAK}"], own["1/√f"] - own["1/f"]
    deep = {name: of[f"DeepLabv3+, {name}"] - of["DeepLabv3+, Adam"] for name in ("lag 1", "LARC")}
    rows = [
        ("mean IoU of Tiramisu is above .70", own["no weighting"], (own["no weighting"] > 0.70).all()),
        *((f"it beats the linear model, {name}", gain[name], (gain[name] > 0).all()) for name in gain),
        (f"it does with {WEAK}, as none was in training", weak, (weak > 0).all()),
        ("1/√f is above 1/f by .05", root, (root >= 0.05).all()),
        (f"best here is {best}", own[best], True),
        *((f"{name} trains as Adam at lag 0, to .03 in the mean", d, abs(d.mean()) < 0.03) for name, d in deep.items()),
    ]
    return [Finding(claim, " ".join(f"{each:.3f}" for each in values), bool(holds)) for claim, values, holds in rows]


def draw(results: Results, path: Path) -> None:
    """Draw the first seed's state: wind over water vapour, and the classes of pixels, true and predicted."""
    from matplotlib.colors import ListedColormap
    from matplotlib.figure import Figure as Picture

    seed, first = next(iter(results.items()))
    state = made(seed, "validation", first.drawn["number"] + 1)[-1]
    found = np.array([[*map(int, row)] for row in first.drawn["masks"]])
    picture = Picture(figsize=(12, 3.6), layout="constrained")
    colours = ListedColormap(["#ffffff00", "#d55e00", "#0072b2"])
    for axes, mask, who in zip(picture.subplots(1, 2), (label(state), found), ("heuristics", "Tiramisu"), strict=True):
        for image, how in ((state[..., 0], {"cmap": "Greys", "vmax": 120}), (mask, {"cmap": colours, "vmax": 2})):
            axes.imshow(image, vmin=0, origin="lower", extent=(0, 360, -90, 90), aspect="auto", **how)
        axes.quiver(LON[::4], LAT[::4], *np.moveaxis(state[::4, ::4, 2:4], -1, 0), scale=600, width=0.0016)
        axes.set_title(f"cyclones (orange) and rivers (blue) by {who}, over water vapour", fontsize=10)
    picture.savefig(path, dpi=110)
