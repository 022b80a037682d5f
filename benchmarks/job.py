"""Run one of the rank programs here through ``farandole run`` and read what its first rank measured.

launch("steps_rank", 9, 1.0, "large")                                        # two ranks on this machine
launch("steps_rank", 9, 1.0, "large", cluster=cluster, where="node1:2,node2:2")
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from workbench.cluster import HEAD, Cluster

JOB_S = 600.0


def launch(
    program: str,
    *arguments: object,
    cluster: Cluster | None = None,
    where: str = "",
    options: Sequence[str] = (),
    stderr: int | None = None,
) -> dict[str, Any]:
    """``farandole run -np 2 python -m benchmarks.PROGRAM RESULT ARGUMENTS``; returns what was written to RESULT.

    On a ``cluster`` the command runs on its head, and ``where`` is what follows ``-H``. Without one, ``options`` are
    more of ``farandole run``, and its ``stderr`` may go elsewhere.
    """
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        result = Path(folder) / "result.json"
        worker = [sys.executable, "-m", f"benchmarks.{program}", str(result), *map(str, arguments)]
        told = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "eth0" if cluster else "lo"}
        if cluster is not None:
            cluster.run(HEAD, [*farandole("run", "-H", where), *worker], timeout_s=JOB_S, env=told)
        else:
            command = [*farandole("run", "-np", "2", *options), *worker]
            subprocess.run(command, check=True, timeout=JOB_S, env={**os.environ, **told}, stderr=stderr)
        measured: dict[str, Any] = json.loads(result.read_text())
    return measured


def farandole(*arguments: str) -> list[str]:
    """The command line with this interpreter."""
    return [sys.executable, "-m", "farandole", *arguments]
