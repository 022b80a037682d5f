"""What the benchmark makes of its numbers. The numbers themselves are never tested: machines differ."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import pytest

from benchmarks import picture, report
from benchmarks.allreduce import human
from benchmarks.elastic_job import Course
from benchmarks.fleet import Fleet
from benchmarks.frameworks import elastic, section
from benchmarks.frameworks.start import Peer
from benchmarks.frameworks.strikes import STEPS, Strikes
from benchmarks.measure import Row, Sample, Table, Verdict
from farandole.events import Recovery
from farandole.testing.ledger import History, Record, Voted


def table(panel: str = "") -> Table:
    """A table with one verdict of each kind."""
    verdicts = (Verdict(2.0, "x", least=1.5), Verdict(2.0, "x", most=1.5), Verdict(2.0, "x"))
    return Table("title", "us", panel, [Row("4 KB", {"shm": Sample.of([1, 2, 3, 4, 5])}, verdicts, 4096)])


def test_a_verdict_knows_its_target() -> None:
    assert [(v.passed, v.target) for v in table().rows[0].verdicts] == [(True, ">= 1.5"), (False, "<= 1.5"), (None, "")]
    assert report.summary([table(), table()]) == (2, 4)


def test_a_sample_has_median_and_spread() -> None:
    sample = Sample.of([1, 2, 3, 4, 100])
    assert sample.median == 3
    assert sample.spread == pytest.approx(1 / 3)
    assert Sample.of([5]).spread == 0
    assert Sample.of(range(100)).margin == 9.5  # ranks 40 and 59
    assert math.isnan(Sample.of(range(5)).margin)


def test_numbers_are_shown_as_people_read_them() -> None:
    assert [report.significant(v) for v in (0, 0.01234, 1.234, 12.34, 12345.6)] == [
        "0",
        "0.0123",
        "1.23",
        "12.3",
        "12346",
    ]
    assert [human(n) for n in (4, 4096, 64 * 2**20)] == ["4 B", "4 KB", "64 MB"]


def test_everything_is_saved_and_drawn(tmp_path: Path) -> None:
    report.save([table()], tmp_path / "deep")
    saved = json.loads((tmp_path / "deep" / "bench.json").read_text())
    assert saved["tables"][0]["rows"][0]["samples"]["shm"]["values"] == [1, 2, 3, 4, 5]
    assert saved["machine"]["cores"]
    page = (tmp_path / "deep" / "bench.md").read_text()
    assert "| 4 KB | 3 ±33% | 2 x (>= 1.5 pass); 2 x (<= 1.5 FAIL); 2 x |" in page
    assert not picture.draw([table()], tmp_path / "bench.png")
    assert picture.draw([table("2 ranks")], tmp_path / "bench.png")
    assert (tmp_path / "bench.png").read_bytes().startswith(b"\x89PNG")


def test_a_strike_costs_what_the_ledgers_of_the_survivors_say() -> None:
    def steps(generation: int, *times_s: float) -> list[Record]:
        return [Voted(generation, 0, step, at_s) for step, at_s in enumerate(times_s)]

    told = Recovery(
        time_s=2.0,
        because="",
        generation=2,
        rank=0,
        size=1,
        step=4,
        form_s=0.2,
        agree_s=0.1,
        transfer_s=0.0,
        first_step_s=0.3,
        transfer_bytes=0,
    )
    survivor = [*steps(1, 1.0, 1.1, 1.2), told, *steps(2, 2.0, 2.1, 2.2), *steps(3, 5.0, 5.1)]
    history = History({"survivor": survivor, "victim": steps(1, 1.0, 1.1, 1.2), "new": steps(3, 5.0, 5.2)})
    blow = Course(history, workers=2).blow("kill", 1.25)
    assert blow.until_next_s == pytest.approx(0.75)
    assert blow.parts == pytest.approx({"detect": 0.15, "form": 0.2, "agree": 0.1, "transfer": 0.0, "first step": 0.3})
    assert blow.pause_s == pytest.approx(0.7)
    assert blow.until_full_s == pytest.approx(3.75)


def test_a_framework_that_is_not_here_is_named_with_what_installs_it() -> None:
    peer = Peer("Keras on paper", "keras_runs", {"json": "never", "no_such_framework": "pip install paper"})
    assert peer.lacks() == "no module no_such_framework: pip install paper"
    assert Peer("plain", "plain_runs", {"json": "never"}).lacks() == ""


def test_a_framework_that_fails_says_why_and_leaves_no_process() -> None:
    command = [sys.executable, "-m", "benchmarks.frameworks.rank", "no_such_runs"]
    commands = [(command, {"BENCH_RANK": str(rank)}) for rank in range(2)]
    with pytest.raises(RuntimeError, match=r"No module named 'benchmarks.*no_such_runs'"):
        Fleet("nothing", 2, commands=commands)


def test_steps_and_calls_of_frameworks_are_compared_within_a_row() -> None:
    taken = {
        ("step", "MLP", "none"): [0.1, 0.1],
        ("step", "MLP", "farandole"): [0.15, 0.15],
        ("step", "MLP", "jax.distributed"): [0.3, 0.3],
        ("step", "CNN", "MultiWorkerMirrored"): [0.5],
        ("call", "JAX", "empty graph"): [10e-6],
        ("call", "JAX", "farandole"): [60e-6],
    }
    mlp, cnn = section._steps(taken).rows
    assert [round(verdict.value, 3) for verdict in mlp.verdicts] == [0.5, 1.5]
    assert (cnn.verdicts, cnn.samples["MultiWorkerMirrored"].median) == ((), 500)
    assert [round(v.value, 3) for row in section._calls(taken).rows for v in row.verdicts] == [50]


def test_the_time_from_a_kill_is_that_to_the_first_step_after_it(tmp_path: Path) -> None:
    (tmp_path / "strikes").write_text("10.0\n20.0\n")
    (tmp_path / "steps-1").write_text("9.5\n20.75\n")
    (tmp_path / "steps-2").write_text("10.5\n11.5\n")
    assert elastic._until_next(tmp_path, 2) == [0.5, 0.75]
    with pytest.raises(RuntimeError, match="2 of 3 kills"):
        elastic._until_next(tmp_path, 3)


def test_nobody_is_killed_alone_and_all_is_over_after_the_last_kill(tmp_path: Path) -> None:
    strikes = Strikes(tmp_path, 1)
    strikes.begin()
    assert not any(strikes.stepped(0, 1) for _ in range(2 * STEPS))
    (tmp_path / "strikes").write_text("1.0\n")
    strikes.begin()
    assert [strikes.stepped(0, 2) for _ in range(STEPS)] == [False] * (STEPS - 1) + [True]
