"""Draw a state with its wind, the true and the predicted masks, and mean IoU for each weighting and optimizer."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap

from examples.climate.experiment import WORDS
from examples.climate.fields import LAT, LON, Array
from examples.climate.files import made
from examples.climate.labels import CLASSES, label
from examples.common.reproduce import Results

COLOURS = ("#ffffff00", "#d55e00", "#0072b2")
EXTENT = (0.0, 360.0, -90.0, 90.0)
OTHERS = {"DeepLabv3+": "deeplab", "its lag 1": "deeplab lag", "its LARC": "deeplab larc"}


def draw(results: Results, path: Path) -> None:
    """Draw the first seed's state, and bars of the mean over all seeds with their range."""
    mpl.use("Agg")
    import matplotlib.pyplot as plt

    seed, first = next(iter(results.items()))
    shown = first.drawn["shown"]
    state = made(seed, 1, shown["number"] + 1)[-1]
    figure, axes = plt.subplots(2, 2, figsize=(11, 6.6), layout="constrained")
    _weather(axes[0, 0], state)
    _mask(axes[0, 1], state, label(state), "labels by the heuristics")
    _mask(axes[1, 0], state, np.array([[*map(int, row)] for row in shown["said"]]), "what Tiramisu says")
    for name, colour in zip(CLASSES[1:], COLOURS[1:], strict=True):
        axes[0, 1].plot([], [], "s", color=colour, label=name)
    axes[0, 1].legend(loc="lower left", fontsize=8)
    _bars(axes[1, 1], results)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _weather(axes: Axes, state: Array) -> None:
    image = axes.imshow(state[..., 0], origin="lower", extent=EXTENT, cmap="YlGnBu", aspect="auto")
    axes.figure.colorbar(image, ax=axes, label="kg/m²", pad=0.01)
    some = np.s_[1::4, 1::4]
    lon, lat = np.meshgrid(LON, LAT)
    axes.quiver(lon[some], lat[some], state[some][..., 2], state[some][..., 3], scale=600, width=0.0016)
    axes.set_title("water vapour, and wind at 850 hPa", fontsize=10)


def _mask(axes: Axes, state: Array, labels: Array, title: str) -> None:
    axes.imshow(state[..., 0], origin="lower", extent=EXTENT, cmap="Greys", aspect="auto", vmax=120)
    axes.imshow(labels, origin="lower", extent=EXTENT, cmap=ListedColormap(COLOURS), vmin=0, vmax=2, aspect="auto")
    axes.set_title(title, fontsize=10)


def _bars(axes: Axes, results: Results) -> None:
    def bar(at: float, name: str, colour: str, said: str = "") -> None:
        values = [each.figures[name] for each in results.values()]
        mean = float(np.mean(values))
        around = [[mean - min(values)], [max(values) - mean]]
        axes.bar(at, mean, 0.4, yerr=around, color=colour, capsize=3, label=said or None)

    for at, each in enumerate(WORDS):
        bar(at - 0.2, f"tiramisu {each}", "#009e73", "" if at else "Tiramisu")
        bar(at + 0.2, f"linear {each}", "#bbbbbb", "" if at else "linear model of a pixel")
    for at, name in enumerate(OTHERS.values(), len(WORDS)):
        bar(at, name, "#cc79a7")
    axes.axhline(next(iter(results.values())).figures["background"], color="black", linestyle=":", label="background")
    axes.set_xticks(range(len(WORDS) + len(OTHERS)), [*WORDS.values(), *OTHERS], fontsize=8)
    axes.set_ylim(0, 1.1)
    axes.set_title("mean IoU on other states", fontsize=10)
    axes.legend(fontsize=8, loc="upper center", ncols=3)
