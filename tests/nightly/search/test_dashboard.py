"""``optuna-dashboard`` on the log of a search, while it runs and afterwards."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.patience import PATIENCE_S
from tests.unit.search.test_study import loss, make
from workbench.ports import listening

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("optuna_dashboard") is None, reason="needs pip install optuna-dashboard"
)

DEADLINE_S = PATIENCE_S


@contextmanager
def dashboard(log: Path) -> Iterator[Callable[[str], Any]]:
    """A dashboard on ``log``; the function asks its interface."""
    # Port 0: one that is free; it is told nowhere, and found as that of the process.
    words = ["-m", "optuna_dashboard._cli", str(log), "--host", "127.0.0.1", "--port", "0"]
    quiet = subprocess.DEVNULL
    process = subprocess.Popen([sys.executable, *words], stdin=quiet, stdout=quiet, stderr=quiet)

    def ask(path: str) -> Any:
        deadline_s = time.monotonic() + DEADLINE_S
        while True:
            try:
                for port in listening([process.pid]):
                    with urllib.request.urlopen(f"http://127.0.0.1:{port}/api{path}", timeout=DEADLINE_S) as answer:
                        return json.load(answer)
            except urllib.error.HTTPError:
                raise
            except OSError:
                pass
            assert process.poll() is None, "the dashboard has ended"
            assert time.monotonic() < deadline_s, "the dashboard does not answer"
            time.sleep(0.05)  # nothing announces that it listens

    try:
        yield ask
    finally:
        process.terminate()
        process.wait(DEADLINE_S)


def test_the_dashboard_shows_the_trials_of_a_search_also_while_it_runs(tmp_path: Path) -> None:
    study, log = make(tmp_path)
    with log, dashboard(tmp_path / "trials.log") as ask:
        for _ in range(3):
            number, _ = study.next()
            assert number is not None
            study.report(number, 1, loss(study, number, 1))
            study.released(number)
        size = (tmp_path / "trials.log").stat().st_size
        [summary] = ask("/studies")["study_summaries"]
        assert (summary["study_name"], summary["directions"]) == ("test", ["minimize"])
        shown = ask(f"/studies/{summary['study_id']}?after=0")
        assert [trial["number"] for trial in shown["trials"]] == [0, 1, 2]
        for trial, row in zip(shown["trials"], study.rows, strict=True):
            assert trial["state"] == "Running"  # a trial that pauses may go on
            assert trial["intermediate_values"] == [{"step": 1, "value": row.value}]
            assert trial["params"][0]["name"] == "x"
            assert float(trial["params"][0]["param_internal_value"]) == row.parameters["x"]
        while not study.is_over:
            number, _ = study.next()
            assert number is not None
            epoch = study.rows[number].epoch
            while study.report(number, epoch := epoch + 1, loss(study, number, epoch))[0]:
                pass
            study.released(number)
        study.close()
        deadline_s = time.monotonic() + DEADLINE_S
        while True:  # it looks again every few seconds at most
            states = [trial["state"] for trial in ask(f"/studies/{summary['study_id']}?after=0")["trials"]]
            if set(states) == {"Complete", "Pruned"} and len(states) == 9:
                break
            assert time.monotonic() < deadline_s, states
            time.sleep(0.1)
        assert (tmp_path / "trials.log").stat().st_size > size
    again, log = make(tmp_path)
    with log:
        assert [row.phase for row in again.rows] == [row.phase for row in study.rows]
