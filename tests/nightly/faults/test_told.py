"""Workers that are told to end, or interrupted, while they leave a generation and join the next one."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT, SUPPORT
from tests.support.patience import PATIENCE_S

WORKER = SUPPORT / "elastic" / "told_worker.py"
DEADLINE_S = 4 * PATIENCE_S


@pytest.mark.parametrize("every", [3, 1], ids="each-{}".format)
@pytest.mark.parametrize("number", ["SIGTERM", "SIGINT"])
def test_at_every_moment_it_ends_and_leaves_nothing_that_something_waits_for(
    tmp_path: Path, number: str, every: int
) -> None:
    words = ["-np", "1", "--min-np", "1", "--max-np", "1", sys.executable, "-m", "tests.support.elastic.told_worker"]
    done = subprocess.run(
        [sys.executable, "-m", "farandole", "run", *words, number, str(every)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=DEADLINE_S,
        check=False,
    )
    found = re.search(r"moments (\d+), ended at (\d+), threads (\d+)", done.stdout)
    assert found, f"{done.stdout[-2000:]}\n{done.stderr[-6000:]}"
    moments, ended, threads = map(int, found.groups())
    assert moments * every > 200
    # The first moments precede the training function, and how many the last call has depends on other threads.
    assert ended >= moments - 30, "the training function has returned, though it is over soon after few of them"
    assert threads == (number == "SIGTERM"), done.stdout
    assert done.returncode == 0
