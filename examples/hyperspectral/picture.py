"""A scene in false colour, its truth, what both ways to choose pixels predict, and all accuracies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np

from examples.common.reproduce import Results
from examples.hyperspectral.experiment import seed_of
from examples.hyperspectral.scene import Array, make

COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#f0e442", "#56b4e9")
BARS = {
    "random 5-NN": "5-NN,\nrandom",
    "random": "CNN,\nrandom",
    "region 5-NN": "5-NN,\nregions",
    "region": "CNN,\nregions",
    "permuted": "no\nmeaning",
    "untouched": "no\nlabels",
    "nothing": "from\nnothing",
    "frozen": "frozen",
    "thawed": "thawed",
}


def draw(results: Results, path: Path) -> None:
    """Draw the first scene of the first seed, and the accuracies of all."""
    mpl.use("Agg")
    import matplotlib.pyplot as plt

    seed = next(iter(results))
    scene, drawn = make(seed_of(seed, 0)), results[seed].drawn
    figure, axes = plt.subplot_mosaic([["colour", "truth", "random", "region"], ["bars"] * 4], figsize=(10.5, 6.6))
    maps = {
        name: np.array([[int(each) for each in line] for line in drawn["maps"][name]]) for name in ("random", "region")
    }
    show = mpl.colors.ListedColormap(COLOURS)
    axes["colour"].imshow(_false_colour(scene.cube))
    axes["colour"].set_title("false colour (bands 26, 14, 4)", fontsize=9)
    told = {"truth": "truth", "random": "trained on random pixels", "region": "trained on half of the parcels"}
    for name, classes in {"truth": scene.labels, **maps}.items():
        axes[name].imshow(classes, cmap=show, vmin=-0.5, vmax=len(COLOURS) - 0.5, interpolation="nearest")
        axes[name].set_title(told[name], fontsize=9)
    for name in ("colour", *told):
        axes[name].set_axis_off()
    _bars(axes["bars"], [row for each in results.values() for row in each.drawn["scenes"]])
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _false_colour(cube: Array) -> Array:
    bands = cube[..., [26, 14, 4]]
    low, high = np.percentile(bands, [2, 98], axis=(0, 1))
    return np.asarray(((bands - low) / (high - low)).clip(0, 1))


def _bars(axis: Any, rows: list[dict[str, float]]) -> None:
    place = np.arange(len(BARS)) + np.array([0.0] * 5 + [0.6] * 4)
    colours = ["#bbbbbb", "#0072b2"] * 2 + ["#bbbbbb"] * 3 + ["#0072b2"] * 2
    axis.bar(place, [np.mean([row[name] for row in rows]) for name in BARS], color=colours, width=0.7)
    for at, name in zip(place, BARS, strict=True):
        axis.plot([at] * len(rows), [row[name] for row in rows], "o", color="black", markersize=2.5, alpha=0.5)
    prior = np.mean([row["prior"] for row in rows])
    axis.hlines(prior, -0.4, 4.4, colors="#d55e00", linestyles="--")
    axis.text(4.45, prior, "commonest\nclass", color="#d55e00", fontsize=8, va="center")
    axis.set_xticks(place, list(BARS.values()), fontsize=8)
    axis.set_ylabel("accuracy")
    axis.set_ylim(0, 1)
    axis.set_title("one scene, tested elsewhere in it" + " " * 40 + "another scene, 20 labels a class", fontsize=9)
    axis.spines[["top", "right"]].set_visible(False)
