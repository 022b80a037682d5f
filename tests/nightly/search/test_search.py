"""Searches with real workers: what is tried, what comes of faults, and what is left behind."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

import farandole
from farandole.errors import ControlError, UsageError
from farandole.launch.providers.local import LocalProvider
from farandole.launch.providers.provider import Provider
from farandole.search.api import SearchResult
from tests.support.launching import run_to_end
from tests.support.paths import ROOT
from tests.support.patience import PATIENCE_S
from tests.support.search import objectives


def search(function: Callable[[Any], Any], folder: Path, **options: Any) -> SearchResult:
    """A small search that shows nothing."""
    told = {"space": {"x": (0.0, 1.0)}, "trials": 9, "workers": 1, "pool": 2, "epochs": 9, **options}
    result = farandole.search(function, folder=folder, **{"progress": False, **told})
    assert isinstance(result, SearchResult)
    return result


def test_a_worker_and_then_the_search_are_killed_and_each_trial_is_there_once(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.support.search.search_asha"]
    run_to_end(command, tmp_path, 150.0, {"TMPDIR": str(tmp_path)}).ok()


def test_a_trial_grows_while_it_trains_with_the_same_bits(tmp_path: Path) -> None:
    """The pause is what a loaded machine makes of it; ``search_resize --pause-s 0.3`` is for an idle one."""
    command = [sys.executable, "-m", "tests.support.search.search_resize", "--pause-s", "30"]
    run_to_end(command, tmp_path, 240.0, {"TMPDIR": str(tmp_path)}).ok()


def test_a_search_of_functions_without_ranks(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    result = search(objectives.curve, tmp_path / "run", progress=True)
    assert result.is_over
    assert result.best is not None
    assert result.best.value == min(trial.value or 0.0 for trial in result.trials if trial.phase == "complete")
    assert {trial.phase for trial in result.trials} == {"complete", "pruned"}
    assert result.epochs <= 0.45 * 81
    shown = capfd.readouterr().err
    assert "trial 0 begins" in shown
    assert max(map(len, shown.partition("9/9 trials")[2].splitlines())) <= 80
    asked = msgspec.json.decode((tmp_path / "run" / "run.json").read_bytes())
    assert asked["versions"]["optuna"].startswith("5.")
    for path in (tmp_path / "run").rglob("*"):
        assert path.stat().st_mode & 0o077 == 0, path
        assert b"FARANDOLE_KEY" not in (path.read_bytes() if path.is_file() else b"")


def test_the_best_is_the_largest_where_that_is_asked_for(tmp_path: Path) -> None:
    result = search(objectives.value_only, tmp_path / "run", direction="maximize", advisor="random", epochs=1)
    assert result.best is not None
    assert result.best.value == max(trial.value or 0.0 for trial in result.trials)


def test_a_trial_that_raises_has_failed_and_the_others_go_on(tmp_path: Path) -> None:
    listed = [{"x": x / 10} for x in (1, 9, 2, 8)]
    result = search(objectives.sometimes_raises, tmp_path / "run", trials=9, advisor=listed, epochs=1)
    assert [trial.phase for trial in result.trials] == ["complete", "failed", "complete", "failed"]
    assert "x is too large" in result.trials[1].why
    assert "RuntimeError: x is too large" in (tmp_path / "run" / "output" / "trial-0001.txt").read_text()


def test_the_same_call_goes_on_and_another_is_refused(tmp_path: Path) -> None:
    first = search(objectives.curve, tmp_path / "run", trials=3)
    again = search(objectives.curve, tmp_path / "run", trials=3)
    assert again.trials == first.trials
    with pytest.raises(UsageError, match="seed=0, and now it is 1"):
        search(objectives.curve, tmp_path / "run", trials=3, seed=1)


def test_more_trials_and_epochs_go_on_from_what_there_is(tmp_path: Path) -> None:
    options: dict[str, Any] = {"advisor": "random", "min_epochs": 1}
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "calm").touch()
    first = search(objectives.ranks, tmp_path / "run", trials=3, epochs=3, **options)
    again = search(objectives.ranks, tmp_path / "run", trials=5, epochs=9, **options)
    assert [trial.parameters for trial in again.trials[:3]] == [trial.parameters for trial in first.trials]
    assert len(again.trials) == 5
    assert first.best is not None
    assert again.best is not None
    assert again.best.values.keys() == set(range(1, 10))
    for trial in again.trials:  # the last epoch of the first search has a checkpoint, too
        epochs = (
            (tmp_path / "run" / "checkpoints" / f"trial-{trial.number:04d}" / "epochs.txt").read_text().splitlines()
        )
        assert [int(line.split()[0]) for line in epochs] == list(trial.values)
    with pytest.raises(UsageError, match="trials=5, and now it is 3; epochs=9, and now it is 3: ask the same, with as"):
        search(objectives.ranks, tmp_path / "run", trials=3, epochs=3, **options)


def test_the_end_of_its_time_leaves_the_rest_for_the_next_call(tmp_path: Path) -> None:
    result = search(objectives.curve, tmp_path / "run", deadline_s=1e-9)
    assert not result.is_over
    assert search(objectives.curve, tmp_path / "run").is_over


def test_rank_1_is_killed_and_rank_0_goes_on(tmp_path: Path) -> None:
    result = search(objectives.loses_rank_1, tmp_path / "run", trials=1, workers=2, epochs=4, advisor=[{"x": 0.5}])
    assert result.trials[0].phase == "complete"
    assert (tmp_path / "run" / "killed-rank-1").exists()
    epochs = (tmp_path / "run" / "checkpoints" / "trial-0000" / "epochs.txt").read_text().splitlines()
    assert len({line.split()[1] for line in epochs}) == 1, "rank 0 was to be the same process all the time"
    assert [int(line.split()[0]) for line in epochs] == [1, 2, 3, 4]


def test_a_trial_gives_workers_back_that_its_noise_scale_is_not_worth(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    options: dict[str, Any] = {"workers": (1, 2), "advisor": [{"x": 0.5}], "progress": True}
    search(objectives.measures, tmp_path / "run", trials=1, epochs=8, min_epochs=8, **options)
    lines = (tmp_path / "run" / "checkpoints" / "trial-0000" / "sizes.txt").read_text().splitlines()
    sizes = [int(line.split()[1]) for line in lines]
    assert (sizes[0], sizes[-1]) == (2, 1), lines
    assert sizes == sorted(sizes, reverse=True), "it was given what it had given back"
    assert "trial 0: 2 -> 1 workers: more would not help" in capfd.readouterr().err


def test_workers_that_cannot_begin_end_the_search(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("raise SystemExit(7)")
    (tmp_path / "run" / "output").mkdir(parents=True)
    pool = LocalProvider(2, tmp_path / "workers.txt", [str(tmp_path)])
    with pytest.raises(ControlError, match="end before they have begun: the last one exited with code"):
        search(objectives.curve, tmp_path / "run", pool=pool)


def test_ctrl_c_leaves_no_worker(tmp_path: Path) -> None:
    code = "import farandole, tests.support.search.objectives as o\n"
    code += f"farandole.search(o.waits, {{'x': (0.0, 1.0)}}, 2, 1, 2, folder={str(tmp_path / 'run')!r})"
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        line = next(line for line in process.stderr if "trial 1 begins" in line)
        assert line
        process.send_signal(signal.SIGINT)
        rest = process.stderr.read()  # until the last worker has closed it, too
        assert process.wait(PATIENCE_S) in (1, -signal.SIGINT), rest
        assert "KeyboardInterrupt" in rest


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"trials": 0}, "trials=0"),
        ({"workers": (2, 1)}, "fewest and the most"),
        ({"workers": (3, 4)}, "pool=2"),
        ({"pool": 0}, "no worker"),
        ({"direction": "up"}, "minimize or maximize"),
        ({"advisor": "grid"}, "random, tpe"),
        ({"advisor": [{"x": 7}]}, "is not in"),
        ({"epochs": 0}, "epochs=0"),
        ({"deadline_s": 0}, "deadline_s"),
        ({"engin": "shm"}, "engine"),
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=words):
        search(objectives.curve, tmp_path / "run", **options)


def test_the_package_can_be_called_and_loads_nothing() -> None:
    code = "import farandole, sys; s = farandole.search; print(callable(s), *sys.modules)"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert told[0] == "True"
    assert not {"optuna", "rich", "zmq", "farandole.search.api"} & set(told)


def test_all_that_is_exported_is_there() -> None:
    search_module = sys.modules["farandole.search"]
    assert all(getattr(search_module, name) for name in search_module.__all__)
    assert (search_module.Pool, search_module.LocalPool) == (Provider, LocalProvider)
