"""The picture: mean images of both kinds, ROC curves, accuracy by epoch."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from examples.common.reproduce import Results
from examples.jets.collisions import ETA
from examples.jets.experiment import EPOCHS

COLOURS = {"cut": "tab:grey", "linear": "tab:orange", "network": "tab:blue"}
NAMES = {"cut": "cut on H$_T$", "linear": "linear, tower counts", "network": "network"}


def draw(results: Results, path: Path) -> None:
    """Draw the seeds of ``results`` into a PNG."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 8), layout="constrained")
    axes = figure.subplots(2, 2)
    first = next(iter(results.values())).drawn
    for ax, image, name in zip(axes[0], first["mean"], ("gluino pairs", "QCD jets"), strict=True):
        extent = (-ETA, ETA, -np.pi, np.pi)
        shown = ax.imshow(np.array(image).T, origin="lower", extent=extent, aspect="auto", norm="log")
        ax.set(title=f"{name} of {first['generator']}, mean", xlabel="η", ylabel="φ from the highest tower")
        figure.colorbar(shown, ax=ax, label="E$_T$ in 2 x 2 towers, GeV")
    roc, epochs = axes[1]
    for number, each in enumerate(results.values()):
        for name, curve in each.drawn["roc"].items():
            label = f"{NAMES[name]} (area {curve['area']:.3f})" if number == 0 else None
            roc.plot(curve["signal"], curve["background"], color=COLOURS[name], label=label)
        validated = [each.figures[f"epoch{epoch}"] for epoch in range(1, EPOCHS + 1)]
        label = None if number else "network"
        epochs.plot(range(1, EPOCHS + 1), validated, "o-", color=COLOURS["network"], label=label)
    for name in ("cut", "linear"):
        mean = np.mean([each.figures[name] for each in results.values()])
        epochs.axhline(mean, color=COLOURS[name], linestyle="--", label=f"{NAMES[name]}, test")
    roc.set(xlabel="gluino pairs kept", ylabel="QCD jets kept", yscale="log", ylim=(1e-3, 1), title="test events")
    epochs.set(xlabel="epoch", ylabel="accuracy", xticks=range(1, EPOCHS + 1), title="validation, each seed")
    roc.legend()
    epochs.legend()
    figure.savefig(path, dpi=80)
