"""Load on every core, with gaps for processes of idle priority."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator

BUSY_S, PAUSE_S = 0.1, 0.05
"""Longest time that a burner is busy, and its longest pause."""


@contextlib.contextmanager
def burners(number: int | None = None) -> Iterator[None]:
    """Keep ``number`` cores busy during the block; default: all of them."""
    command = [sys.executable, "-S", "-c", _BURNER, str(os.getpid())]
    running = [subprocess.Popen(command, stdin=subprocess.DEVNULL) for _ in range(number or os.cpu_count() or 1)]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


_BURNER = f"""
import os, random, sys, time
while os.getppid() == int(sys.argv[1]):
    end = time.perf_counter() + random.random() * {BUSY_S}
    while time.perf_counter() < end:
        pass
    time.sleep(random.random() * {PAUSE_S})
"""
