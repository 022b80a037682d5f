"""A scene in false colour, its truth, what both ways to choose pixels predict, and all accuracies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure

from examples.common.reproduce import Results
from examples.hyperspectral.experiment import APART, FIGURES
from examples.hyperspectral.scene import CLASSES, make

COLOURS = ListedColormap(("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#f0e442", "#56b4e9"))
HERE, THERE = (
    ("random 5-NN", "random", "region 5-NN", "region", "permuted"),
    ("untouched", "nothing", "frozen", "thawed"),
)


def draw(results: Results, path: Path) -> None:
    """Draw the first scene of the first seed, and the accuracies of all."""
    seed, first = next(iter(results.items()))
    scene = make(APART * seed)
    bands = scene.cube[..., [26, 14, 4]]
    low, high = np.percentile(bands, [2, 98], axis=(0, 1))
    figure = Figure(figsize=(10.5, 6.6), layout="constrained")
    axes = figure.subplot_mosaic([["colour", "truth", "random", "region"], ["bars"] * 4])
    maps = {name: np.array([[*map(int, line)] for line in lines]) for name, lines in first.drawn["maps"].items()}
    axes["colour"].imshow(((bands - low) / (high - low)).clip(0, 1))
    axes["colour"].set_title("false colour (bands 26, 14, 4)", fontsize=9)
    told = {"truth": "truth", "random": "trained on random pixels", "region": "trained on half of the parcels"}
    for name, classes in {"truth": scene.labels, **maps}.items():
        axes[name].imshow(classes, cmap=COLOURS, vmin=-0.5, vmax=CLASSES - 0.5, interpolation="nearest")
        axes[name].set_title(told[name], fontsize=9)
    for name in ("colour", *told):
        axes[name].set_axis_off()
    _bars(axes["bars"], [row for each in results.values() for row in each.drawn["scenes"]])
    figure.savefig(path, dpi=120)


def _bars(axis: Any, rows: list[dict[str, float]]) -> None:
    own = {figure.name for figure in FIGURES if figure.kind == "own"}
    places = [*range(len(HERE)), *(len(HERE) + 0.6 + np.arange(len(THERE)))]
    for at, name in zip(places, HERE + THERE, strict=True):
        values = [row[name] for row in rows]
        axis.bar(at, np.mean(values), color="#0072b2" if name in own else "#bbbbbb", width=0.7)
        axis.plot([at] * len(rows), values, "o", color="black", markersize=2.5, alpha=0.5)
    prior = np.mean([row["prior"] for row in rows])
    axis.hlines(prior, -0.4, 4.4, colors="#d55e00", linestyles="--")
    axis.text(4.45, prior, "commonest\nclass", color="#d55e00", fontsize=8, va="center")
    axis.set_xticks(places, [name.replace(" ", "\n") for name in HERE + THERE], fontsize=8)
    axis.set(ylabel="accuracy of the CNN, or of 5-NN", ylim=(0, 1))
    axis.set_title("one scene, tested elsewhere in it" + " " * 40 + "another scene, 20 labels a class", fontsize=9)
    axis.spines[["top", "right"]].set_visible(False)
