"""Texts on changes of a trial, for users of a terminal and of the live page."""

from __future__ import annotations

from farandole.search.advisor import Phase
from farandole.search.study import HELD

VERBS: dict[Phase, str] = {
    "running": "leaves its workers",
    "paused": "pauses",
    "complete": "is complete",
    "pruned": "stops",
    "failed": "has failed",
}


def of_report(number: int, epoch: int, value: float, phase: Phase, decision: tuple[bool, str]) -> str:
    """Text on a report: the value, and the decision (whether the trial goes on, and why), if there is one.

    >>> of_report(3, 1, 0.25, "paused", (False, "3rd of 4 at epoch 1; the best 1 goes on"))
    'trial 3 pauses: 3rd of 4 at epoch 1; the best 1 goes on (epoch 1: 0.25)'
    >>> of_report(3, 2, 0.25, "running", (True, ""))
    'trial 3, epoch 2: 0.25'
    """
    goes_on, reason = decision
    if not reason:
        return f"trial {number}, epoch {epoch}: {value:.6g}"
    verb = "goes on" if goes_on else "pauses" if reason == HELD else VERBS[phase]
    return f"trial {number} {verb}: {reason} (epoch {epoch}: {value:.6g})"
