"""Picture of a run, as PNG: a saved notebook keeps it in place of its live view.

    picture(hub)                    # bytes

It has the head of the page and up to four charts: a curve of every rank or, above eight ranks, a band with its mean.
Not SVG: JupyterLab shows SVG only in trusted notebooks, and a notebook that another user has run is not trusted.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure

from farandole.monitor.hub import BAND, Hub

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000", "#999933")
DASHES = ("-", "--", ":", "-.")
MOST_CHARTS, MOST_TITLE = 4, 60
OWN = {
    "samples_per_s": "samples/s of a rank",
    "step_s": "step time (s)",
    "wait_s": "waiting for other ranks (s)",
    "input_s": "waiting for input (s)",
    "noise_scale": "gradient noise scale (samples)",
}
"""Titles of metrics that are logged automatically; shown after metrics that a script logs."""


def picture(hub: Hub) -> bytes:
    """PNG of the state of a run."""
    curves: dict[str, list[dict[str, Any]]] = {}
    for message in hub.snapshot(()):
        if message["t"] == "curve" and not message["name"].endswith(("_low", "_high")):
            curves.setdefault(message["name"], []).append(message)
    names = sorted(curves, key=lambda name: list(OWN).index(name) if name in OWN else -1)[:MOST_CHARTS]
    rows = max(1, (len(names) + 1) // 2)
    figure = Figure(figsize=(8, 0.7 + 2.3 * rows), layout="constrained", facecolor="white")
    figure.suptitle(f"{_plain(' '.join(hub.info.command)[:MOST_TITLE])}\n{words(hub)}", x=0.02, ha="left", fontsize=11)
    for axis, name in zip(figure.subplots(rows, 2, squeeze=False).flat, [*names, "", "", ""], strict=False):
        if name:
            _draw(axis, name, curves[name])
        else:
            axis.set_axis_off()
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=110, metadata={"Description": words(hub)})
    return file.getvalue()


def words(hub: Hub) -> str:
    """State of a run in one line."""
    state = hub.state
    if state == "ended":
        state = "ended well" if hub.info.status == 0 else f"ended with status {hub.info.status}"
        state = "stopped" if hub.info.stopped else state
    lasted_s = max(0, round((hub.info.ended_s or hub.info.began_s) - hub.info.began_s))
    lasted = f", {lasted_s // 60}:{lasted_s % 60:02} minutes" if hub.info.ended_s else ""
    return f"{state}: step {hub.step}, {hub.size} rank{'s' * (hub.size != 1)}{lasted}"


def _draw(axis: Any, name: str, curves: Sequence[dict[str, Any]]) -> None:
    for curve in sorted(curves, key=lambda each: int(each["rank"])):
        rank, means = curve["rank"], [float("nan") if v is None else v for v in curve["m"]]
        style = {"color": COLOURS[max(0, rank) % len(COLOURS)], "linestyle": DASHES[max(0, rank) % len(DASHES)]}
        axis.plot(curve["s"], means, linewidth=1.3, label="all ranks" if rank == BAND else f"rank {rank}", **style)
        if rank == BAND and "l" in curve:
            ends = [[float("nan") if v is None else v for v in curve[end]] for end in "lh"]
            axis.fill_between(curve["s"], *ends, color=COLOURS[0], alpha=0.2, linewidth=0)
    axis.set_title(OWN.get(name) or _plain(name), fontsize=10, loc="left")
    axis.set_xlabel("step", fontsize=8)
    axis.tick_params(labelsize=8)
    axis.grid(alpha=0.3)
    axis.legend(fontsize=7)


def _plain(text: str) -> str:
    """Text without control characters that matplotlib does not take for mathematics."""
    return "".join(c for c in text if c.isprintable()).replace("$", r"\$")
