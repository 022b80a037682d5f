"""Reports of scripts: from an elastic job to people and rules, and nothing where nobody listens."""

from __future__ import annotations

import math
import subprocess
import sys
from typing import Any

import pytest

from farandole.errors import UsageError
from farandole.largebatch.report import report
from farandole.launch.hosts.run_folder import RunFolder
from farandole.launch.leases.job_arrays import POLICY
from tests.nightly.launcher.test_elastic_jobs import generation
from tests.nightly.leases.test_leases import Lend, folder, lend
from tests.support.launch.running import RunningJob, StartJob
from tests.support.patience import PATIENCE_S

__all__ = ["lend"]

TRAINS = """
import os
from pathlib import Path
import numpy as np
from farandole.collective import ReduceOp
from farandole.elastic.worker.run import run
from farandole.elastic.worker.state import ObjectState
from farandole.largebatch.report import report
from farandole.runtime.session.init import current, init
from workbench.jobs import NumpyCalls

init()

@run
def train(state):
    who, do = current().topology, NumpyCalls()
    print(f"worker {os.environ['FARANDOLE_WORKER_ID']} trains: generation {who.generation}, rank {who.rank} of "
          f"{who.size}, step {state.step}, process {os.getpid()}", flush=True)
    ends = np.zeros(16, np.int64)
    while not ends[0]:
        ends[:] = Path("end").exists()
        do.allreduce("ends", ends, ReduceOp.MAX)
        state.step += 1
        report(val_acc=0.95 if Path("good").exists() else 0.5)
        report(**{f"from_rank_{who.rank}": 1})
        state.commit()

train(ObjectState(step=0))
"""

STATIC = """
from farandole.largebatch.report import report
from farandole.runtime.session.init import init, shutdown

init()
report(val_acc=0.95)
print("has reported", flush=True)
shutdown()
"""


def shown(running: RunningJob) -> str:
    """What ``farandole ps`` prints."""
    command = [sys.executable, "-m", "farandole", "ps", str(folder(running))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stderr
    return " ".join(done.stdout.split())


def test_a_metric_is_shown_and_has_a_lease_leave_by_a_rule(job: StartJob, lend: Lend, tmp_path: Any) -> None:
    run = RunFolder.create(tmp_path / "run")
    (run.path / POLICY).write_text("[[rules]]\nwhen = 'val_acc>=0.9'\nthen = 'np=1'\n")
    running = job("--run-folder", "run", "--min-np", "1", "--max-np", "4", python=TRAINS)
    generation(running, lambda number, _: number == 1)
    agent = lend(running, "812", 0)
    grown = generation(running, lambda _, size: size == 2)
    running.until(lambda: "val_acc 0.5" in shown(running), "for the metric")
    assert "from_rank_0 1" in shown(running)
    assert "from_rank_1" not in shown(running)
    (running.folder / "good").touch()
    generation(running, lambda number, size: size == 1 and number > grown[0].generation)
    assert agent.wait(PATIENCE_S) == 0
    assert "a rule holds from now on: --when 'val_acc>=0.9' --then 'np=1'" in shown(running)
    (running.folder / "end").touch()
    assert running.end() == 0


def test_in_a_static_job_nothing_happens(job: StartJob) -> None:
    running = job("-np", "2", python=STATIC)
    assert running.end() == 0
    assert running.stdout.count("has reported") == 2


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, None, "high", [1.0]])
def test_what_is_no_finite_number_is_refused(value: Any) -> None:
    with pytest.raises(UsageError, match=r"report\(loss="):
        report(loss=value)


@pytest.mark.parametrize("share", [-0.1, 1.1, math.nan])
def test_a_share_that_is_none_is_refused(share: float) -> None:
    with pytest.raises(UsageError, match="from 0 to 1"):
        report(remaining=share)
