"""Report on simulated runs: a table of 80 columns, and text around it."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any, NamedTuple, final

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table

from farandole.largebatch.advice import duration, significant
from farandole.launch.leases.limits import LeaseLimits
from farandole.launch.leases.policy_context import count
from farandole.launch.leases.simulation.simulate import SimulatedRun
from farandole.launch.leases.simulation.trace import Trace
from farandole.launch.leases.simulation.training import TrainingModel

MODES = {
    "holes": "leases get nodes that the jobs of the trace leave free",
    "backfill": "leases and the jobs of the trace wait in one line (EASY backfill)",
}


@final
class PlanReport(NamedTuple):
    """Results of a simulation, printable by ``rich``: the run on leases, and the runs of fixed size."""

    trace: Trace
    model: TrainingModel
    limits: LeaseLimits
    mode: str
    run: SimulatedRun
    static: Sequence[SimulatedRun]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self._premises()
        table = Table()
        for name in ("workers", "time", "node-hours", "jobs", "median wait", "longest", "changes"):
            table.add_column(name, justify="left" if name == "workers" else "right", no_wrap=True)
        for run in (self.run, *self.static):
            table.add_row(*_cells(run), style="bold" if run is self.run else "")
        yield table
        if any(run.seconds is None for run in (self.run, *self.static)):
            yield "Where a share stands for a time, so much of the training was done when the trace was over."
        yield (
            f"Static sizes are chains of jobs of {duration(self.limits.longest_s)}, each submitted when the one before "
            f"has ended."
        )

    def _premises(self) -> str:
        trace, model, limits = self.trace, self.model, self.limits
        begin_s, end_s = trace.begin_s, trace.end_s
        used_s = sum(
            job.nodes * max(0.0, min(job.end_s, end_s) - max(job.start_s, begin_s))
            for job in trace.jobs
            if job.start_s < end_s
        )
        use = used_s / (trace.nodes * max(1.0, end_s - begin_s))
        low, high = model.noise_scale[0][1], model.noise_scale[-1][1]
        batch = (
            f"{model.base_batch:g} samples" if limits.batch == "fixed" else f"{model.batch:g} samples for each worker"
        )
        size = f"{count(len(trace.jobs), 'job')} in {duration(end_s - begin_s)} on {count(trace.nodes, 'node')}"
        return (
            f"Trace: {size}, {use:.0%} used; "
            f"{MODES[self.mode]}.\n"
            f"Training: {significant(model.samples)} samples, steps of {batch}, noise scale from {significant(low)} "
            f"to {significant(high)}."
        )

    def as_table(self) -> list[dict[str, Any]]:
        """The numbers of the table, for programs."""
        return [
            {
                "name": run.name,
                "seconds": run.seconds,
                "share": run.share,
                "node_hours": run.node_hours,
                "jobs": len(run.waits_s),
                "waits_s": list(run.waits_s),
                "changes": run.changes,
            }
            for run in (self.run, *self.static)
        ]


def _cells(run: SimulatedRun) -> tuple[str, ...]:
    waits = (statistics.median(run.waits_s), max(run.waits_s)) if run.waits_s else None
    return (
        run.name,
        duration(run.seconds) if run.seconds is not None else f"{run.share:.0%} done",
        f"{run.node_hours:.1f}",
        str(len(run.waits_s)),
        *((duration(waits[0]), duration(waits[1])) if waits else ("–", "–")),
        str(run.changes or "–"),
    )
