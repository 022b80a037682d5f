"""The journal of plans: each is made again from what stands there, and one that comes out otherwise is named."""

from __future__ import annotations

import argparse
from pathlib import Path

import msgspec
import numpy as np
import pytest

from farandole.data.staging import plan_journal
from farandole.data.staging.host_plan import planned
from farandole.data.staging.plan_journal import PlanRecord, note, replay
from farandole.data.tools.actions import replay_plans
from farandole.errors import UsageError
from tests.support.data.staging_hosts import entry

SIZES = np.array([30, 20, 50, 40], np.int64)


def written(path: Path) -> list[bytes]:
    one, two = entry("node1", 100, [0], 4), entry("node2", 200, [3], 4)
    for generation, hosts in ((1, [one, two]), (2, [two, msgspec.structs.replace(one, leaving=True)])):
        note(str(path), PlanRecord.of(generation, hosts, planned(hosts, SIZES), "3f"))
    return path.read_bytes().splitlines(keepends=True)


def test_plans_are_made_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = written(tmp_path / "plans")
    assert [(record.generation, record.manifest) for record, _ in replay(lines)] == [(1, "3f"), (2, "3f")]
    assert replay_plans(argparse.Namespace(path=str(tmp_path / "plans"))) == 0
    assert capsys.readouterr().out == (
        f"{tmp_path / 'plans'}\n"
        "generation 1: 140 B on node1, node2; read 70 B, copied 0 B\n"
        "generation 2: 140 B on node2, node1 (leaves); read 70 B, copied 30 B\n"
    )


def test_another_plan_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = written(tmp_path / "plans")
    record = msgspec.json.decode(second, type=PlanRecord)
    other = msgspec.json.encode(msgspec.structs.replace(record, hosts=record.hosts[:1]))
    with pytest.raises(UsageError, match="line 2: this version makes another plan of generation 2"):
        list(replay([first, other]))
    with pytest.raises(UsageError, match="line 1 is no plan of this version"):
        list(replay([b"{}"]))
    (tmp_path / "plans").write_bytes(first + other)
    with pytest.raises(UsageError, match="line 2: this version makes another plan of generation 2"):
        replay_plans(argparse.Namespace(path=str(tmp_path / "plans")))
    with pytest.raises(UsageError, match="has no recorded plans: give cache= of a job"):
        replay_plans(argparse.Namespace(path=str(tmp_path)))
    monkeypatch.setattr(plan_journal, "MOST_BYTES", 1000)
    for _ in range(10):
        note(str(tmp_path / "plans"), record)
    assert (tmp_path / "plans").stat().st_size < 1000 + len(second)
