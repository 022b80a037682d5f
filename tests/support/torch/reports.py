"""Runs the files in ``checks/`` once per kind of job, and reports each file as a test of its own."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from tests.support import on_ranks
from tests.support.on_ranks import BY_MPI, Report

HERE = Path(__file__).parent
FILES = sorted((HERE / "checks").glob("*.py"))
DEADLINE_S = 900.0
BETWEEN_HOSTS = ("collectives", "contract", "divergence", "gradients", "join", "optimizer", "pairing")
"""What depends on where the ranks are; the rest needs but ranks, and is checked on those of one host."""
WHENEVER = ("checkpoints", "large_batch", "modules", "noise_scale", "optimizer_state", "restarts")
"""What does not depend on when gradients are reduced."""


def of(*jobs: str) -> list[tuple[str, str]]:
    """Kinds of job, each with the files of checks that it runs."""
    return [(job, path.stem) for job in jobs for path in files_of(job)]


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
    some = ("contract",) if job in BY_MPI else BETWEEN_HOSTS if "-hosts-" in job else ()
    others = WHENEVER if job == "3-overlapped" else ()
    return [path for path in FILES if (not some or path.stem in some) and path.stem not in others]


def check(report: Callable[[str], Report], job: str, checks: str) -> None:
    """Fail unless a file of checks has passed on all ranks of a kind of job."""
    found = {name: by for name, by in report(job).items() if name.startswith((f"{checks}.", "loading"))}
    assert any(name.startswith(checks) for name in found), found
    on_ranks.check(found, job)
