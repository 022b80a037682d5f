"""Measurements from tables and from the records of runs.

    read("scaling.csv")           # ranks,seconds[,hosts][,dummy][,input][,wait][,batch], or JSON: a list of objects
    read("runs/a")                # folder of farandole run --record: every generation in it is a measurement
    read("cosmoflow-summit")      # one of PUBLISHED

Seconds are those of a step, or of any fixed number of steps. ``dummy`` is the time with data that need no reading,
``input`` and ``wait`` are parts of ``seconds``: waiting for a batch, and for other ranks; ``batch`` is per rank.
"""

from __future__ import annotations

import csv
import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, final

import numpy as np

from farandole.control.watch_messages import MetricPoint
from farandole.errors import UsageError
from farandole.monitor.folder import INFO, MemberRecord, PointRecord, Record, read_records
from farandole.predict.costs import Fabric
from farandole.predict.model import Observation

TABLES = Path(__file__).with_name("tables")
PUBLISHED = ("climate-cori", "cosmoflow-cori", "cosmoflow-summit", "cosmoflow-cori-gpu")
COLUMNS = ("ranks", "hosts", "seconds", "dummy", "input", "wait", "jitter", "batch")
RUN_NOISE = 0.02
"""Share of a step by which two identical runs differ, which the record of one run cannot show."""
EXPOSED = 0.02
"""Least share of a step spent on waiting for input that determines how long loading takes."""
FEWEST_POINTS = 3
"""Metrics of each rank that a generation needs, beside the first, which is left out: first steps are slower."""


@final
class Measurements(NamedTuple):
    """Measurements, and the gradient noise scale, if the run measured it."""

    observations: tuple[Observation, ...]
    noise_scale: float = math.nan


def read(path: str, per_host: int = 0) -> Measurements:
    """Measurements of a table, a recorded run, or a published table; ``per_host``: for a table without hosts."""
    if (Path(path) / INFO).exists():
        return recorded(read_records(path), path)
    file = TABLES / f"{path}.csv" if path in PUBLISHED else Path(path)
    if not file.is_file():
        known = ", ".join(PUBLISHED)
        raise UsageError(f"{path} is no table, no recorded run and no published table; those are {known}")
    return Measurements(tuple(o for row in rows(file) for o in _observed(row, per_host, file)))


def rows(file: Path) -> list[dict[str, float]]:
    """Rows of a CSV file, in which lines with # are comments, or of a JSON file."""
    text = file.read_text()
    try:
        if text.lstrip().startswith("["):
            found = json.loads(text)
        else:
            found = list(csv.DictReader(line for line in text.splitlines() if line.strip() and line[0] != "#"))
        return [{str(k).strip(): float(v) for k, v in row.items() if v not in (None, "")} for row in found]
    except (ValueError, TypeError, AttributeError) as error:
        raise UsageError(
            f"{file} is no table: {error}; give CSV like ranks,seconds and then 1,0.31 in a line"
        ) from error


def _observed(row: Mapping[str, float], per_host: int, file: Path) -> Iterable[Observation]:
    if "ranks" not in row or "seconds" not in row or (unknown := [name for name in row if name not in COLUMNS]):
        wrong = f"has a column {unknown[0]!r}" if "ranks" in row and "seconds" in row else "lacks ranks or seconds"
        raise UsageError(f"{file} {wrong}; columns are {', '.join(COLUMNS)}")
    ranks = row["ranks"]
    hosts = row.get("hosts") or max(1.0, math.ceil(ranks / per_host) if per_host else ranks)
    for name in ("seconds", "dummy", "input", "wait", "jitter"):
        if name in row:
            kind = "step" if name == "seconds" else name
            yield Observation(ranks, hosts, row[name], kind, row.get("batch", 0.0))


def recorded(records: Iterable[Record], path: str = "the run") -> Measurements:
    """Measurements of a recorded run: one set for each number of ranks that it had.

    A rank's own step is own = step - wait; the loss of the slowest by input is computed as in
    ``farandole.data.report``; compute is the mean over ranks, and the rest of the step is waiting.
    """
    hosts: dict[int, list[str]] = {}
    points: dict[int, dict[int, list[MetricPoint]]] = {}
    noise: list[float] = []
    for record in records:
        if isinstance(record, MemberRecord):
            hosts[record.generation] = record.hosts
        elif isinstance(record, PointRecord):
            noise += [p.values["noise_scale"] for p in record.points if "noise_scale" in p.values]
            own = [point for point in record.points if "step_s" in point.values]
            points.setdefault(record.generation, {}).setdefault(record.rank, []).extend(own)
    found = [
        observation
        for generation, placed in hosts.items()
        if _is_enough(ranks := points.get(generation, {}), len(placed))
        for observation in _of_generation([ranks[rank][1:] for rank in range(len(placed))], placed)
    ]
    if not found:
        wanted = f"{FEWEST_POINTS} tenths of a second of steps of an optimizer of Farandole on each rank"
        raise UsageError(f"{path} has too little to predict from: it takes {wanted}; train longer with --record")
    return Measurements(tuple(found), noise[-1] if noise else math.nan)


