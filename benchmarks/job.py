"""Run one of the rank programs here through ``farandole run`` and read what its first rank measured."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

JOB_S = 180.0


def launch(program: str, *arguments: object, ranks: int = 2) -> dict[str, Any]:
    """``farandole run -np 2 python -m benchmarks.PROGRAM RESULT ARGUMENTS``; returns what was written to RESULT."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        result = Path(folder) / "result.json"
        worker = [sys.executable, "-m", f"benchmarks.{program}", str(result), *map(str, arguments)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        subprocess.run([*farandole("run", "-np", str(ranks)), *worker], check=True, timeout=JOB_S, env=environment)
        measured: dict[str, Any] = json.loads(result.read_text())
    return measured


def farandole(*arguments: str) -> list[str]:
    """The command line with this interpreter."""
    return [sys.executable, "-m", "farandole", *arguments]
