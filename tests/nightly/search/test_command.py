"""``farandole search``, as it is typed."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from farandole.cli import main
from tests.support.launching import Finished, run_to_end
from tests.support.monitor.page import monitors, until
from tests.support.patience import PATIENCE_S

SCRIPT = """
import numpy as np

def train(trial):
    for epoch in range(1, trial.epochs + 1):
        value = abs(trial.parameters["x"] - 0.5) + 1 / epoch
        trial.report(np.float64(value), epoch, accuracy=np.float32(0.5), worst=float("nan"))

def other(trial):
    return trial.parameters["x"]
"""


def write(folder: Path) -> None:
    (folder / "tune.py").write_text(SCRIPT)
    (folder / "space.toml").write_text("[x]\nlow = 0.0\nhigh = 1.0\n")


def farandole(folder: Path, *words: str) -> Finished:
    """Run a command in a folder with a script and a space."""
    write(folder)
    return run_to_end([sys.executable, "-m", "farandole", *words], folder, 100.0)


def test_a_search_shows_its_trials_and_the_best(tmp_path: Path) -> None:
    command = [
        "search",
        "tune.py",
        "space.toml",
        "--trials",
        "6",
        "--pool",
        "2",
        "--epochs",
        "3",
        "--folder",
        "run",
        "--save",
        "search.png",
    ]
    done = farandole(tmp_path, *command).ok()
    assert done.stdout.startswith("the best is trial ")
    assert "6/6 trials" in done.stderr
    assert (tmp_path / "run" / "trials.log").exists()
    assert (tmp_path / "search.png").stat().st_size > 10_000
    again = farandole(tmp_path, *command).ok()  # nothing is left to be done
    assert again.stdout == done.stdout


def test_another_function_and_an_end_in_time(tmp_path: Path) -> None:
    done = farandole(tmp_path, "search", "tune.py:other", "space.toml", "--trials", "2", "--maximize").ok()
    assert "the best is trial" in done.stdout
    late = farandole(tmp_path, "search", "tune.py", "space.toml", "--deadline", "0.000001", "--folder", "late")
    assert late.code == 1
    assert late.stdout == "its time was over; to go on, say the same with --folder late\n"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["none.py", "space.toml"], "there is no script none.py"),
        (["tune.py:nothing", "space.toml"], "with one of train, other"),
        (["tune.py", "none.toml"], "none.toml cannot be read"),
        (["tune.py", "space.toml", "--workers", "1,2,3"], "as in 1,4"),
        (["tune.py", "space.toml", "--workers", "4"], "pool=1"),
    ],
)
def test_what_cannot_be_is_answered_with_what_to_type(words: list[str], told: str, tmp_path: Path) -> None:
    done = farandole(tmp_path, "search", *words)
    assert (done.code, done.stderr.startswith("farandole search: ")) == (2, True), done.stderr
    assert told in done.stderr


def test_its_help_fits_a_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        main(["search", "--help"])
    text = capsys.readouterr().out
    assert "trial.report(loss, epoch)" in text
    assert max(map(len, text.splitlines())) <= 80


def test_the_pool_of_a_search_is_shown_not_scaled_and_stopped(tmp_path: Path) -> None:
    write(tmp_path)
    command = [sys.executable, "-m", "farandole", "search", "tune.py", "space.toml", "--pool", "leases"]
    search = subprocess.Popen([*command, "--folder", "run", "--trials", "4"], cwd=tmp_path, stderr=subprocess.PIPE)
    try:
        assert search.stderr is not None
        assert b"nodes join this search by: farandole join" in search.stderr.readline()
        shown = farandole(tmp_path, "ps", "run/pool").ok().stdout
        assert "search run: 0 workers; 0/4 trials: none yet" in shown
        assert f"no node is lent: farandole join {tmp_path}/run/pool" in shown
        refused = farandole(tmp_path, "scale", "run/pool", "3")
        assert refused.code == 2
        assert "cancel some" in refused.stderr
        assert "the search ends" in farandole(tmp_path, "stop", "run/pool").ok().stdout
        search.communicate(timeout=PATIENCE_S)
    finally:
        search.kill()
        search.communicate()


def test_searches_are_listed_compared_and_drawn_as_runs_are(tmp_path: Path) -> None:
    words = ["search", "tune.py", "space.toml", "--trials", "4", "--pool", "2", "--epochs", "3"]
    for name in ("a", "b"):
        farandole(tmp_path, *words, "--folder", f"runs/{name}", "--seed", str(ord(name))).ok()
    long = "runs/20261126-170919-tune-the-rates"
    (tmp_path / "runs" / "b").rename(tmp_path / long)
    listed = farandole(tmp_path, "runs", "list", "runs").ok().stdout
    assert "4/4" in listed
    assert Path(long).name in listed, "whole, as it is an argument of the others, on 80 columns"
    assert max(map(len, listed.splitlines())) <= 80
    (tmp_path / long).rename(tmp_path / "runs" / "b")
    compared = farandole(tmp_path, "runs", "compare", "runs/a", "runs/b").ok().stdout
    assert any(line.split() == ["seed", "97", "98"] for line in compared.splitlines()), compared
    assert compared.count("(trial ") == 2
    assert any("last accuracy" in line and line.split()[-2:] == ["0.5", "0.5"] for line in compared.splitlines())
    drawn = farandole(tmp_path, "runs", "plot", "runs/a", "runs/b", "--out", "trials.png").ok()
    assert drawn.stdout == "trials.png: trials, accuracy, worst\n"
    assert (tmp_path / "trials.png").stat().st_size > 10_000


def test_without_optuna_a_search_says_what_to_install(tmp_path: Path) -> None:
    write(tmp_path)
    words = "import sys; sys.modules['optuna'] = None; from farandole.cli import main; sys.exit(main(sys.argv[1:]))"
    done = run_to_end([sys.executable, "-c", words, "search", "tune.py", "space.toml"], tmp_path, 100.0)
    assert (done.code, done.stdout) == (2, "")
    assert done.stderr == "farandole search: a search needs Optuna 5: type pip install 'farandole[search]'\n"


@pytest.mark.parametrize("stay_s", [3600, 0])
def test_a_page_outlives_its_search_if_it_is_to_stay(tmp_path: Path, stay_s: int) -> None:
    words = ["search", "tune.py", "space.toml", "--trials", "2", "--folder", "run", "--live"]
    farandole(tmp_path, *words, "--live-stay", str(stay_s)).ok()
    left = monitors(tmp_path)
    try:
        assert len(left) == bool(stay_s)
        assert (tmp_path / "run" / "live.link").exists() == bool(stay_s)
    finally:
        for each in left:
            each.send_signal(signal.SIGINT)
    until(lambda: not monitors(tmp_path), "for the end of the page")


def test_a_page_cannot_listen_where_others_read_along(tmp_path: Path) -> None:
    words = ["search", "tune.py", "space.toml", "--folder", "run", "--live", "--live-listen", "0.0.0.0:0"]
    assert "others can read along" in farandole(tmp_path, *words).stderr
