"""How long tests wait for what has to happen: one limit, times a factor that is measured when the tests start.

assert process.wait(PATIENCE_S) == 0

A limit is no expectation: a test that passes never waits that long, and one that fails waits once.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time

VARIABLE = "TESTS_PATIENCE"
"""Holds the factor for the processes of pytest-xdist, which would measure each other."""

IDLE_S = 0.012
"""An interpreter without site packages starts in this time on an idle core of 2024."""

LEAST, MOST = 2.0, 10.0
"""Not 1: a machine that is idle when the tests start may not stay so, and imports of a framework take their time."""


def measured() -> float:
    """How many times slower than an idle machine this one starts processes now; between ``LEAST`` and ``MOST``."""
    times = []
    for _ in range(5):
        begin = time.perf_counter()
        subprocess.run([sys.executable, "-I", "-S", "-c", ""], check=True)
        times.append(time.perf_counter() - begin)
    return min(MOST, max(LEAST, statistics.median(times) / IDLE_S))


def factor() -> float:
    """The factor of this test run; the first call measures it."""
    if VARIABLE not in os.environ:
        os.environ[VARIABLE] = f"{measured():.2f}"
    return float(os.environ[VARIABLE])


PATIENCE_S = 60.0 * factor()
