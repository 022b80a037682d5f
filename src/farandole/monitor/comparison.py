"""Comparison of runs: the facts in which they differ, and their curves over each other.

differences(["runs/a", "runs/b"])       # [("command", [..., ...]), ..., ("last loss", ["0.31", "0.24"])]
overlaid(["runs/a", "runs/b"])          # a hub for the page of both
"""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TypeAlias

from farandole.control.watch_messages import MetricPoint
from farandole.errors import UsageError
from farandole.monitor.folder import METRICS, PointRecord, RunInfo, TrialRecord, read_info, read_records
from farandole.monitor.hub import MOST_CURVES, Hub
from farandole.monitor.latest import Latest

Folder: TypeAlias = str | os.PathLike[str]

BEST = {min: re.compile(r"loss|err|perplexity|ppl"), max: re.compile(r"acc|auc|f1|score|precision|recall|bleu")}
"""Names of metrics whose small, and whose large values are good; for other metrics this is not known."""

MOST_POINTS = 1000
"""Points of one message of curves."""


def names_of(runs: Sequence[Folder]) -> list[str]:
    """Distinct names of runs: the names of their folders, or the whole paths if two names are equal."""
    names = [Path(run).resolve().name for run in runs]
    return names if len(set(names)) == len(names) else [os.fspath(run) for run in runs]


def differences(runs: Sequence[Folder]) -> list[tuple[str, list[str]]]:
    """Facts in which runs differ, and their last and best numbers: a name, and its value in each run."""
    infos = [read_info(run) for run in runs]
    facts: list[tuple[str, list[str]]] = [
        ("command", [" ".join(info.command) for info in infos]),
        ("commit", [info.git[:12] + "+" * info.git.endswith("+") for info in infos]),
        ("lasted", [lasted(info) for info in infos]),
        ("end", [end(info) for info in infos]),
    ]
    named = dict.fromkeys(name for info in infos for name in (*info.versions, *info.seeds))
    same = {"lasted", "end"}
    facts += [(name, [info.versions.get(name, info.seeds.get(name, "")) for info in infos]) for name in named]
    if any(info.search for info in infos):
        told = [trials_told(run, info) if info.search else ["", "", ""] for run, info in zip(runs, infos, strict=True)]
        same |= {"trials", "epochs", "best"}
        facts += [(name, [each[i] for each in told]) for i, name in enumerate(("trials", "epochs", "best"))]
    facts = [(name, values) for name, values in facts if len(set(values)) > 1 or name in same]
    of_best = [_metrics_of_best(run, info) if info.search else {} for run, info in zip(runs, infos, strict=True)]
    names = dict.fromkeys(name for each in of_best for name in each)
    facts += [(f"last {name}", [each.get(name, "") for each in of_best]) for name in names]
    return facts + _numbers(runs)


def _numbers(runs: Sequence[Folder]) -> list[tuple[str, list[str]]]:
    last = [{name: f"{latest.mean(name).value:.6g}" for name in latest} for latest in map(_latest, runs)]
    means = [step_means(run) for run in runs]
    told = []
    for name in dict.fromkeys(name for each in last for name in each):
        told.append((f"last {name}", [each.get(name, "") for each in last]))
        for pick, pattern in BEST.items():
            if pattern.search(name):
                word = "lowest" if pick is min else "highest"
                told.append((f"{word} {name}", [_best(each.get(name, {}), pick is min) for each in means]))
                break
    return told


def _best(means: dict[int, float], is_lowest: bool) -> str:
    step = min(means, key=lambda each: means[each] if is_lowest else -means[each], default=None)
    return "" if step is None else f"{means[step]:.6g} (step {step})"


def step_means(folder: Folder) -> dict[str, dict[int, float]]:
    """Finite means over the ranks of a run, of each metric and step."""
    values: dict[str, dict[int, list[float]]] = {}
    for record in read_records(folder):
        for point in record.points if isinstance(record, PointRecord) else ():
            for name, value in point.values.items():
                values.setdefault(name, {}).setdefault(point.step, []).append(value)
    means = {name: {step: sum(each) / len(each) for step, each in steps.items()} for name, steps in values.items()}
    return {name: {step: mean for step, mean in each.items() if math.isfinite(mean)} for name, each in means.items()}


