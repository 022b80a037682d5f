"""A training of an example, one worker of which is killed while it trains; another one takes its place.

    history = trained_with_a_kill("examples.jets.train", ["--quick"], tmp_path)
    assert history.problems(length=4096, epochs=2) == []

The history is that of ``farandole.testing.ledger``, which the training writes by its option ``--ledger``.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

from farandole.testing.ledger import Begun, History, Voted, read
from tests.support.frameworks import without_compiler
from tests.support.launching import run_to_end
from tests.support.paths import ROOT
from tests.support.waiting import LOOK_S

ELASTIC = ("--min-np", "1", "--max-np", "2", "--blacklist-cooldown-range", "0", "1", "--start-timeout", "120")


def trained_with_a_kill(
    module: str,
    arguments: Sequence[str],
    folder: Path,
    *,
    steps: int = 5,
    environment: Mapping[str, str] | None = None,
    deadline_s: float = 300.0,
) -> History:
    """Train on two workers, send SIGKILL to rank 1 after ``steps`` steps, and return what all workers did."""
    ledger = folder / "ledger"
    ledger.mkdir()
    python = [sys.executable, "-m"]
    command = [*python, "farandole", "run", "-np", "2", *ELASTIC, *python, module, "--ledger", str(ledger), *arguments]
    found = {**without_compiler(), "OMP_NUM_THREADS": "1", **(environment or {})}
    found["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), found.get("PYTHONPATH", ""))))
    with ThreadPoolExecutor(1) as thread:
        job = thread.submit(run_to_end, command, folder, deadline_s, found)
        pid = None
        while pid is None and not wait([job], LOOK_S).done:
            pid = _pid_of_rank(1, ledger, steps)
        assert pid is not None, f"the job ended before: {job.result().stdout}"
        os.kill(pid, signal.SIGKILL)
        finished = job.result().ok()
    history = read(ledger)
    assert len(history.begun) > 1, f"the worker was killed too late: {finished.stdout}"
    return history


def _pid_of_rank(rank: int, ledger: Path, steps: int) -> int | None:
    """Process that is a rank and has made so many steps."""
    for name, records in read(ledger).workers.items():
        is_rank = any(isinstance(record, Begun) and record.rank == rank for record in records)
        if is_rank and sum(isinstance(record, Voted) for record in records) >= steps:
            return int(name.rpartition("-")[2].partition("at")[0])
    return None
