"""The figure of CosmoGAN: real maps above made ones, and their spectra and pixels beside each other."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import numpy as np
from matplotlib.figure import Figure

from examples.common.reproduce import Results
from examples.cosmogan.experiment import EDGES

COLOURS = {"real": "#1f4e79", "made": "#c0504d"}


def draw(results: Results, path: Path) -> None:
    """Six maps of each kind, spectra with the spread over real maps, and histograms; of the first seed."""
    drawn = next(iter(results.values())).drawn
    figure = Figure(figsize=(12, 4.6), layout="constrained")
    pictures, curves = cast("Any", figure.subfigures(1, 2, width_ratios=(1.25, 1)))
    grid = pictures.subplots(2, 6)
    for row, kind in zip(grid, COLOURS, strict=True):
        for axis, values in zip(row, drawn[kind]["maps"], strict=True):
            axis.imshow(values, vmin=-0.8, vmax=0.8, cmap="inferno")
            axis.set(xticks=[], yticks=[])
        row[0].set_ylabel(kind, fontsize=12)
    spectra, pixels = curves.subplots(1, 2)
    k = np.arange(1, len(drawn["real"]["spectrum"]) + 1)
    for kind, colour in COLOURS.items():
        spectrum, sigma = (np.array(drawn[kind][name]) for name in ("spectrum", "sigma"))
        spectra.plot(k, np.exp(spectrum), color=colour, label=kind)
        if kind == "real":
            spectra.fill_between(k, np.exp(spectrum - sigma), np.exp(spectrum + sigma), color=colour, alpha=0.2)
        pixels.stairs(drawn[kind]["histogram"], EDGES, color=colour, label=kind)
    spectra.set(xscale="log", yscale="log", xlabel="waves across the map", title="power (band: σ of a map)")
    pixels.set(xlabel="pixel, (d - 1) / (d + 1)", title="share of pixels")
    spectra.legend(frameon=False)
    figure.savefig(path, dpi=110)
