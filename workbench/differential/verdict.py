"""Verdict on the outcome of a program in a job, compared with the oracle's."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import final

import msgspec

from workbench.differential.job import JobFindings
from workbench.differential.outcome import Outcome, RecordedTensor
from workbench.differential.program import OWN, Program

COARSE = frozenset({"autocast", "fp16", "bf16", "half weights", "grad_dtype", "scaler"})
"""Features that reduce numbers to 16 bits."""

FINE_TOLERANCE, COARSE_TOLERANCE = 1e-3, 8e-2

STALLED = frozenset({"StallError", "StartError"})
"""Errors that end a wait: they are no refusals."""

DEADLOCK = "deadlock"
"""Beginning of the text of a ``MismatchError`` that ends a wait, too: the oracle's ranks do not wait for each other."""

EQUAL, REFUSED, FAILED = "equal", "refused", "failed alike"


@final
class Verdict(msgspec.Struct, frozen=True):
    """Verdict on a program. ``kind``: one of the three above, or the error; ``text`` has details."""

    kind: str
    text: str = ""
    size: int = 0

    @property
    def is_finding(self) -> bool:
        """True if a developer should look at it."""
        return self.kind not in (EQUAL, REFUSED, FAILED)


def judge(program: Program, expected: Sequence[Outcome], found: JobFindings) -> Verdict:
    """Compare a job with the oracle.

    Right are equal numbers, and equal bits if the oracle's ranks have equal bits; or the expected errors, on every
    rank.
    """
    size = len(expected)
    if found.ending:
        return Verdict(found.ending, f"on {size} ranks\n{found.evidence}", size)
    outcomes = [outcome for outcome in found.outcomes if outcome is not None]
    failures = [outcome.failure for outcome in outcomes]
    due = [outcome.failure for outcome in expected]
    if any(due):
        if any(f is None for f, d in zip(failures, due, strict=True) if d is not None):
            return Verdict("no error", f"{_errors(found.outcomes)}; oracle: {_errors(expected)}", size)
        return Verdict(FAILED, _errors(expected), size)
    if any(failures):
        everywhere = all(f is not None and f.ours for f in failures)
        own = {f.kind for f in failures if f is not None} - {"AbortError"}
        own -= {"MismatchError"} if len(own) > 1 else set()  # the other ranks get these two from a refusal
        text = f"on {size} ranks: {_errors(outcomes)}\n{_traces(outcomes)}"
        has_stalled = bool(STALLED & own) or any(f.text.startswith(DEADLOCK) for f in failures if f)
        if everywhere and not has_stalled and _are_due(program, expected, outcomes, own):
            return Verdict(REFUSED, text, size)
        kinds = sorted({f.kind if f else "none" for f in failures})
        return Verdict(f"{'' if everywhere else 'stray '}error {' '.join(kinds)}", text, size)
    tolerance = COARSE_TOLERANCE if COARSE & {*program.features} else FINE_TOLERANCE
    return _compare(expected, outcomes, tolerance)


def _are_due(program: Program, expected: Sequence[Outcome], found: Sequence[Outcome], own: set[str]) -> bool:
    """True if ``own``, the kinds of error that ranks did not get from other ranks, are expected of this program.

    One kind; or two, if the members of a process set diverge, and the ranks outside of it reach a later refusal.
    """
    diverging = _diverging(expected)
    if len(own) == 1:
        return program.may_refuse or (own == {"DivergenceError"} and bool(diverging))
    if len(own) != 2 or "DivergenceError" not in own or not program.may_refuse:
        return False
    lines = {rank: o.failure.line for rank, o in enumerate(found) if o.failure and o.failure.kind == "DivergenceError"}
    later = {rank: o.failure.line for rank, o in enumerate(found) if o.failure and rank not in lines}
    kinds = {o.failure.kind for rank, o in enumerate(found) if o.failure and rank in later}
    return set(lines) in diverging and len(kinds) == 1 and min(later.values()) > max(lines.values())


def _diverging(expected: Sequence[Outcome]) -> list[set[int]]:
    """The ranks of each step that the oracle's ranks took with different numbers: the program caused the difference."""
    steps: dict[str, dict[int, bytes]] = {}
    for rank, outcome in enumerate(expected):
        for step, digest in outcome.steps.items():
            steps.setdefault(step, {})[rank] = digest
    return [set(digests) for digests in steps.values() if len(set(digests.values())) > 1]


def _compare(expected: Sequence[Outcome], found: Sequence[Outcome], tolerance: float) -> Verdict:
    size = len(expected)
    for name in expected[0].values if expected else {}:
        wanted = [outcome.values.get(name) for outcome in expected]
        got = [outcome.values.get(name) for outcome in found]
        for rank, (one, other) in enumerate(zip(wanted, got, strict=True)):
            if not _alike(one, other, tolerance):
                return Verdict("difference", f"{name} on rank {rank} of {size}: {_pair(one, other)}", size)
        for rank, (one, other) in enumerate(zip(wanted, got, strict=True)):
            if _bits(one) == _bits(wanted[0]) and _bits(other) != _bits(got[0]) and OWN not in name.split():
                text = f"{name}: ranks 0 and {rank} of {size} differ in bits: {_pair(got[0], other)}"
                return Verdict("ranks differ", text, size)
    return Verdict(EQUAL, size=size)


def _alike(one: RecordedTensor | None, other: RecordedTensor | None, tolerance: float) -> bool:
    if one is None or other is None or one.kind != other.kind:
        return one == other
    floor = 1e-3 if tolerance == COARSE_TOLERANCE else 1e-5  # the rest of a difference may be all rounding
    scale = max((abs(x) for x in one.numbers if math.isfinite(x)), default=0.0) + floor
    pairs = [(a, b, scale) for a, b in zip(one.numbers, other.numbers, strict=True)]
    return all(_near(a, b, tolerance * s) for a, b, s in [*pairs, (one.total, other.total, one.weight + floor)])


def _bits(value: RecordedTensor | None) -> bytes:
    return b"" if value is None else value.digest


def _near(a: float, b: float, distance: float) -> bool:
    return a == b or (math.isnan(a) and math.isnan(b)) or abs(a - b) <= distance


def _pair(one: RecordedTensor | None, other: RecordedTensor | None) -> str:
    def show(value: RecordedTensor | None) -> str:
        if value is None:
            return "nothing"
        return f"{value.kind} {' '.join(f'{x:.6g}' for x in value.numbers[:8])}"

    return f"expected {show(one)}; found {show(other)}"


def _errors(outcomes: Sequence[Outcome | None]) -> str:
    def show(outcome: Outcome | None) -> str:
        failure = outcome and outcome.failure
        return f"{failure.kind} in line {failure.line}: {failure.text[:300]}" if failure else "none"

    return "; ".join(f"rank {rank}: {show(outcome)}" for rank, outcome in enumerate(outcomes))


def _traces(outcomes: Sequence[Outcome]) -> str:
    return "\n".join(outcome.failure.trace for outcome in outcomes if outcome.failure)
