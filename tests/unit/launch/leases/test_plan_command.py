"""``farandole plan`` as people type it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from farandole.cli import main
from farandole.errors import UsageError
from farandole.launch.leases.plan_command import limits_for, rules_of
from workbench.leases.synthetic_trace import lines, synthetic_trace


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("trace") / "synthetic.txt"
    path.write_text("".join(f"{line}\n" for line in lines(synthetic_trace(days=2, nodes=16, seed=5))))
    return path


def test_a_trace_is_simulated_beside_static_sizes(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--trace", str(trace), "--begin", "6"]) == 0
    printed = capsys.readouterr().out
    assert "by leases" in printed
    assert "on 16 nodes" in printed
    assert "ResNet" not in printed
    assert max(map(len, printed.splitlines())) <= 80


def test_the_numbers_are_there_for_programs(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--trace", str(trace), "--json", "--static", "2,4", "--mode", "backfill"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in rows] == ["by leases", "2", "4"]
    assert all(row["node_hours"] > 0 for row in rows)


def test_a_policy_and_a_training_are_read(trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "p.toml").write_text('max-np = 4\nbatch = "grow"\n')
    (tmp_path / "t.toml").write_text("samples = 2e6\n")
    asked = ["--policy", str(tmp_path / "p.toml"), "--training", str(tmp_path / "t.toml")]
    assert main(["plan", "--trace", str(trace), *asked, "--explain"]) == 0
    printed = capsys.readouterr().out
    assert "2M samples, steps of 64 samples for each worker" in " ".join(printed.split())
    assert "Release 1_0" in printed
    assert "│ 4 " in printed
    assert "│ 8 " not in printed


def test_a_journal_is_written_and_replayed(trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    journal = tmp_path / "leases.journal"
    assert main(["plan", "--trace", str(trace), "--static", "2", "--journal", str(journal)]) == 0
    capsys.readouterr()
    assert main(["plan", "--replay", str(journal)]) == 0
    assert "none with another outcome" in capsys.readouterr().out
    every = journal.read_text().splitlines(keepends=True)
    spoilt = [line.replace('"growth-at":1.25', '"growth-at":9.0') for line in every]
    journal.write_text("".join(spoilt))
    assert main(["plan", "--replay", str(journal)]) == 1
    assert "and this version decides" in capsys.readouterr().out


def test_a_picture_is_drawn(trace: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "plan.png"
    assert main(["plan", "--trace", str(trace), "--save", str(path)]) == 0
    assert path.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (["--trace", "nowhere.txt"], "the trace nowhere.txt cannot be read"),
        (["--replay", "nowhere.journal"], "the journal nowhere.journal cannot be read"),
        (["--trace", "TRACE", "--policy", "nowhere.toml"], "the policy file nowhere.toml is not there"),
        (["--trace", "TRACE", "--static", "many"], "--static 'many'"),
        (["--trace", "TRACE", "--begin", "1000"], "--begin 1000"),
        (["--trace", "TRACE", "--when", "a>1"], "--when was given 1 times and --then 0 times"),
        (["--trace", "TRACE", "--when", "a", "--then", "np=1"], "--when 'a' is no condition"),
    ],
)
def test_what_cannot_be_is_answered(
    trace: Path, capsys: pytest.CaptureFixture[str], asked: list[str], said: str
) -> None:
    assert main(["plan", *(str(trace) if word == "TRACE" else word for word in asked)]) == 2
    assert said in capsys.readouterr().err


def test_rules_of_the_command_line_are_added_to_those_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "p.toml"
    path.write_text("rules = [{ when = 'a>1', then = 'np=2' }]\n")
    limits = limits_for(str(path), rules_of(["b<0"], ["nice=5"]), site=tmp_path / "none.toml")
    assert [str(rule) for rule in limits.rules] == ["--when 'a>1' --then 'np=2'", "--when 'b<0' --then 'nice=5'"]


def test_the_site_bounds_the_command(tmp_path: Path) -> None:
    (tmp_path / "site.toml").write_text("max-np = 4\n")
    (tmp_path / "p.toml").write_text("max-np = 8\n")
    with pytest.raises(UsageError, match=r"p.toml: max-np = 8 is wider .* in .*site.toml: write from 1 to 4"):
        limits_for(str(tmp_path / "p.toml"), [], site=tmp_path / "site.toml")
