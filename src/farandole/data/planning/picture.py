"""Picture of a plan: what each host reads, copies and keeps, and the bytes and minutes of the job.

picture(staging, foretold, "plan.png")
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from farandole.data.planning.plan import StagingPlan
from farandole.data.planning.simulate import StagingForecast, duration, readable
from farandole.errors import UsageError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_READ: Final = "#2a6fbb"
_COPY: Final = "#f2a541"
_HELD: Final = "#9aa5b1"
_STREAM: Final = "#c8403a"
_NAMED: Final = 32
"""Number of hosts up to which their names are legible."""


def picture(plan: StagingPlan, foretold: StagingForecast, path: str | Path | None = None) -> Figure:
    """Draw the plan, and write it to ``path`` if there is one. Raises ``UsageError`` without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise UsageError("a picture needs matplotlib, which is not here: pip install 'farandole[plot]'") from error
    figure = Figure(figsize=(11, 6.2), layout="constrained")
    figure.suptitle(_sentence(plan, foretold), fontsize=13, fontweight="bold", x=0.01, ha="left")
    grid: Any = figure.add_gridspec(2, 2, width_ratios=(1.35, 1), height_ratios=(3, 5))
    _draw_hosts(figure.add_subplot(grid[:, 0]), plan, foretold)
    _draw_times(figure.add_subplot(grid[0, 1]), foretold)
    _draw_bytes(figure.add_subplot(grid[1, 1]), plan, foretold)
    figure.legend(loc="outside lower left", ncols=2, fontsize=10, frameon=False)
    if path is not None:
        figure.savefig(path, dpi=120)
    return figure


def _sentence(plan: StagingPlan, foretold: StagingForecast) -> str:
    hosts = len(plan.names)
    copies = "one copy" if plan.replicas == 1 else f"{plan.replicas} copies"
    kept = f"{copies} of each piece" if not plan.streamed_bytes else "what fits is kept once"
    many = f"{hosts} host{'s' * (hosts != 1)}"
    return (
        f"{readable(plan.data_bytes)} on {many}: {kept}, staged in {duration(foretold.staged_s)}, "
        f"first batch after {duration(foretold.first_batch_s)}"
    )


def _draw_hosts(axis: Any, plan: StagingPlan, foretold: StagingForecast) -> None:
    """A bar for each host: the bytes that it holds, by origin, and the bytes that it reads in every epoch."""
    hosts = np.arange(len(plan.names))
    keeps = plan.loads()
    streams = np.bincount(plan.reads[plan.streamed], plan.sizes[plan.streamed], len(hosts))
    reads = foretold.reads - streams
    unit, size = _unit(float(max(1, (keeps + streams).max())))
    begin = np.zeros(len(hosts))
    parts = (
        (keeps - reads - foretold.receives, _HELD, "there already", None),
        (reads, _READ, "read from shared storage, once", None),
        (foretold.receives, _COPY, "copied from other hosts", None),
        (streams, _STREAM, "not kept: read again in each epoch", "///"),
    )
    for nbytes, color, label, hatch in parts:
        if nbytes.any():
            look = {"color": color} if hatch is None else {"color": "none", "edgecolor": color, "hatch": hatch}
            height = 0.78 if len(hosts) <= _NAMED else 1.0
            axis.barh(
                hosts, nbytes / size, height, begin / size, label=f"{label}: {readable(int(nbytes.sum()))}", **look
            )
            begin += nbytes
    visible = plan.capacities <= 1.35 * begin.max()
    if visible.any():
        marks = plan.capacities[visible] / size
        axis.vlines(marks, hosts[visible] - 0.45, hosts[visible] + 0.45, color="black", lw=2, label="size of its cache")
    title = "What each host reads, copies and keeps"
    if not visible.all():
        title += f" (caches of {readable(int(plan.capacities[~visible].min()))} or more)"
    axis.set_title(title, loc="left")
    axis.set(xlabel=f"{unit} on each host", ylim=(len(hosts) - 0.4, -0.6), xlim=(0, None))
    if len(hosts) <= _NAMED:
        axis.set_yticks(hosts, [name[:18] for name in plan.names], fontsize=9 if len(hosts) <= 20 else 7)
    else:
        axis.set_yticks([])
        axis.set_ylabel(f"{len(hosts)} hosts, from {plan.names[0][:18]} to {plan.names[-1][:18]}")
    axis.spines[["top", "right"]].set_visible(False)


def _draw_times(axis: Any, foretold: StagingForecast) -> None:
    """Bars of time until the first batch and until all is staged, and of a plain copy on each host for comparison."""
    rows = [
        ("first batch", foretold.first_batch_s, _READ),
        ("all staged", foretold.staged_s, _READ),
        ("cp on each host", foretold.alone_s, _HELD),
    ]
    longest = max(seconds for _, seconds, _ in rows) or 1.0
    name, size = ("hours", 3600.0) if longest >= 7200 else ("minutes", 60.0) if longest >= 120 else ("seconds", 1.0)
    _bars(axis, [(label, seconds / size, color, duration(seconds)) for label, seconds, color in rows])
    axis.set_title("How long it takes", loc="left")
    axis.set_xlabel(name)


def _draw_bytes(axis: Any, plan: StagingPlan, foretold: StagingForecast) -> None:
    """Bars of bytes: from the shared storage and between hosts, while staging and in each epoch after it."""
    rows = [
        ("storage, first epoch", plan.read_bytes, _READ),
        ("storage, each later epoch", plan.streamed_bytes, _STREAM),
        (f"storage, all {foretold.epochs} epochs", foretold.shared_bytes, _READ),
        ("copies, while staging", plan.sent_bytes, _COPY),
        ("rows to peers, each epoch", foretold.peer_bytes, _COPY),
    ]
    unit, size = _unit(float(max(1, *(nbytes for _, nbytes, _ in rows))))
    if foretold.epochs == 1:
        del rows[1:3]
    _bars(axis, [(label, nbytes / size, color, readable(nbytes)) for label, nbytes, color in rows])
    axis.set_title("How many bytes the whole job moves", loc="left")
    axis.set_xlabel(unit)


def _bars(axis: Any, rows: list[tuple[str, float, str, str]]) -> None:
    longest = max(value for _, value, _, _ in rows) or 1.0
    for place, (_, value, color, text) in enumerate(rows):
        axis.barh(place, value, 0.6, color=color)
        axis.text(value + 0.015 * longest, place, text, va="center", fontsize=10, fontweight="bold")
    axis.set_yticks(range(len(rows)), [label for label, *_ in rows])
    axis.set(xlim=(0, 1.3 * longest), ylim=(len(rows) - 0.5, -0.5))
    axis.spines[["top", "right"]].set_visible(False)


def _unit(most: float) -> tuple[str, float]:
    """Unit of an axis whose largest value is ``most`` bytes, and its size."""
    for name, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if most >= 2 * size:
            return name, size
    return "kB", 1e3
