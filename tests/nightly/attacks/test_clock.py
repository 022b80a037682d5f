"""A static job whose wall clock jumps by an hour, to and fro, while its ranks wait for each other."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.support.launching import Launch
from workbench.attacks.conditions import jumping_clock

LATE = """
import time
import numpy as np
from farandole.runtime.session.init import current, init, shutdown
from workbench.jobs import NumpyCalls

init()
do, rank = NumpyCalls(), current().topology.rank
began, ahead = time.time() - time.monotonic(), set()
for step in range(60):
    time.sleep(0.02)  # the clock jumps every 0.3 s
    do.allreduce("step", np.ones(2))
    ahead.add(round((time.time() - time.monotonic() - began) / 3600))
if rank:
    time.sleep(1.5)  # late, but not by more than a report needs
do.allreduce("late", np.ones(300_000, np.float32))
print("jumped" if ahead & {-1, 1, 2, -2} else ahead, flush=True)
shutdown()
"""


def test_no_wait_asks_the_wall_clock(launch: Launch, tmp_path: Path) -> None:
    if not (shutil.which("cc") or shutil.which("gcc")):
        pytest.skip("no C compiler")
    limits = ("--stall-check-warning-time-seconds", "30", "--stall-check-shutdown-time-seconds", "60")
    with jumping_clock(tmp_path) as variables:
        done = launch(2, LATE, options=limits, environment=variables).ok()
    assert done.lines() == ["jumped", "jumped"]
    assert "stall" not in done.stderr.lower()
