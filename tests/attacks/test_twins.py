"""Jobs of one user, started at the same moment in one folder, under the same names: none hears of another one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

DEADLINE_S = 150.0
SCRIPT = """
import sys
import numpy as np
from farandole.runtime.session.init import current, init, shutdown
from farandole.testing.jobs import NumpyCalls

init()
job, size, do = float(sys.argv[1]), current().topology.size, NumpyCalls()
for count in 30 * (8, 100_000):
    values = np.full(count, job)
    do.allreduce(f"same {count}", values)
    assert (values == size * job).all(), values
print("fine", size, flush=True)
shutdown()
"""


def test_jobs_of_the_same_moment_do_not_hear_each_other(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    run = [sys.executable, "-m", "farandole", "run", "-np", "2"]
    jobs = [
        subprocess.Popen(
            [*run, *options, sys.executable, str(script), job], cwd=tmp_path, stdout=-1, stderr=subprocess.STDOUT
        )
        for job, options in (("1", []), ("7", []), ("11", ["--min-np", "1"]), ("13", ["--engine", "tcp"]))
    ]
    try:
        said = [job.communicate(timeout=DEADLINE_S)[0].decode() for job in jobs]
    except subprocess.TimeoutExpired:
        pytest.fail("not all of them ended")
    finally:
        for job in jobs:
            job.kill()
            job.wait()
    assert [job.returncode for job in jobs] == [0] * len(jobs), said
    assert all(text.count("fine 2") == 2 for text in said), said
    assert [path.name for path in tmp_path.iterdir()] == ["script.py"]
