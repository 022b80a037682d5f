"""Questions and orders of people to runs: folders that are not theirs, or no folders of runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from farandole.cli import main
from tests.support.patience import PATIENCE_S

UNPRIVILEGED = ["setpriv", "--bounding-set=-dac_override,-dac_read_search", "--inh-caps=-dac_override,-dac_read_search"]
"""Start of a command in which root may not read what others may not."""


@pytest.mark.parametrize("words", ["ps", "stop", "scale 2", "release", "join", "runs list"])
def test_a_folder_that_is_closed_is_told_in_one_line(words: str, tmp_path: Path) -> None:
    """There were three chained tracebacks."""
    closed = tmp_path / "closed"
    closed.mkdir(mode=0)
    verb, *rest = words.split()
    asked = [verb, *rest, str(closed / "run")] if verb == "runs" else [verb, str(closed / "run"), *rest]
    command = [*(UNPRIVILEGED if os.geteuid() == 0 else []), sys.executable, "-m", "farandole", *asked]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode in (1, 2, 3)
    assert done.stderr.startswith(f"farandole {verb}: ")
    assert done.stderr.endswith("Permission denied\n")
    assert done.stderr.count("\n") == 1
    assert str(closed / "run") in done.stderr


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("none", "is its name right (farandole ps shows those of ~/.farandole/runs), and does it"),
        ("file", "is its name right?"),
    ],
)
def test_a_name_that_is_no_runs_is_doubted(
    kind: str, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if kind == "file":
        (tmp_path / "run").touch()
    assert main(["ps", str(tmp_path / "run")]) == 2
    assert told in capsys.readouterr().err


def test_a_run_is_told_by_its_name_where_nobody_has_named_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))  # no Slurm
    monkeypatch.chdir(tmp_path)
    run = tmp_path / ".farandole" / "runs" / "train-8f3a"
    assert main(["ps"]) == 0
    assert "no run goes on in" in capsys.readouterr().out
    run.mkdir(parents=True, mode=0o700)
    assert main(["ps"]) == 0
    assert capsys.readouterr().out.endswith("over: train-8f3a\n")
    assert main(["ps", "train-8f3a"]) == 2
    assert f"there is no {run}/run.json" in capsys.readouterr().err
    (tmp_path / "train-8f3a").mkdir(mode=0o700)
    assert main(["scale", "train-8f3a", "2"]) == 2
    assert f"there is no {tmp_path}/train-8f3a/run.json" in capsys.readouterr().err


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_the_run_of_somebody_else_is_named_as_his(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "run").mkdir(mode=0o700)
    os.chown(tmp_path / "run", 12345, -1)
    assert main(["scale", str(tmp_path / "run"), "2"]) == 2
    assert "belongs to user 12345, who alone can" in capsys.readouterr().err
