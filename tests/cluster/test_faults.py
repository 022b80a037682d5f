"""What becomes of a job over several hosts when one of them is cut off, loses power, freezes or gets slow."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import final

import pytest

from farandole.testing.cluster import HEAD, Cluster, Process

HOST_TIMEOUT_S = 2.0
MARGIN_S = 28.0
"""For what has to happen besides waiting out the silence, on a machine that is busy with other tests."""

WORKER = """
import os, signal, sys, time
from pathlib import Path
import numpy as np
from farandole.errors import FarandoleError
from farandole.runtime.session import current, init, shutdown
from farandole.testing.jobs import NumpyCalls

moment, folder, host = sys.argv[1], Path(sys.argv[2]), os.uname().nodename
struck = folder / "struck"
signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the launcher ends survivors, too; here they shall have time to raise

def reached(here):
    if here == moment:
        print("reached", host, flush=True)

def hold(here):
    reached(here)
    while here == moment and not struck.exists():
        time.sleep(0.01)

def work():
    if host == "node2":
        hold("start")
    init()
    do, x = NumpyCalls(), np.ones(250_000, np.float32)
    while x[0]:
        x[:] = moment == "collective" and not struck.exists()  # until all ranks have seen it, or for ever
        do.allreduce("x", x)
        reached("collective")
    if host == "node2":
        hold("end")
    shutdown()
    print("done", host, flush=True)

try:
    work()
except FarandoleError as error:
    print("raised", host, type(error).__name__, error, flush=True)
    raise
"""


@final
class Job:
    """Two workers on each of two nodes, started from the head, that come to ``moment``."""

    def __init__(self, cluster: Cluster, folder: Path, moment: str) -> None:
        self.cluster, self.moment, self._folder = cluster, moment, folder
        (folder / "worker.py").write_text(WORKER)
        command = [sys.executable, "-m", "farandole", "run", "-H", "node1:2,node2:2"]
        command += ["--host-timeout", str(HOST_TIMEOUT_S), sys.executable, "worker.py", moment, str(folder)]
        with self._out.open("w") as out, self._err.open("w") as err:
            self.process: Process = cluster.popen(HEAD, command, cwd=folder, stdout=out, stderr=err)

    @property
    def _out(self) -> Path:
        return self._folder / "out.txt"

    @property
    def _err(self) -> Path:
        return self._folder / "err.txt"

    def said(self) -> str:
        """What workers and launcher have printed."""
        return f"{self._out.read_text()}\n---\n{self._err.read_text()}"

    def until(self, condition: Callable[[], bool], within_s: float) -> None:
        """Wait for ``condition``; fail with the job's output."""
        deadline = time.monotonic() + within_s
        while not condition():
            assert time.monotonic() < deadline, f"not within {within_s} s\n{self.said()}"
            time.sleep(0.01)  # nothing announces what files and /proc show

    def arrive(self) -> None:
        """Wait for the moment on ``node2``."""
        self.until(lambda: self._out.read_text().count("reached node2") >= 2, 60)

    def go_on(self) -> None:
        """Let the workers know that the fault has struck."""
        (self._folder / "struck").touch()

    def end(self) -> int:
        """Wait for the launcher within the deadline that follows from the time-out; its exit status."""
        self.until(lambda: self.process.poll() is not None, HOST_TIMEOUT_S + MARGIN_S)
        return self.process.returncode

    def leaves_nothing(self, *hosts: str) -> None:
        """Wait, again for as long as silence is suffered, until nothing of the job runs on these hosts."""
        for host in hosts:
            self.until(lambda host=host: not self.cluster.processes(host), HOST_TIMEOUT_S + MARGIN_S)  # type: ignore[misc]


FAULTS: dict[str, Callable[[Cluster], None]] = {
    "cable": lambda cluster: cluster.cut("node2"),
    "power": lambda cluster: cluster.kill("node2"),
    "freeze": lambda cluster: cluster.freeze("node2"),
}


@pytest.mark.parametrize("moment", ["start", "collective", "end"])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_lost_host_is_named_and_nothing_is_left(
    make_cluster: Callable[..., Cluster], tmp_path: Path, fault: str, moment: str
) -> None:
    cluster = make_cluster(2)
    job = Job(cluster, tmp_path, moment)
    job.arrive()
    FAULTS[fault](cluster)
    assert job.end() != 0, job.said()
    said = job.said()
    assert re.search(r"^farandole: .*node2.*not been heard of", said, re.MULTILINE), said
    survivors = re.findall(r"raised node1 \w+ .*", said)
    assert len(survivors) == (0 if moment == "end" else 2), said
    assert all("node2" in line for line in survivors), said
    job.leaves_nothing(HEAD, "node1")
    if fault == "freeze":
        cluster.thaw("node2")
    if fault != "power":
        job.leaves_nothing("node2")


@pytest.mark.parametrize("moment", ["start", "collective", "end"])
def test_a_host_that_gets_slow_is_not_lost(make_cluster: Callable[..., Cluster], tmp_path: Path, moment: str) -> None:
    cluster = make_cluster(2)
    job = Job(cluster, tmp_path, moment)
    job.arrive()
    cluster.rate("node2", "10mbit")
    job.go_on()
    assert job.end() == 0, job.said()
    assert len(re.findall("done node[12]", job.said())) == 4
    job.leaves_nothing(*cluster.hosts)


def test_hosts_that_lose_the_launcher_end_their_workers(make_cluster: Callable[..., Cluster], tmp_path: Path) -> None:
    cluster = make_cluster(2)
    job = Job(cluster, tmp_path, "collective")
    job.arrive()
    cluster.kill(HEAD)
    job.leaves_nothing(*cluster.nodes)
