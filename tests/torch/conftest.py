"""Runs the files in ``checks/`` once per kind of job, and reports each file as a test of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TypeAlias

import pytest

from farandole.control.keys import new_secret
from workbench.cluster import HEAD, Cluster, UnavailableError
from workbench.mpi import LAUNCHERS

HERE = Path(__file__).parent
FILES = sorted((HERE / "checks").glob("*.py"))
OVERLAPPED = ("--overlap", "backward", "--bucket-bytes", "200")
JOBS: dict[str, tuple[str, ...]] = {
    "1": ("-np", "1"),
    "4": ("-np", "4"),
    "2-where-they-lie": ("-np", "2", "--bucket-bytes", "200"),
    "3-overlapped": ("-np", "3", *OVERLAPPED),
    "2-tcp": ("-np", "2", "--engine", "tcp"),
    "4-on-2-uneven-hosts-and-a-tree": ("-H", "node1:3,node2:1", "--tree-radix", "2"),
    "2-on-2-hosts-overlapped": ("-H", "node1:1,node2:1", *OVERLAPPED),
}
"""Options of ``farandole run``, by a name that begins with the number of ranks."""
BY_MPI = {"3-mpi": 3}
"""Jobs that an MPI starts, and whose engine it is. They run the contract alone, which calls all that an engine has."""

if os.environ.get("LARGE"):  # see ``make large``: on a few cores, sixteen processes with torch take many minutes
    JOBS = {
        "2": ("-np", "2"),
        "3": ("-np", "3"),
        "4-on-2-hosts": ("-H", "node1:2,node2:2"),
        "16-on-4-hosts": ("-H", "node1:4,node2:4,node3:4,node4:4"),
    }
    BY_MPI = {}

DEADLINE_S = 1800.0 if os.environ.get("LARGE") else 240.0

Report: TypeAlias = dict[str, dict[int, str]]
"""Per check and rank: "" or what went wrong."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test per file of checks and kind of job."""
    if "checks" in metafunc.fixturenames:
        both = [(job, path.stem) for job in (*JOBS, *BY_MPI) for path in files_of(job)]
        metafunc.parametrize(("job", "checks"), both, scope="session")


@pytest.fixture(scope="session")
def report(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Report]:
    """What came of all checks in a kind of job; it runs when first asked for."""

    @cache
    def run(job: str) -> Report:
        target = tmp_path_factory.mktemp(f"checks-{job}")
        ranks = [sys.executable, str(HERE / "ranks.py"), str(target), *map(str, files_of(job))]
        if job in BY_MPI:
            done = by_mpi(BY_MPI[job], ranks)
        else:
            command = [sys.executable, "-m", "farandole", "run", *JOBS[job], *ranks]
            hosts = len(JOBS[job][1].split(",")) if "-H" in command else 0
            done = on_hosts(hosts, command) if hosts else here(command)
        found: Report = {}
        for path in sorted(target.glob("*.json")):
            for check, wrong in json.loads(path.read_text()).items():
                found.setdefault(check, {})[int(path.stem)] = wrong
        assert found, f"the job exited with {done.returncode}\n{done.stdout}\n{done.stderr}"
        return found

    return run


def files_of(job: str) -> list[Path]:
    """The files of checks that a kind of job runs."""
    return [path for path in FILES if job not in BY_MPI or path.stem == "contract"]


def by_mpi(size: int, command: list[str]) -> subprocess.CompletedProcess[str]:
    """Run it on this machine, started by an MPI."""
    mpi = LAUNCHERS["mpich"]
    if lack := mpi.lack():
        pytest.skip(lack)
    variables = {"FARANDOLE_ENGINE": "mpi", "FARANDOLE_KEY": new_secret(), **mpi.environment}
    return here([*mpi.command(size), *command], {**os.environ, **variables})


def here(command: list[str], environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run it on this machine."""
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=DEADLINE_S,
        check=False,
        env=environment,
    )


def on_hosts(number: int, command: list[str]) -> subprocess.CompletedProcess[str]:
    """Run it on the head of a cluster of namespaces; it leaves nothing there."""
    try:
        cluster = Cluster(number)
    except UnavailableError as reason:
        pytest.skip(str(reason))
    with cluster:
        done = cluster.run(HEAD, command, timeout_s=DEADLINE_S, check=False)
        assert not any(cluster.processes(host) for host in cluster.hosts)
        return done
