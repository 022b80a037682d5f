"""Rules of MLPerf for the log of a training, and the check of a log against them.

    found = broken(Path("result_0.txt").read_bytes())
    [(each.rule, each.text) for each in found]              # [("EXACTLY_ONE run_stop", "there are 0"), ...]

Written from the public description of the training and HPC benchmarks (github.com/mlcommons/logging, README and rules
of training 5.1 and HPC 3.0; github.com/mlcommons/training_policies): which keys occur once, or at least once, in which
order, which intervals are closed, and which values are valid. ``submission=True`` also checks the rules of a submission
(organization, platform, benchmark). Beyond the public rules: times must not decrease, and an interval must end before
it begins again.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias, final

import msgspec

from farandole.runtime.session.mllog import PREFIX, START, STOP, event_type

Line: TypeAlias = dict[str, Any]

FIELDS: dict[str, type | tuple[type, ...]] = {
    "namespace": str, "time_ms": int, "event_type": str, "key": str, "metadata": dict,
}  # fmt: skip

EXACTLY_ONE = ("init_stop", "run_start", "run_stop", "train_samples", "eval_samples", "global_batch_size", "seed")
AT_LEAST_ONE = ("init_start", "epoch_start", "epoch_stop", "eval_start", "eval_stop")
INSTEAD = {"epoch_start": "block_start", "epoch_stop": "block_stop"}
OF_SUBMISSIONS = ("submission_benchmark", "submission_division", "submission_org", "submission_platform")
QUALITY = ("eval_accuracy", "eval_error")
BEFORE = (
    ("init_start", "init_stop"),
    ("init_stop", "run_start"),
    ("run_start", "run_stop"),
    ("staging_start", "staging_stop"),
)
"""Pairs of keys: the first line with the first key must precede the first line with the second key."""

NUMBERED = ("epoch_start", "epoch_stop", "eval_start", "eval_stop", *QUALITY)
INIT_MS = 30 * 60 * 1000
"""Longest initialization in the closed division."""

COUNTS = ("train_samples", "eval_samples", "global_batch_size", "number_of_nodes", "number_of_ranks")


@final
@dataclass(frozen=True)
class BrokenRule:
    """One rule that a log breaks, and how."""

    rule: str
    text: str


def broken(text: bytes, submission: bool = False) -> list[BrokenRule]:
    """Every rule that the log breaks; empty for a good log. Lines without the mark ``:::MLLOG`` are ignored."""
    lines, found = [], []
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith(PREFIX.strip()):
            try:
                lines.append(_checked(line))
            except ValueError as error:
                found.append(BrokenRule("line", f"line {number}: {error}"))
    for rules in (_counts, _order, _pairs, _values):
        found += [BrokenRule(rule, said) for rule, said in rules(lines)]
    if submission:
        found += [BrokenRule(rule, said) for rule, said in _submission(lines)]
    return found


def _checked(line: bytes) -> Line:
    found = msgspec.json.decode(line.lstrip().removeprefix(PREFIX.strip()), type=dict[str, Any])
    if missing := [name for name in (*FIELDS, "value") if name not in found]:
        raise ValueError(f"it has no {', '.join(missing)}")
    for name, kind in FIELDS.items():
        if not isinstance(found[name], kind):
            raise ValueError(f"its {name} is {found[name]!r}")  # noqa: TRY004 (of a file, not of a call)
    if found["event_type"] != event_type(found["key"]):
        raise ValueError(f"{found['key']} is {event_type(found['key'])}, not {found['event_type']}")
    return found


def _counts(lines: list[Line]) -> Iterator[tuple[str, str]]:
    count = Counter(line["key"] for line in lines)
    for key in EXACTLY_ONE:
        if count[key] != 1:
            yield f"EXACTLY_ONE {key}", f"there are {count[key]}"
    for key in AT_LEAST_ONE:
        if not count[key] and not count[INSTEAD.get(key, key)]:
            yield f"AT_LEAST_ONE {key}", "there is none"
    if not any(count[key] for key in QUALITY):
        yield f"AT_LEAST_ONE {QUALITY[0]}", f"there is none, and no {QUALITY[1]}"


def _order(lines: list[Line]) -> Iterator[tuple[str, str]]:
    first: dict[str, int] = {}
    for at, line in enumerate(lines):
        first.setdefault(line["key"], at)
        if at and line["time_ms"] < lines[at - 1]["time_ms"]:
            yield "ORDER time_ms", f"{line['key']} comes after {lines[at - 1]['key']}, and is earlier"
    for one, other in BEFORE:
        if other in first and first.get(one, len(lines)) > first[other]:
            yield f"ORDER {one} {other}", f"{other} comes before {one}"
    begin, end = first.get("run_start", 0), first.get("run_stop", len(lines))
    for at, line in enumerate(lines):
        if line["key"] in NUMBERED and not begin < at < end:
            yield f"ORDER run {line['key']}", f"{line['key']} is outside of the run"
            break
    if {"init_start", "init_stop"} <= first.keys():
        lasted_ms = lines[first["init_stop"]]["time_ms"] - lines[first["init_start"]]["time_ms"]
        if lasted_ms > INIT_MS:
            yield "ORDER init", f"the initialization took {lasted_ms / 60000:.0f} minutes, and may take 30"


def _pairs(lines: list[Line]) -> Iterator[tuple[str, str]]:
    """Check that intervals are closed. An epoch may be open at the end of the run, if an evaluation has ended it."""
    is_open: dict[str, Any] = {}
    for line in lines:
        key, number = line["key"], line["metadata"].get("epoch_num")
        if key.endswith(START) and (name := key.removesuffix(START)) in ("epoch", "eval", "block", "staging"):
            if name in is_open:
                yield f"PAIR {name}", f"{key} {number} comes while {is_open[name]} is open"
            is_open[name] = number
        elif key.endswith(STOP) and (name := key.removesuffix(STOP)) in ("epoch", "eval", "block", "staging"):
            if name not in is_open or (name != "block" and is_open[name] != number):
                yield f"PAIR {name}", f"{key} {number} ends {is_open.get(name, 'nothing')}"
            is_open.pop(name, None)
    for name in is_open.keys() - {"epoch", "block"}:
        yield f"PAIR {name}", f"{name}_start has no {name}_stop"


def _values(lines: list[Line]) -> Iterator[tuple[str, str]]:
    for line in lines:
        key, value, metadata = line["key"], line["value"], line["metadata"]
        fits = _FITS.get(key)
        if fits is not None and not fits(value):
            yield f"VALUE {key}", f"{key} cannot be {value!r}"
        number = metadata.get("epoch_num", metadata.get("samples_count"))
        if key in NUMBERED and not _is_number(number):
            yield f"METADATA {key}", f"{key} has no number of its epoch"
        if key == "run_stop" and metadata.get("status") not in ("success", "aborted"):
            yield "METADATA run_stop", f"its status is {metadata.get('status')!r}, not success or aborted"


def _submission(lines: list[Line]) -> Iterator[tuple[str, str]]:
    count = Counter(line["key"] for line in lines)
    for key in OF_SUBMISSIONS:
        if count[key] != 1:
            yield f"EXACTLY_ONE {key}", f"there are {count[key]}"
    if not count["cache_clear"]:
        yield "AT_LEAST_ONE cache_clear", "there is none"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


_FITS: dict[str, Callable[[Any], bool]] = {
    **dict.fromkeys(COUNTS, _is_count),
    **dict.fromkeys(QUALITY, _is_number),
    **dict.fromkeys(OF_SUBMISSIONS, _is_text),
    "seed": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "submission_division": lambda value: value in ("closed", "open"),
    "submission_status": lambda value: value in ("cloud", "onprem", "preview", "research"),
}
