"""Play a slice: its tests, failed ones again alone, then its other commands."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from workbench.nightly import failures, retrial
from workbench.nightly.retrial import AloneVerdict
from workbench.nightly.slices import ROOT, SLICES

SOME_FAILED = 1
"""Exit status of pytest if tests failed and all were run."""
LONGEST_S = 1500.0
"""A command that takes twice the limit of a slice counts as hung."""


def play(name: str, console: Console) -> bool:
    """Play the slice ``name``; true if it passed. Prints the steps and, at the end, the failures."""
    begin_s = time.monotonic()
    if missing := [tool for tool in SLICES[name].tools if shutil.which(tool) is None]:
        console.print(f"{name}: not possible here, as {', '.join(missing)} is missing")
        return True
    if (target := SLICES[name].needs) and _run(["make", target]) != 0:
        console.print(f"{name}: make {target} FAILED")
        return False
    passed = play_tests(ROOT / "tests" / "nightly" / name, console)
    for command in SLICES[name].also:
        console.print(f"{name}: {' '.join(command)}", soft_wrap=True)
        passed &= _run(command) == 0
    console.print(f"{name}: {'passed' if passed else 'FAILED'} after {time.monotonic() - begin_s:.0f} s")
    return passed


def play_tests(folder: Path, console: Console, root: Path = ROOT) -> bool:
    """Run the tests of a slice, two files at a time, and failed ones again alone; node ids begin at ``root``."""
    if not folder.exists():
        return True
    code, run = _pytest(root, "-n", "2", "--dist", "loadfile", "--no-loadscope-reorder", "-rs", str(folder))
    if code == 0:
        if not run.passed:
            console.print(f"{folder.name}: nothing ran, {run.skipped} tests were skipped for the reasons above")
        return True
    if code != SOME_FAILED or not run.failed:  # pytest itself failed, or was killed: other failures are unknown
        return False
    retried = retrial.retry(run.failed, lambda test: _passes_alone(root, test))
    retrial.report(retried, console)
    return all(each.verdict is AloneVerdict.FLAKY for each in retried)


def _passes_alone(root: Path, test: str) -> bool:
    code, run = _pytest(root, "-q", "--no-header", "-rs", test)
    return code == 0 and run.passed > 0  # a skipped test has not passed


def _pytest(root: Path, *arguments: str) -> tuple[int, failures.TestRun]:
    """Exit status, and the record of the run."""
    with tempfile.TemporaryDirectory(prefix="nightly-") as directory:
        path = Path(directory, "run.json")
        plugin = ["-p", "workbench.nightly.failures", "--failures", str(path)]
        code = _run([sys.executable, "-m", "pytest", *plugin, *arguments], root)
        return code, failures.read(path)


def _run(command: Sequence[str], cwd: Path = ROOT) -> int:
    """Run a command; ends its session after ``LONGEST_S``, and when this process must end."""
    with subprocess.Popen(command, cwd=cwd, stdin=subprocess.DEVNULL, start_new_session=True) as process:
        try:
            return process.wait(LONGEST_S)
        except BaseException as error:
            os.killpg(process.pid, signal.SIGKILL)
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            print(f"not done after {LONGEST_S:.0f} s: {' '.join(command)}", flush=True)
            return process.wait()