def _is_enough(ranks: Mapping[int, Sequence[MetricPoint]], size: int) -> bool:
    return len(ranks) == size and min(map(len, ranks.values())) > FEWEST_POINTS


def _of_generation(ranks: Sequence[Sequence[MetricPoint]], placed: Sequence[str]) -> list[Observation]:
    def mean(name: str, points: Sequence[MetricPoint]) -> float:
        return statistics.median(point.values.get(name, 0.0) for point in points)

    seconds = statistics.median(mean("step_s", points) for points in ranks)
    own = [mean("step_s", points) - mean("wait_s", points) for points in ranks]
    busy = [max(0.0, mine - mean("input_s", points)) for mine, points in zip(own, ranks, strict=True)]
    starved = min(max(0.0, max(own) - max(busy)), seconds)
    wait = max(0.0, seconds - starved - statistics.fmean(busy))
    kinds = {"step": seconds, "wait": wait, "jitter": statistics.median(map(_jitter, ranks))}
    if any("input_s" in point.values for points in ranks for point in points):
        kinds |= {"dummy": seconds - starved} | ({"load": seconds} if starved > EXPOSED * seconds else {})
    rates = [mean("samples_per_s", points) for points in ranks]
    batch = round(seconds * statistics.fmean(rates)) if min(rates) > 0 else 0
    size, spread = len(ranks), len(set(placed))
    return [
        Observation(size, spread, value, kind, batch, RUN_NOISE)
        for kind, value in kinds.items()
        if size > 1 or kind != "wait"
    ]


def _jitter(points: Sequence[MetricPoint]) -> float:
    """Standard deviation of single steps: points are means of several steps, and vary less."""
    own = [p.values["step_s"] - p.values.get("wait_s", 0.0) - p.values.get("input_s", 0.0) for p in points]
    steps = (points[-1].step - points[0].step) / max(1, len(points) - 1)
    low, _, high = statistics.quantiles(own, n=4)
    return math.sqrt(max(1.0, steps)) * (high - low) / 1.349


def hidden_s(timeline: str | Path) -> float:
    """Seconds of communication in a step that a timeline of ``farandole run --timeline`` shows as hidden.

    Mean over ranks of the time in ``reduce`` but not in ``wait``, of which a step has one.
    """
    text = Path(timeline).read_text().rstrip(",\n ]")
    reduced: dict[int, float] = {}
    waited: dict[int, list[float]] = {}
    for event in json.loads(text + "]"):
        if event.get("ph") == "X" and event["name"] == "reduce":
            reduced[event["pid"]] = reduced.get(event["pid"], 0.0) + 1e-6 * event["dur"]
        elif event.get("ph") == "X" and event["name"] == "wait":
            waited.setdefault(event["pid"], []).append(1e-6 * event["dur"])
    if not waited:
        raise UsageError(f"{timeline} has no phase 'wait': record it with an optimizer of Farandole, on two ranks")
    return statistics.fmean(max(0.0, reduced.get(rank, 0.0) - sum(w)) / len(w) for rank, w in waited.items())


def benched(file: str | Path) -> tuple[bool, Fabric]:
    """Alpha and beta of the engine that ``farandole bench --json`` has chosen; true if it measured between hosts."""
    report = json.loads(Path(file).read_text())
    placed, times = report["hosts"], report["seconds"].get(report["chosen"])
    if not times:
        raise UsageError(f"{file} has no times of {report['chosen']}, which a job would take: measure it, too")
    between = len(set(placed)) > 1
    p = len(set(placed)) if between else len(placed)
    sizes, seconds = np.array([float(size) for size in times]), np.array([statistics.median(t) for t in times.values()])
    hops = 2 * math.log2(p) if between else 2 * (p - 1)
    design = np.stack([np.full(len(sizes), hops), 2 * (p - 1) / p * sizes], 1) / seconds[:, None]
    found = np.linalg.lstsq(design, np.ones(len(sizes)), rcond=None)[0]
    return between, Fabric(max(float(found[0]), 1e-9), max(float(found[1]), 1e-15))
