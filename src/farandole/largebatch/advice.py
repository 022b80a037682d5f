"""Advice on the number of workers, from what was measured: critical batch, time and samples on 1 to N workers.

    found = advise(estimate, timings, samples=90 * 1_281_167, base_batch=512, max_workers=32)
    print(found)                                    # a table; or, where the data do not support it, what is missing
    found.plot("advice.png")

Training to the same loss takes E = E_min (1 + B / B_crit) samples in steps of B (McCandlish et al. 2018, equation
2.11), with B_crit taken to be phi = B_simple: (phi + B) / (phi + m) times the samples that steps of m samples need.
Divided by the throughput that is time (the goodput of Pollux, OSDI 2021, equation 5). The noise scale is evidence, not
the truth: Shallue et al. 2018 (arXiv 1811.03600), Zhang et al. 2024 (arXiv 2410.21676) and Merrill et al. 2025 (arXiv
2505.23971) show its errors. So the decision uses the lower bound of the interval, and the batch grows by steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, final

from farandole.errors import UsageError
from farandole.largebatch.goodput import FIRST_EXCHANGE, Prospect, StepModel, Timing, assuming, fit
from farandole.largebatch.noise import Estimate, Estimated

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import Console, ConsoleOptions, RenderResult

GROWTH = 4
"""Factor by which a batch may grow on one piece of advice: the noise scale is that of the current state."""
WORTH = 0.05
"""More workers must save at least this share of the time."""
WIDEST = 10.0
"""Largest useful ratio of the bounds of the noise scale; without an upper bound, the lower bound counts."""


@final
@dataclass(frozen=True, slots=True)
class Refusal:
    """Reason why the data do not support advice; ``missing``: data that would. False, while an ``Advice`` is true."""

    missing: tuple[str, ...]

    def __bool__(self) -> bool:
        return False

    def __str__(self) -> str:
        return "no advice: " + "; ".join(self.missing)


@final
@dataclass(frozen=True, slots=True)
class Advice:
    """Advice on the number of workers. Printed by ``rich`` or ``str`` it is a table of 80 columns and the reasons."""

    estimate: Estimate
    prospects: tuple[Prospect, ...]
    workers: int
    """The recommended number."""
    current: int
    base_batch: float
    reasons: tuple[str, ...]

    @property
    def critical_batch(self) -> float:
        """B_crit now, taken to be B_simple."""
        return self.estimate.b_simple

    @property
    def recommended(self) -> Prospect:
        """The expectation for the recommended number of workers."""
        return self.prospects[self.workers - 1]

    def __str__(self) -> str:
        from rich.console import Console

        console = Console(width=80, color_system=None)
        with console.capture() as capture:
            console.print(self)
        return capture.get()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.table import Table  # every worker imports this module, and few print

        estimate = self.estimate
        yield (
            f"critical batch now: {significant(self.critical_batch)} samples "
            f"(95 %: {significant(estimate.low)} to {significant(estimate.high)})"
        )
        table = Table()
        for name in ("", "workers", "batch", "samples", "time", "time, from", "to", "speed-up"):
            table.add_column(name, justify="right", no_wrap=True)
        alone = self.prospects[0].seconds
        for p in _shown(self):
            mark = "►" if p.workers == self.workers else "now" if p.workers == self.current else ""
            times = (duration(p.seconds), duration(p.fastest_s), duration(p.slowest_s))
            cells = (mark, str(p.workers), significant(p.batch), significant(p.samples), *times)
            table.add_row(*cells, f"{alone / p.seconds:.2f}", style="bold" if p.workers == self.workers else "")
        yield table
        yield f"Recommended: {self.workers} worker{'s' * (self.workers > 1)}. " + " ".join(self.reasons)

    def plot(self, path: str | Path | None = None) -> Figure:
        """Draw time and samples over the number of workers, and write the picture to ``path`` if it is given."""
        from farandole.largebatch.picture import draw_advice

        return draw_advice(self.prospects, self.workers, self.estimate.low, path)


Advised: TypeAlias = Advice | Refusal


def advise(
    estimate: Estimated,
    timings: Sequence[Timing],
    *,
    samples: float,
    base_batch: float,
    max_workers: int | None = None,
    workers_per_host: int = 0,
) -> Advised:
    """Advice about 1 to ``max_workers`` workers from ``estimate`` and ``timings``, the last of which is now.

    Every worker keeps its batch. ``samples``: number that the training needs with steps of ``base_batch`` samples, for
    example epochs times samples in an epoch. ``max_workers``: by default as many as the timings support, which is twice
    the current number if all steps were timed on one number of workers; the reasons then state the assumption.
    """
    if not samples > 0 or not base_batch > 0 or (max_workers is not None and max_workers < 1):
        raise UsageError(f"samples={samples}, base_batch={base_batch}, max_workers={max_workers}: all must be above 0")
    model = assuming(fit(timings, workers_per_host)) if timings else None
    missing = [*_missing_noise(estimate), *_missing_timings(model, max_workers)]
    if missing or model is None or not isinstance(estimate, Estimate):
        return Refusal(tuple(missing))
    most = max_workers or model.reach
    prospects = tuple(prospect(model, estimate, n, samples, base_batch) for n in range(1, most + 1))
    workers, reasons = decide(prospects, estimate.low, timings[-1].workers)
    reasons += _assumptions(model, workers)
    return Advice(estimate, prospects, workers, timings[-1].workers, base_batch, reasons)


def decide(prospects: Sequence[Prospect], critical: float, current: int) -> tuple[int, tuple[str, ...]]:
    """The number of workers, and why. ``critical``: a batch that is surely not too large. ``current``: workers now."""
    allowed = [p for p in prospects if p.batch <= critical and p.workers <= current * GROWTH]
    if not allowed:
        first = prospects[0]
        return 1, (f"Even its batch of {significant(first.batch)} is above {significant(critical)}, the lower bound.",)
    best = min(allowed, key=lambda p: p.slowest_s)
    chosen = next(p for p in allowed if p.slowest_s <= best.slowest_s * (1 + WORTH))
    why = [f"It takes {duration(chosen.seconds)}, and {duration(chosen.slowest_s)} if the noise is at its lower bound."]
    last = allowed[-1]
    if chosen.workers < last.workers:
        why.append(f"Up to {last.workers}, more would save less than {WORTH:.0%} of that.")
    if last.workers < prospects[-1].workers:
        batch = prospects[last.workers].batch
        if batch > critical:
            why.append(f"Steps of {significant(batch)} are above the lower bound of the critical batch.")
        else:
            why.append(f"More than {GROWTH} times the workers of now is not decided at once: ask again there.")
    return chosen.workers, tuple(why)


def _assumptions(model: StepModel, workers: int) -> tuple[str, ...]:
    """Sentence on the assumption behind more workers than were measured; empty without such an assumption."""
    known = model.between or model.inside
    if known is None or known.beyond is None or workers <= max(known.measured):
        return ()
    most = max(known.measured)
    slower = "longer in proportion" if most > 1 else f"{FIRST_EXCHANGE:g} of a pass"
    timed = f"Steps were timed on {most} worker{'s' * (most > 1)} only"
    return (f"{timed}: an exchange among more is assumed to take {slower}, so ask again there.",)


def prospect(model: StepModel, estimate: Estimate, workers: int, samples: float, base_batch: float) -> Prospect:
    """Expectation for a number of workers, if training with steps of ``base_batch`` samples needs ``samples``."""
    batch, per_s = model.global_batch(workers), model.samples_per_s(workers)

    def needed(phi: float) -> float:
        return samples if phi == float("inf") else samples * (phi + batch) / (phi + base_batch)

    phi = estimate.b_simple if estimate.norm2 > 0 else float("inf")
    times = [needed(p) / per_s for p in (phi, estimate.low, estimate.high)]
    return Prospect(workers, batch, needed(phi), times[0], max(times), min(times))


def significant(value: float) -> str:
    """A number with three significant digits, for tables."""
    for size, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if size <= abs(value) < float("inf"):
            return f"{value / (1e3 if unit == 'k' else size):.3g}{unit}"
    return f"{value:.0f}" if 100 <= abs(value) < 1e4 else f"{value:.3g}"


def duration(seconds: float) -> str:
    """Text for a number of seconds, in a readable unit."""
    for length, unit in ((86400.0, "d"), (3600.0, "h"), (60.0, "min")):
        if seconds >= 2 * length:
            return f"{seconds / length:.3g} {unit}"
    return f"{seconds:.3g} s"


def _missing_noise(estimate: Estimated) -> list[str]:
    if not isinstance(estimate, Estimate):
        return [estimate.reason]
    if estimate.low <= 0:
        return [f"the lower bound of the noise scale is 0 ({estimate}): measure more steps, or give a longer horizon"]
    if WIDEST < estimate.high / estimate.low < float("inf"):
        return [f"the noise scale is known too roughly ({estimate}): measure more steps, or give a longer horizon"]
    return []


def _missing_timings(model: StepModel | None, max_workers: int | None) -> list[str]:
    if model is None:
        return ["no step was timed: train some"]
    if max_workers is None or max_workers <= model.reach:
        return []
    syncs = [sync for sync in (model.inside, model.between) if sync]
    measured = sorted({n for sync in syncs for n in sync.measured}) or [1]
    timed = ", ".join(map(str, measured))
    lacking = f"steps were timed on {timed} workers, which says nothing beyond {model.reach}"
    return [f"{lacking}: for {max_workers}, time some on other numbers of them, or ask for {model.reach} at most"]


def _shown(advice: Advice) -> list[Prospect]:
    """Prospects for the table, few enough to read: powers of two, three times these, and the important numbers."""
    wanted = {2**i for i in range(20)} | {3 * 2**i for i in range(20)}
    wanted |= {advice.workers, advice.current, len(advice.prospects)}
    every = advice.prospects
    return list(every) if len(every) <= 12 else [p for p in every if p.workers in wanted]
