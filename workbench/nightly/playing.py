"""Play a slice: its tests, those that failed once more alone, then its other commands."""

from __future__ import annotations

import os
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

LONGEST_S = 1500.0
"""A command that takes twice as long as a whole slice may is taken to hang."""


def play(name: str, console: Console) -> bool:
    """Whether the slice ``name`` passed; prints what it does and, at the end, what failed."""
    begin_s = time.monotonic()
    if (target := SLICES[name].needs) and _run(["make", target]) != 0:
        console.print(f"{name}: make {target} FAILED")
        return False
    passed = _tests(ROOT / "tests" / "nightly" / name, console)
    for command in SLICES[name].also:
        console.print(f"{name}: {' '.join(command)}", soft_wrap=True)
        passed &= _run(command) == 0
    console.print(f"{name}: {'passed' if passed else 'FAILED'} after {time.monotonic() - begin_s:.0f} s")
    return passed


def _tests(folder: Path, console: Console) -> bool:
    """Run the tests of a slice, two files at a time, and those that failed alone."""
    if not folder.exists():
        return True
    with tempfile.TemporaryDirectory(prefix="nightly-") as directory:
        written = Path(directory, "failures.json")
        code = _pytest(
            "-n", "2", "--dist", "loadfile", "--no-loadscope-reorder", "--failures", str(written), str(folder)
        )
        found = failures.read(written)
    if code == 0:
        return True
    if not found:  # pytest itself failed
        return False
    retried = retrial.retry(found, lambda test: _pytest("-q", "--no-header", test) == 0)
    retrial.report(retried, console)
    return all(each.verdict is AloneVerdict.FLAKY for each in retried)


def _pytest(*arguments: str) -> int:
    return _run([sys.executable, "-m", "pytest", "-p", "workbench.nightly.failures", *arguments])


def _run(command: Sequence[str]) -> int:
    """Run a command in the repository; ends it and all that it started after ``LONGEST_S``."""
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, start_new_session=True) as process:
        try:
            return process.wait(LONGEST_S)
        except subprocess.TimeoutExpired:
            print(f"not done after {LONGEST_S:.0f} s: {' '.join(command)}", flush=True)
            os.killpg(process.pid, 9)
            return process.wait()
