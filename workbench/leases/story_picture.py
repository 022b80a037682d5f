"""Picture of a training over several jobs, from its journal and its ledger."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from farandole.largebatch.picture import new_figure, written
from workbench.leases.story_run import ENOUGH, Story

LEASES, GOAL, NOISE, RIGHT, URGENT = "tab:blue", "tab:gray", "tab:red", "tab:green", "tab:orange"
"""Colours of the workers, of the goal, the noise scale, the accuracy, and the preempting job."""

APART_S = 30.0
"""Least time between two reasons in the picture."""


def draw(story: Story, path: Path) -> None:
    """Draw workers, batch and noise scale, and the accuracy over the time since the first decision."""
    figure = new_figure(9, 8)
    size, batch, right = figure.subplots(3, 1, sharex=True)
    began_s = story.records[0].seen.now_s
    whole = [record for record in story.records if record.seen.have >= record.limits.min_np]  # until it ends
    story = story._replace(records=whole)
    _draw_workers(size, story, began_s)
    _draw_batch(batch, story, began_s)
    _draw_accuracy(right, story, began_s)
    for axis in (size, batch, right):
        axis.axvline(story.preempted_s - began_s, color=URGENT, ls=":", lw=1.5)
        axis.grid(alpha=0.3)
    written(figure, path)


def _draw_workers(axis: Any, story: Story, began_s: float) -> None:
    times = [record.seen.now_s - began_s for record in story.records]
    axis.step(times, [record.after.goal for record in story.records], where="post", color=GOAL, ls="--", label="wanted")
    axis.step(times, [record.seen.have for record in story.records], where="post", color=LEASES, label="training")
    axis.set(ylabel="workers", ylim=(0, 9), title="one training over several jobs of Slurm")
    axis.yaxis.get_major_locator().set_params(integer=True)
    low = story.preempted_s - began_s
    axis.annotate("an urgent job\npreempts a lease", (low, 0.6), xytext=(6, 0), textcoords="offset points", fontsize=8)
    told_s = -math.inf
    for before, record in zip(story.records, story.records[1:], strict=False):
        if abs(before.after.goal - record.after.goal) > 1 and record.seen.now_s - told_s > APART_S:
            told_s = record.seen.now_s
            reason = "by advice" if "advice" in record.after.why else "by the rule\nof the user"
            at = record.seen.now_s - began_s, record.after.goal
            axis.annotate(reason, at, xytext=(4, 6), textcoords="offset points", fontsize=8, color=GOAL)
    axis.legend(fontsize=8, loc="upper right")


def _draw_batch(axis: Any, story: Story, began_s: float) -> None:
    advised = {
        record.seen.progress.advice.at_s - began_s: record.seen.progress.advice
        for record in story.records
        if record.seen.progress.advice is not None and not record.seen.progress.advice.refusal
    }
    lows = [advice.low for advice in advised.values()]
    axis.plot(list(advised), lows, ".-", ms=5, lw=0.8, color=NOISE, label="lower bound of the noise scale")
    times = [record.seen.now_s - began_s for record in story.records]
    each = max((record.seen.progress.batch for record in story.records), default=math.nan)
    batches = [record.seen.have * each for record in story.records]
    axis.step(times, batches, where="post", color=LEASES, label="global batch")
    axis.set(ylabel="samples", ylim=(0, None))
    axis.legend(fontsize=8, loc="upper left")


def _draw_accuracy(axis: Any, story: Story, began_s: float) -> None:
    known = [
        (record.seen.now_s - began_s, record.seen.progress.metrics["val_acc"])
        for record in story.records
        if "val_acc" in record.seen.progress.metrics
    ]
    axis.plot([at for at, _ in known], [100 * value for _, value in known], ".-", color=RIGHT)
    axis.axhline(100 * ENOUGH, color=GOAL, ls="--", lw=0.8, label="enough, by the rule of the user")
    axis.legend(fontsize=8, loc="lower right")
    axis.set(xlabel="seconds", ylabel="% of test digits right", ylim=(0, 100))
