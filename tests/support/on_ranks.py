"""Jobs of several ranks on this machine: on each engine, on hosts of namespaces, or started by an MPI.

found = report("2-tcp", folder, [sys.executable, "ranks.py", str(folder), "numpy"])

A rank writes ``folder/RANK.json``: for each of its checks "" or what went wrong.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import pytest

from farandole.control.keys import new_secret
from tests.support.not_run import NOT_RUN
from workbench.cluster import HEAD, Cluster, UnavailableError
from workbench.mpi import LAUNCHERS

OVERLAPPED = ("--overlap", "backward", "--bucket-bytes", "200")
JOBS: dict[str, tuple[str, ...]] = {
    "1": ("-np", "1"),
    "2": ("-np", "2"),
    "3": ("-np", "3"),
    "4": ("-np", "4"),
    "2-where-they-lie": ("-np", "2", "--bucket-bytes", "200"),
    "3-overlapped": ("-np", "3", *OVERLAPPED),
    "2-tcp": ("-np", "2", "--engine", "tcp"),
    "4-on-2-uneven-hosts-and-a-tree": ("-H", "node1:3,node2:1", "--tree-radix", "2"),
    "2-on-2-hosts-overlapped": ("-H", "node1:1,node2:1", *OVERLAPPED),
    "4-on-2-hosts": ("-H", "node1:2,node2:2"),
    "16-on-4-hosts": ("-H", "node1:4,node2:4,node3:4,node4:4"),
}
"""Options of ``farandole run``, by a name that begins with the number of ranks. Hosts have the engine ``hybrid``."""
BY_MPI = {"3-mpi": 3}
"""Jobs that an MPI starts, and whose engine it is."""

Report: TypeAlias = dict[str, dict[int, str]]
"""Per check and rank: "" or what went wrong."""


def report(
    job: str,
    folder: Path,
    ranks: Sequence[str],
    deadline_s: float = 240.0,
    environment: Mapping[str, str] | None = None,
) -> Report:
    """Run the command ``ranks`` as a kind of job, and read what its ranks have written to ``folder``."""
    if job in BY_MPI:
        done = by_mpi(BY_MPI[job], ranks, deadline_s)
    else:
        command = [sys.executable, "-m", "farandole", "run", *JOBS[job], *ranks]
        hosts = len(JOBS[job][1].split(",")) if "-H" in command else 0
        told = None if environment is None else {**os.environ, **environment}
        done = on_hosts(hosts, command, deadline_s) if hosts else here(command, deadline_s, told)
    found: Report = {}
    for path in sorted(folder.glob("*.json")):
        for check, wrong in json.loads(path.read_text()).items():
            found.setdefault(check, {})[int(path.stem)] = wrong
    assert found, f"the job exited with {done.returncode}\n{done.stdout}\n{done.stderr}"
    return found


def check(found: Report, job: str) -> None:
    """Fail unless every rank of the job has done every check, and found nothing wrong.

    Skips checks of which no rank has come to any: the one that failed before them is told by its own test.
    """
    wrong = {f"{name} on rank {rank}": text for name, by in found.items() for rank, text in by.items() if text}
    if wrong and set(wrong.values()) == {NOT_RUN}:
        pytest.skip(f"none of these {len(found)}: {NOT_RUN}")
    said = [f"{where}: {text}" for where, text in wrong.items() if text != NOT_RUN]
    assert not wrong, "\n".join([*said, f"{len(wrong) - len(said)} checks after that did not run"])
    size = int(job.partition("-")[0])
    unfinished = [name for name, by in found.items() if sorted(by) != list(range(size))]
    assert not unfinished, f"some ranks did not come to these: {unfinished}"


def by_mpi(size: int, command: Sequence[str], deadline_s: float) -> subprocess.CompletedProcess[str]:
    """Run it on this machine, started by an MPI."""
    mpi = LAUNCHERS["mpich"]
    if lack := mpi.lack():
        pytest.skip(lack)
    variables = {"FARANDOLE_ENGINE": "mpi", "FARANDOLE_KEY": new_secret(), **mpi.environment}
    return here([*mpi.command(size), *command], deadline_s, {**os.environ, **variables})


def here(
    command: Sequence[str], deadline_s: float, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run it on this machine."""
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=deadline_s,
        check=False,
        env=environment,
    )


def on_hosts(number: int, command: Sequence[str], deadline_s: float) -> subprocess.CompletedProcess[str]:
    """Run it on the head of a cluster of namespaces; it leaves nothing there."""
    try:
        cluster = Cluster(number)
    except UnavailableError as reason:
        pytest.skip(str(reason))
    with cluster:
        done = cluster.run(HEAD, command, timeout_s=deadline_s, check=False)
        assert not any(cluster.processes(host) for host in cluster.hosts)
        return done
