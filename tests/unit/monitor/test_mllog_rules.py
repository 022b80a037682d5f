"""Rules of MLPerf: a good log keeps them, and a log that breaks one is told which."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any, TypeAlias

import pytest

from farandole.monitor.mllog_rules import broken
from farandole.runtime.session.mllog import event_type

Lines: TypeAlias = list[dict[str, Any]]

EPOCHS = [
    line
    for epoch in (1, 2)
    for line in (
        ("epoch_start", None, {"epoch_num": epoch}),
        ("epoch_stop", None, {"epoch_num": epoch}),
        ("eval_start", None, {"epoch_num": epoch}),
        ("eval_accuracy", 0.5, {"epoch_num": epoch}),
        ("eval_stop", None, {"epoch_num": epoch}),
    )
]
GOOD: list[tuple[str, Any, dict[str, Any]]] = [
    ("submission_benchmark", "deepcam", {}), ("submission_division", "open", {}), ("submission_org", "a", {}),
    ("submission_platform", "b", {}), ("submission_status", "onprem", {}), ("cache_clear", True, {}),
    ("init_start", None, {}), ("number_of_nodes", 1, {}), ("train_samples", 512, {}), ("eval_samples", 64, {}),
    ("global_batch_size", 32, {}), ("seed", 3, {}), ("init_stop", None, {}), ("staging_start", None, {}),
    ("staging_stop", None, {}), ("run_start", None, {}), *EPOCHS, ("run_stop", None, {"status": "success"}),
]  # fmt: skip


def good() -> Lines:
    return [
        {"namespace": "", "time_ms": 1000 + i, "event_type": event_type(key), "key": key, "value": v, "metadata": m}
        for i, (key, v, m) in enumerate(copy.deepcopy(GOOD))
    ]


def text(lines: Lines) -> bytes:
    return "".join(f":::MLLOG {json.dumps(line)}\n" for line in lines).encode()


def at(lines: Lines, key: str) -> int:
    return next(i for i, line in enumerate(lines) if line["key"] == key)


def without(*keys: str) -> Callable[[Lines], None]:
    def change(lines: Lines) -> None:
        lines[:] = [line for line in lines if line["key"] not in keys]

    return change


def twice(key: str) -> Callable[[Lines], None]:
    return lambda lines: lines.insert(at(lines, key), lines[at(lines, key)])


def having(key: str, **fields: Any) -> Callable[[Lines], None]:
    return lambda lines: lines[at(lines, key)].update(fields)


def moved(key: str, before: str) -> Callable[[Lines], None]:
    """Another order, with times that fit."""

    def change(lines: Lines) -> None:
        line = lines.pop(at(lines, key))
        lines.insert(at(lines, before), line)
        for i, each in enumerate(lines):
            each["time_ms"] = 1000 + i

    return change


ONCE = (
    "init_stop", "run_start", "run_stop", "train_samples", "eval_samples", "global_batch_size", "seed",
    "submission_benchmark", "submission_division", "submission_org", "submission_platform",
)  # fmt: skip

BROKEN: list[tuple[str, Callable[[Lines], None]]] = [
    *((f"EXACTLY_ONE {key}", twice(key)) for key in ONCE),
    *((f"EXACTLY_ONE {key}", without(key)) for key in ONCE),
    *(
        (f"AT_LEAST_ONE {key}", without(key))
        for key in ("init_start", "epoch_start", "epoch_stop", "eval_start", "eval_stop")
    ),
    ("AT_LEAST_ONE cache_clear", without("cache_clear")),
    ("AT_LEAST_ONE eval_accuracy", without("eval_accuracy")),
    ("ORDER time_ms", having("seed", time_ms=999)),
    ("ORDER init_start init_stop", moved("init_stop", "init_start")),
    ("ORDER init_stop run_start", moved("run_start", "init_stop")),
    ("ORDER run_start run_stop", moved("run_stop", "run_start")),
    ("ORDER staging_start staging_stop", moved("staging_stop", "staging_start")),
    ("ORDER run epoch_start", moved("epoch_start", "run_start")),
    ("ORDER init", having("init_start", time_ms=1000 - 31 * 60 * 1000)),
    ("PAIR epoch", twice("epoch_start")),
    ("PAIR epoch", having("epoch_stop", metadata={"epoch_num": 7})),
    ("PAIR eval", twice("eval_stop")),
    ("PAIR staging", without("staging_stop")),
    ("VALUE train_samples", having("train_samples", value="512")),
    ("VALUE eval_samples", having("eval_samples", value=0)),
    ("VALUE global_batch_size", having("global_batch_size", value=True)),
    ("VALUE number_of_nodes", having("number_of_nodes", value=-1)),
    ("VALUE seed", having("seed", value=0.5)),
    ("VALUE eval_accuracy", having("eval_accuracy", value="high")),
    ("VALUE submission_org", having("submission_org", value="")),
    ("VALUE submission_division", having("submission_division", value="half")),
    ("VALUE submission_status", having("submission_status", value="home")),
    ("METADATA epoch_start", having("epoch_start", metadata={})),
    ("METADATA eval_accuracy", having("eval_accuracy", metadata={"epoch_num": "one"})),
    ("METADATA run_stop", having("run_stop", metadata={"status": "fine"})),
    ("line", having("seed", event_type="INTERVAL_START")),
    ("line", having("seed", time_ms="now")),
    ("line", lambda lines: lines[at(lines, "seed")].pop("value")),
]


def test_a_good_log_keeps_all_rules() -> None:
    assert broken(b"other output\n" + text(good()), submission=True) == []


@pytest.mark.parametrize(("rule", "change"), BROKEN, ids=[f"{i} {rule}" for i, (rule, _) in enumerate(BROKEN)])
def test_a_broken_rule_is_named(rule: str, change: Callable[[Lines], None]) -> None:
    lines = good()
    change(lines)
    assert rule in {each.rule for each in broken(text(lines), submission=True)}


def test_a_log_may_have_blocks_and_an_error_and_an_open_last_epoch() -> None:
    lines = good()
    for line in lines:
        line["key"] = {"eval_accuracy": "eval_error"}.get(line["key"], line["key"])
    del lines[len(lines) - 1 - [line["key"] for line in reversed(lines)].index("epoch_stop")]
    assert broken(text(lines)) == []
    for line in lines:
        line["key"] = line["key"].replace("epoch_", "block_")
    assert broken(text(lines)) == []


def test_what_a_submission_says_is_asked_for_only_of_one() -> None:
    lines = good()
    without("submission_benchmark", "submission_division", "submission_org", "submission_platform", "cache_clear")(
        lines
    )
    assert broken(text(lines)) == []
    assert len(broken(text(lines), submission=True)) == 5


@pytest.mark.parametrize("line", [b":::MLLOG", b":::MLLOG {", b":::MLLOG []", b':::MLLOG {"key": 3}', b":::MLLOG \xff"])
def test_a_line_that_is_no_json_is_told_of(line: bytes) -> None:
    assert [each.rule for each in broken(text(good()) + line)] == ["line"]
