"""Runs the files in ``checks/`` once per kind of job, and reports each file as a test of its own."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from tests.support import on_ranks
from tests.support.on_ranks import BY_MPI, Report

HERE = Path(__file__).parent
FILES = sorted((HERE / "checks").glob("*.py"))
JOBS = [
    "1",
    "2-where-they-lie",
    "3-overlapped",
    "4-on-2-uneven-hosts-and-a-tree",  # of shared memory and TCP
    "3-mpi",  # the contract alone, which calls all that an engine has
]
LARGE = bool(os.environ.get("LARGE"))
if LARGE:  # see ``make large``: on a few cores, sixteen processes with torch take many minutes
    JOBS = ["2", "3", "4", "2-tcp", "2-on-2-hosts-overlapped", "4-on-2-hosts", "16-on-4-hosts"]

DEADLINE_S = 1800.0 if LARGE else 240.0
BETWEEN_HOSTS = ("collectives", "contract", "divergence", "gradients", "join", "optimizer", "pairing")
"""What depends on where the ranks are; the rest needs but ranks, and is checked on those of one host."""
WHENEVER = ("checkpoints", "large_batch", "modules", "noise_scale", "optimizer_state", "restarts")
"""What does not depend on when gradients are reduced."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test per file of checks and kind of job."""
    if "checks" in metafunc.fixturenames:
        both = [(job, path.stem) for job in JOBS for path in files_of(job)]
        metafunc.parametrize(("job", "checks"), both, scope="session")


@pytest.fixture(scope="session")
def report(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Report]:
    """What came of all checks in a kind of job; it runs when first asked for."""

    @cache
    def run(job: str) -> Report:
        target = tmp_path_factory.mktemp(f"checks-{job}")
        ranks = [sys.executable, str(HERE / "ranks.py"), str(target), *map(str, files_of(job))]
        return on_ranks.report(job, target, ranks, DEADLINE_S)

    return run


def files_of(job: str) -> list[Path]:
    """The files of checks that a kind of job runs."""
    some = ("contract",) if job in BY_MPI else BETWEEN_HOSTS if "-hosts-" in job and not LARGE else ()
    others = WHENEVER if job == "3-overlapped" else ()
    return [path for path in FILES if (not some or path.stem in some) and path.stem not in others]
