"""Measurements from tables, records, timelines and ``farandole bench``; and the command as a whole."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from farandole.cli import main
from farandole.control.watch_messages import MetricPoint
from farandole.errors import UsageError
from farandole.monitor.folder import MemberRecord, PointRecord, Record, RunInfo, RunWriter
from farandole.predict import model
from farandole.predict.costs import Fabric
from farandole.predict.model import Observation
from farandole.predict.sources import benched, hidden_s, read, recorded

TABLE = "# a comment\nranks,seconds,dummy,batch\n1,1.0,0.9,8\n2,1.1,0.95,8\n4,1.2,1.0,8\n8,1.25,1.0,8\n16,1.3,1.0,8\n"


def points(rank: int, **values: float) -> PointRecord:
    """Ten tenths of a second with five steps each, the first of them slow."""
    first = {name: 9 * value for name, value in values.items()}
    return PointRecord(rank, 1, [MetricPoint(0.1 * i, 5 * i, 0, values if i else first) for i in range(10)])


def test_a_table(tmp_path: Path) -> None:
    file = tmp_path / "table.csv"
    file.write_text(TABLE)
    found = read(str(file), per_host=4).observations
    assert found[:2] == (Observation(1, 1, 1.0, "step", 8), Observation(1, 1, 0.9, "dummy", 8))
    assert found[-2].hosts == 4
    as_json = tmp_path / "table.json"
    as_json.write_text(json.dumps([{"ranks": 2, "hosts": 1, "seconds": 1.5}]))
    assert read(str(as_json)).observations == (Observation(2, 1, 1.5),)


@pytest.mark.parametrize(
    ("text", "said"),
    [("ranks,time\n1,2\n", "lacks"), ("ranks,seconds,x\n1,2,3\n", "'x'"), ("ranks,seconds\n1,a\n", "CSV")],
)
def test_what_is_no_table_says_what_it_lacks(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_text(text)
    with pytest.raises(UsageError, match=said):
        read(str(tmp_path / "table.csv"))
    with pytest.raises(UsageError, match="climate-cori"):
        read(str(tmp_path / "nowhere.csv"))


def test_a_record_is_taken_apart() -> None:
    """Rank 1 computes longer and gets its batch late; rank 0 waits for both."""
    records: list[Record] = [
        MemberRecord(0.0, 1, ["a", "b"]),
        points(0, step_s=1.0, wait_s=0.45, input_s=0.0, samples_per_s=32.0),
        points(1, step_s=1.0, wait_s=0.05, input_s=0.25, samples_per_s=32.0),
    ]
    by_kind = {o.kind: o for o in recorded(records).observations}
    # alone: .55 and .95 - .25 = .70; the last comes at .95 and not at .70
    assert by_kind["step"].seconds == pytest.approx(1.0)
    assert by_kind["dummy"].seconds == pytest.approx(0.75)
    assert by_kind["load"].seconds == pytest.approx(1.0)
    assert by_kind["wait"].seconds == pytest.approx(1.0 - 0.25 - 0.625)
    assert {(o.ranks, o.hosts, o.batch) for o in by_kind.values()} == {(2, 2, 32)}


def test_a_record_without_loader_or_steps() -> None:
    records: list[Record] = [MemberRecord(0.0, 1, ["a"]), points(0, step_s=1.0, wait_s=0.0, noise_scale=70.0)]
    found = recorded(records)
    assert {o.kind for o in found.observations} == {"step", "jitter"}
    assert found.noise_scale == 70
    with pytest.raises(UsageError, match="too little"):
        recorded(records[:1])


def test_a_timeline_tells_what_was_hidden(tmp_path: Path) -> None:
    events = [
        {"ph": "X", "name": n, "dur": d, "pid": 0}
        for n, d in (("reduce", 3e5), ("reduce", 3e5), ("wait", 1e5), ("wait", 1e5))
    ]
    (tmp_path / "trace.json").write_text("[\n" + ",\n".join(map(json.dumps, events)) + ",\n")
    assert hidden_s(tmp_path / "trace.json") == pytest.approx(0.2)
    (tmp_path / "trace.json").write_text("[\n")
    with pytest.raises(UsageError, match="wait"):
        hidden_s(tmp_path / "trace.json")


@pytest.mark.parametrize(("hosts", "between"), [(["a", "a"], False), (["a", "b"], True)])
def test_bench_gives_alpha_and_beta(hosts: list[str], between: bool, tmp_path: Path) -> None:
    seconds = {"tcp": {str(n): [2 * 5e-6 + n * 1e-9] * 3 for n in (4, 1024, 2**20, 2**24)}}
    (tmp_path / "bench.json").write_text(json.dumps({"hosts": hosts, "seconds": seconds, "chosen": "tcp"}))
    found, network = benched(tmp_path / "bench.json")
    assert found == between
    assert network == pytest.approx(Fabric(5e-6, 1e-9))


@pytest.fixture
def few_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """As what is printed is not looked at closely."""
    monkeypatch.setattr(model, "DRAWS", 100)
    monkeypatch.setattr(model, "BURNT", 20)


@pytest.mark.usefixtures("few_draws")
def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "table.csv").write_text(TABLE)
    options = ["--to", "64", "--samples", "1e4", "--epochs", "10", "--noise-scale", "300:200:400", "--base-batch", "8"]
    picture = tmp_path / "predict.png"
    words = ["predict", str(tmp_path / "table.csv"), *options, "--what-if", "input=none", "--picture", str(picture)]
    assert main(words) == 0
    said = capsys.readouterr().out
    assert "Milliseconds" not in said
    assert "if input=none; measured on 1, 2, 4, 8, 16 ranks" in said
    assert "node-hours" in said
    assert "Checked: fitted up to 8 ranks" in said
    assert max(map(len, said.splitlines()[:-1])) <= 80
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert main([*words[:2], "--to", "4", "--epochs", "3"]) == 2
    assert "--base-batch" in capsys.readouterr().err


@pytest.mark.usefixtures("few_draws")
def test_the_command_on_a_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with RunWriter.create(tmp_path / "run", RunInfo(0.0, ["train"])) as writer:
        writer.append(MemberRecord(0.0, 1, ["a", "a"]))
        for rank in (0, 1):
            writer.append(points(rank, step_s=0.1, wait_s=0.01, input_s=0.0, samples_per_s=320.0, noise_scale=500.0))
    words = ["predict", str(tmp_path / "run"), "--to", "16", "--samples", "1e4", "--epochs", "10", "--base-batch", "64"]
    assert main(words) == 0
    said = capsys.readouterr().out
    assert "Milliseconds of a step; measured on 2 ranks" in said
    assert "spans two hosts" in said
    assert main(["predict", "climate-cori", "--to", "1"]) == 2


@pytest.mark.usefixtures("few_draws")
def test_published_is_checked_and_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", "published", "--picture", str(tmp_path / "published.png")]) == 0
    said = capsys.readouterr().out
    for name in ("climate-cori", "cosmoflow-cori-gpu", "DeepLabv3+, Summit", "VGG-16"):
        assert name in said
    assert (tmp_path / "published.png").stat().st_size > 10_000
