"""The log-log plot of all-reduce times."""

from __future__ import annotations

from pathlib import Path

from benchmarks.measure import Table


def draw(tables: list[Table], path: Path) -> bool:
    """Time over size, one panel per number of ranks, one line per contender; false if there is nothing to draw."""
    panels: dict[str, dict[str, dict[int, float]]] = {}
    for table in tables:
        for row in table.rows if table.panel else ():
            for name, sample in row.samples.items():
                panels.setdefault(table.panel, {}).setdefault(name, {})[row.nbytes] = sample.median
    if not panels:
        return False
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(panels), figsize=(5.5 * len(panels), 4.2), squeeze=False, layout="constrained")
    for axis, (title, curves) in zip(axes[0], panels.items(), strict=True):
        for name, curve in sorted(curves.items(), key=lambda item: not item[0].startswith("shm")):
            ours = name.startswith("shm")
            axis.loglog(
                list(curve), list(curve.values()), "o-" if ours else "s--", label=name, lw=2 if ours else 1, ms=4
            )
        axis.set(title=f"all-reduce of float32, {title}", xlabel="bytes")
        axis.grid(alpha=0.3)
    axes[0][0].set_ylabel("microseconds (median)")
    axes[0][0].legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    return True
