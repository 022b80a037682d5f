"""The live view as a widget of a notebook: the module of the page, which gets its data from the kernel.

    job = farandole.launch(train, np=2)
    job.widget

The widget has no trait with data or keys. When the job has ended, a picture, which the notebook keeps, replaces every
shown widget: JupyterLab shows no picture beside a widget whose kernel has exited. ``job.widget`` shows it again.

Picture of a run, as PNG: a saved notebook keeps it in place of its live view.

    picture(hub)                    # bytes

It has the head of the page and up to four charts: a curve of every rank or, above eight ranks, a band with its mean.
Not SVG: JupyterLab shows SVG only in trusted notebooks, and a notebook that another user has run is not trusted.
"""

from __future__ import annotations

import base64
import io
import secrets
from collections.abc import Callable, Sequence
from importlib import resources
from typing import Any, final

import anywidget
from IPython.display import publish_display_data
from matplotlib.figure import Figure

from farandole.errors import UnsupportedError
from farandole.monitor.bridge import Bridge, ViewedJob, last_state
from farandole.monitor.hub import BAND, Hub
from farandole.monitor.kernel_wait import serve_while_waiting

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


def _static(name: str) -> str:
    path = resources.files("farandole.monitor").joinpath("static", name)
    if not path.is_file():
        raise UnsupportedError(
            "this installation of Farandole has no live view: its wheel was built where neither Node nor the npm "
            "registry could be reached"
        )
    return path.read_text(encoding="utf-8")


@final
class LiveWidget(anywidget.AnyWidget):
    """Live view of one job; it can be shown any number of times."""

    _esm = _static("live.js")
    _css = _static("live.css")

    def __init__(self, job: ViewedJob) -> None:
        super().__init__()
        self._bridge = Bridge(job, self.send)
        self.on_msg(self._heard)
        if self.comm is not None:  # in ipykernel 7.4, messages of the view would wait for the last cell
            self.comm._reply_subshell_for = lambda _data, subshell: subshell
        self._job, self._display = job, f"farandole-{secrets.token_hex(8)}"
        job.when_over(self._keep)

    def wait(self, until: Callable[[], bool]) -> None:
        """Wait in a cell, and carry out orders of views meanwhile, if the kernel allows it."""
        if self.comm is not None:
            serve_while_waiting(self.comm.comm_id, self._bridge.handle_view_message, until)

    def close(self) -> None:
        self._bridge.close()
        super().close()

    def _ipython_display_(self) -> None:
        data, metadata = self._repr_mimebundle_() or ({}, {})
        transient = {} if self._job.done else {"display_id": self._display}
        publish_display_data({**data, **(self._picture() if self._job.done else {})}, metadata, transient=transient)

    def _keep(self) -> None:
        """Replace the views by the final picture."""
        publish_display_data(self._picture(), transient={"display_id": self._display}, update=True)

    def _picture(self) -> dict[str, str]:
        hub = last_state(self._job, is_over=True)
        return {"image/png": base64.b64encode(picture(hub)).decode(), "text/plain": words(hub)}

    def _heard(self, _widget: object, content: Any, _buffers: object) -> None:
        self._bridge.handle_view_message(content)