def overlaid(runs: Sequence[Folder]) -> Hub:
    """State of a page that shows each run as a curve, the mean over its ranks; time counts from the run's begin."""
    if len(runs) > MOST_CURVES:
        raise UsageError(f"{len(runs)} runs are too many curves in a chart: open at most {MOST_CURVES} at once")
    infos = [read_info(run) for run in runs]
    for run, info in zip(runs, infos, strict=True):
        if info.search:
            raise UsageError(f"{run} is a search, whose curves are those of its trials: open it alone")
    hub = Hub(RunInfo(0.0, names_of(runs)))
    hub.runs = {"names": names_of(runs), "table": differences(runs)}
    for number, (run, info) in enumerate(zip(runs, infos, strict=True)):
        points = _points(run, info.began_s)
        for begin in range(0, len(points), MOST_POINTS):
            hub.add_record(PointRecord(number, 0, points[begin : begin + MOST_POINTS]))
    hub.end(0, "", max(info.ended_s - info.began_s for info in infos))
    return hub


def _points(run: Folder, began_s: float) -> list[MetricPoint]:
    times: dict[int, float] = {}
    for record in read_records(run):
        for point in record.points if isinstance(record, PointRecord) else ():
            times[point.step] = max(times.get(point.step, 0.0), point.time_s - began_s)
    values: dict[int, dict[str, float]] = {}
    for name, means in step_means(run).items():
        for step, mean in means.items():
            values.setdefault(step, {})[name] = mean
    return [MetricPoint(times[step], step, 0, values[step]) for step in sorted(values)]


def _latest(folder: str | os.PathLike[str]) -> Latest:
    found = Latest()
    for record in read_records(folder):
        found.add_record(record)
    return found


# -- texts ------------------------------------------------------------------------------------------------------------


def began(info: RunInfo) -> str:
    """Date and time at which a run began."""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(info.began_s))


def trials_told(run: Folder, info: RunInfo) -> list[str]:
    """Numbers of trials and of their epochs, and the best complete trial."""
    last = {record.trial: record for record in _trial_records(run)}
    best = _best_trial(last.values(), info)
    epochs = sum(max(0, record.step) for record in last.values())
    told = "" if best is None else f"{best.values['last']:.4g} (trial {best.trial})"
    return [f"{len(last)}/{info.search.get('trials', 0)}", str(epochs), told]


def _trial_records(run: Folder) -> list[TrialRecord]:
    """Records of the trials of a search; a search that could not begin has none."""
    records = read_records(run) if (Path(run) / METRICS).exists() else ()
    return [record for record in records if isinstance(record, TrialRecord)]


def _best_trial(last: Iterable[TrialRecord], info: RunInfo) -> TrialRecord | None:
    """The best complete trial, from the last record of each trial."""
    complete = [
        record for record in last if record.state == "complete" and math.isfinite(record.values.get("last", math.nan))
    ]
    pick = min if info.search.get("minimize", True) else max
    return pick(complete, key=lambda record: record.values["last"], default=None)


def _metrics_of_best(run: Folder, info: RunInfo) -> dict[str, str]:
    """Last metrics of the best trial of a search."""
    records = _trial_records(run)
    best = _best_trial({record.trial: record for record in records}.values(), info)
    own = [record.metrics for record in records if best is not None and record.trial == best.trial]
    told = {name: points[-1][1] for metrics in own for name, points in metrics.items() if points}
    return {f"{name} of the best trial": f"{value:.6g}" for name, value in told.items()}


def lasted(info: RunInfo) -> str:
    """Duration of a run; "" if the run has no recorded end."""
    if not info.ended_s:
        return ""
    whole = round(info.ended_s - info.began_s)
    return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"


def end(info: RunInfo) -> str:
    """End of a run in a word or two."""
    if info.stopped:
        return "stopped"
    return "goes on, or was killed" if info.status is None else "well" if info.status == 0 else f"status {info.status}"
