"""Reproduce the figure of F1 over the batch: ``python -m examples.bigearthnet --reproduce``.

The experiment is that of ``batch_table.py``, beside linear classifiers of the same patches.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

import farandole
from examples.bigearthnet import findings as published
from examples.bigearthnet.baselines import baselines
from examples.bigearthnet.data import synthetic
from examples.bigearthnet.experiment import FULL, QUICK, Report, merged, run_all
from examples.bigearthnet.picture import draw
from examples.bigearthnet.tune import tuned
from examples.common.reproduce import ROOT, Application, Figure, Finding, Measured, Results

FIGURES = (
    Figure("constant", "F1 of naming always the same labels", "baseline"),
    Figure("band means", "F1 of a linear classifier of band means", "baseline"),
    Figure("band statistics", "F1 of a linear classifier of band statistics", "baseline"),
    Figure("sgd 1", "F1, SGD at 1 x B0"),
    Figure("sgd 16", "F1, SGD at 16 x B0"),
    Figure("sgd 32", "F1, SGD at 32 x B0", tolerance=0.3),  # it diverges: what is left of it depends on the last bit
    Figure("sgd 64", "F1, SGD at 64 x B0", tolerance=0.3),
    Figure("lars 32", "F1, LARS at 32 x B0"),
    Figure("lamb 32", "F1, LAMB at 32 x B0"),
)


def measure(seed: int, quick: bool) -> Measured:
    """Train every row of the batch table with one seed, on two processes."""
    experiment = replace(tuned(QUICK if quick else FULL), seeds=(seed,))
    command = " ".join(["python -m examples.bigearthnet", *sys.argv[1:]])
    made_by = {"command": command, "farandole": farandole.__version__, "machine": platform.machine()}
    report: Report = farandole.run(run_all, args=(experiment, made_by), np=2, python_path=[str(ROOT)])[0]
    data = synthetic(experiment.train_size, experiment.test_size, spectral_gap=experiment.spectral_gap)
    figures = {line.name: line.f1 for line in published.summary(report)}
    return Measured({**figures, **baselines(data), "constant": report.constant_f1}, msgspec.to_builtins(report))


def report_of(results: Results) -> Report:
    """The trainings of all seeds."""
    return merged([msgspec.convert(each.drawn, Report) for each in results.values()])


def findings(results: Results) -> Sequence[Finding]:
    """Those of the batch table, and whether the network beats linear classifiers."""
    report = report_of(results)
    figures = [each.figures for each in results.values()]
    margins = [each["sgd 1"] - max(each["band means"], each["band statistics"]) for each in figures]
    beats = Finding("the network beats linear classifiers", f"by {min(margins):.3f} at least", min(margins) > 0)
    found = published.findings(published.summary(report), report.constant_f1)
    return [beats, *(Finding(each.claim, each.numbers, each.holds) for each in found)]


def picture(results: Results, path: Path) -> None:
    """F1 over the batch and over the epochs."""
    report = report_of(results)
    draw(published.summary(report), report.constant_f1, path)


if __name__ == "__main__":
    Application("bigearthnet", FIGURES, measure, findings, picture).main()
