"""How a worker of an elastic job joins it where controllers come and go."""

from __future__ import annotations

import os
import subprocess
import sys

from farandole.cluster.environment import WORKER_ID, variables_for
from farandole.control.channel import Router
from farandole.control.keys import JobKeys, new_secret
from farandole.topology import Topology
from tests.support.patience import PATIENCE_S

DEADLINE_S = PATIENCE_S
FREE_THREADED = "import sys; sys._is_gil_enabled = lambda: False; "  # as such a build says under PYTHON_GIL=0
WORKER = "from farandole.runtime.session.init import init; init()"


def test_a_refused_key_is_final() -> None:
    """Though a controller that dies in a handshake looks the same, and is only the last but one."""
    with Router(JobKeys.from_secret(new_secret())) as router:
        told = variables_for(Topology.of(0, ("a",), 0), router.address, new_secret())
        worker = subprocess.run(
            [sys.executable, "-c", WORKER],
            env={**os.environ, **told, WORKER_ID: "0", "HOROVOD_ELASTIC": "1"},
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
    assert worker.returncode == 1
    assert "StartError" in worker.stderr
    assert "refused this process's key" in worker.stderr


def test_an_interpreter_without_its_lock_is_refused() -> None:
    script = [sys.executable, "-c", FREE_THREADED + WORKER]
    worker = subprocess.run(script, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert worker.returncode == 1
    assert "UsageError: init() was called in a Python that runs without its global interpreter lock" in worker.stderr
    assert "PYTHON_GIL=1" in worker.stderr
