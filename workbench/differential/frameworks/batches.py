"""Jobs that execute many plans each, on the side that starts the jobs.

found = run(plans, size=2, deadline_s=60.0)     # found.results[i][rank], found.ending of plan len(found.results)

A job without a new result within the deadline of a plan is ended, and so is a job that has lost a rank.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import final

import msgspec

from workbench.differential.frameworks.plan import FrameworkPlan, RankResult
from workbench.differential.frameworks.ranks import Batch
from workbench.quick_xla import QUICK

START_S = 120.0
"""Time for the import of a framework on a busy machine."""

LOOK_EVERY_S, END_S, EVIDENCE = 0.1, 10.0, 8000

ENVIRONMENT = {
    "FARANDOLE_STALL_WARNING_S": "10",
    "FARANDOLE_STALL_SHUTDOWN_S": "30",
    "FARANDOLE_START_TIMEOUT_S": "60",
    "OMP_NUM_THREADS": "1",
    "TF_NUM_INTRAOP_THREADS": "1",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "TF_ENABLE_ONEDNN_OPTS": "0",
    "XLA_FLAGS": QUICK,
}


@final
class BatchFindings(msgspec.Struct, frozen=True):
    """Results of the plans that every rank has finished; what happened in the next plan, and the output of the job."""

    results: list[list[RankResult]]
    ending: str = ""
    evidence: str = ""


def run(plans: Sequence[FrameworkPlan], size: int, deadline_s: float) -> BatchFindings:
    """Execute ``plans`` of one framework in one job."""
    with tempfile.TemporaryDirectory(prefix="farandole-fuzz-") as name:
        folder = Path(name)
        (folder / "plans").write_bytes(msgspec.msgpack.encode(Batch(list(plans), deadline_s)))
        command = [sys.executable, "-m", "farandole", "run", "-np", str(size), sys.executable, "-m"]
        command += ["workbench.differential.frameworks.ranks", name]
        with (folder / "output").open("wb") as output:
            job = subprocess.Popen(
                command,
                env={**os.environ, **ENVIRONMENT},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                ending = _watch(job, folder, len(plans), size, deadline_s)
            finally:
                _end(job)
        results = _results(folder, len(plans), size)
        printed = (folder / "output").read_bytes()[-EVIDENCE:].decode(errors="replace")
    if len(results) == len(plans):
        return BatchFindings(results)
    return BatchFindings(results, ending or f"the job ended with {job.returncode}", printed)


def _watch(job: subprocess.Popen[bytes], folder: Path, plans: int, size: int, deadline_s: float) -> str:
    """Wait until the job has exited, or has shown nothing new for too long; returns the error, if any."""
    done, patience_s = 0, START_S + deadline_s
    until = time.monotonic() + patience_s
    while job.poll() is None:
        now = sum(1 for each in folder.iterdir() if each.suffix[1:].isdigit())
        if now > done:
            done, until = now, time.monotonic() + (deadline_s if now < plans * size else END_S)
        if time.monotonic() > until:
            return "hang"
        time.sleep(LOOK_EVERY_S)
    return ""


def _end(job: subprocess.Popen[bytes]) -> None:
    """End the launcher, which ends its workers; kill the rest."""
    if job.poll() is None:
        job.terminate()
        try:
            job.wait(END_S)
        except subprocess.TimeoutExpired:
            os.killpg(job.pid, signal.SIGKILL)  # not reaped yet: the number is still this job's
            job.wait()


def _results(folder: Path, plans: int, size: int) -> list[list[RankResult]]:
    found: list[list[RankResult]] = []
    for i in range(plans):
        paths = [folder / f"{i}.{rank}" for rank in range(size)]
        if not all(path.exists() for path in paths):
            break
        found.append([msgspec.msgpack.decode(path.read_bytes(), type=RankResult) for path in paths])
    return found
