"""Judgement of a plan: the records of its ranks, compared with the oracle's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import msgspec
import numpy as np

from workbench.differential.frameworks.oracle import DIVERGENCE, Expected
from workbench.differential.frameworks.plan import FrameworkPlan, RankResult

EQUAL, REFUSED = "equal", "refused"

ERRORS = {DIVERGENCE: {"DivergenceError"}}
"""Errors that a plan may cause; for a mismatch, any error of Farandole.

If threads of a compiled program may call at any time, ranks that wait for each other get a stall error.
"""


@final
class Judgement(msgspec.Struct, frozen=True):
    """Judgement of a plan on so many ranks: equal, refused as expected, or a finding."""

    kind: str
    size: int
    text: str = ""

    @property
    def is_finding(self) -> bool:
        """True if this is an error."""
        return self.kind not in (EQUAL, REFUSED)


def judge(plan: FrameworkPlan, expected: Expected, found: Sequence[RankResult]) -> Judgement:
    """Compare what ranks have recorded with what is expected."""
    size = len(found)
    if expected.due:
        return _judge_errors(expected, found)
    failed = [rank for rank, each in enumerate(found) if each.failure]
    if failed:
        kinds = sorted({each.failure.kind for each in found if each.failure})
        stray = "" if len(failed) == size else "stray "
        return Judgement(f"{stray}error {' '.join(kinds)}", size, _errors(found))
    for name, groups in expected.groups.items():
        text = _difference(plan, name, expected, found)
        if text:
            return Judgement("difference", size, text)
        for group in groups:
            odd = [rank for rank in group if found[rank].records[name].digest != found[group[0]].records[name].digest]
            if odd:
                values = [found[rank].records[name].values[:6] for rank in (group[0], odd[0])]
                return Judgement("ranks differ", size, f"{name}: ranks {group[0]} and {odd[0]} in bits: {values}")
    return Judgement(EQUAL, size)


def _judge_errors(expected: Expected, found: Sequence[RankResult]) -> Judgement:
    for rank, what in expected.due.items():
        failure = found[rank].failure
        if failure is None:
            return Judgement(f"missed {what}", len(found), f"no error on rank {rank}: {_errors(found)}")
        allowed = what not in ERRORS or failure.kind in ERRORS[what]
        if not allowed or not failure.ours:
            return Judgement(f"error {failure.kind} for {what}", len(found), _errors(found))
    return Judgement(REFUSED, len(found))


def _difference(plan: FrameworkPlan, name: str, expected: Expected, found: Sequence[RankResult]) -> str:
    """The first number of a record that is too far from the oracle's, as text; empty if there is none."""
    for rank, each in enumerate(found):
        if name not in each.records:
            return f"{name} is missing on rank {rank}"
        wanted, got = expected.records[rank][name].ravel(), np.array(each.records[name].values)
        if wanted.shape != got.shape:
            return f"{name} on rank {rank}: {wanted.size} numbers expected, {got.size} found"
        is_number = np.isfinite(wanted)
        distance = plan.tolerance * (float(np.abs(wanted[is_number]).max(initial=0.0)) + 0.1)
        with np.errstate(invalid="ignore"):
            is_near = np.abs(wanted - got) <= distance
        if not np.where(is_number, is_near, wanted == got).all():
            return f"{name} on rank {rank} of {len(found)}: expected {_few(wanted)}; found {_few(got)}"
    return ""


def _few(values: np.typing.NDArray[np.float64]) -> str:
    return " ".join(f"{each:.6g}" for each in values[:10])


def _errors(found: Sequence[RankResult]) -> str:
    lines = [
        f"rank {i}: {r.failure.kind}: {r.failure.text}" if r.failure else f"rank {i}: none" for i, r in enumerate(found)
    ]
    return "\n".join([*lines, *(each.failure.trace for each in found if each.failure)])
