"""What becomes of a job over several hosts when one of them is cut off, loses power, freezes or gets slow."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import final

import pytest

from tests.support.cluster.running import kill_on
from workbench.cluster import HEAD, Cluster, Process, SlurmCluster, UnavailableError

HOST_TIMEOUT_S = 3.0
MARGIN_S = 28.0
"""For what has to happen besides waiting out the silence, on a machine that is busy with other tests."""

FARANDOLE_RUN = (sys.executable, "-m", "farandole", "run")
SSH = (*FARANDOLE_RUN, "-H", "node1:2,node2")
SRUN = ("srun", "-N2", "-n3", "--unbuffered")
SRUN_AGENTS = ("salloc", "-N2", "-n3", *FARANDOLE_RUN)

WORKER = """
import os, signal, sys, time
from pathlib import Path
import numpy as np
from farandole.errors import FarandoleError
from farandole.runtime.collectives.planned import PlannedLane
from farandole.runtime.session.process_sets import global_process_set
from farandole.runtime.session.init import current, init, shutdown
from workbench.jobs import NumpyCalls

moment, folder, host = sys.argv[1], Path(sys.argv[2]), os.uname().nodename
struck = folder / "struck"
heard = os.open(folder / "heard.txt", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the launcher ends survivors, too; here they shall have time to raise

def say(*words):
    os.write(heard, (" ".join(map(str, words)) + "\\n").encode())

def reached(here):
    if here == moment:
        say("reached", host)

def hold(here):
    reached(here)
    while here == moment and not struck.exists():
        time.sleep(0.01)

def work():
    if host == "node2":
        hold("start")
    init()
    lane = PlannedLane(current(), global_process_set, "lane") if moment == "planned" else None
    while lane is not None:
        lane.meet("here", "ready")
        reached("planned")
    do, x = NumpyCalls(), np.ones(250_000, np.float32)
    while x[0]:
        x[:] = moment == "collective" and not struck.exists()  # until all ranks have seen it, or for ever
        do.allreduce("x", x)
        reached("collective")
    say("reduced", host)
    if host == "node2":
        hold("end")
    shutdown()
    say("done", host)

try:
    work()
except FarandoleError as error:
    say("raised", host, type(error).__name__, error)
    raise
"""


@final
class Job:
    """Two workers on ``node1`` and one on ``node2``, started from the head, that come to ``moment``."""

    def __init__(
        self, cluster: Cluster, folder: Path, moment: str, starter: Sequence[str] = SSH, **settings: float
    ) -> None:
        self.cluster, self._folder, self._moment = cluster, folder, moment
        (folder / "worker.py").write_text(WORKER)
        self._heard.touch()
        told = {f"FARANDOLE_{k.upper()}": str(v) for k, v in ({"host_timeout_s": HOST_TIMEOUT_S} | settings).items()}
        command = [*starter, sys.executable, "worker.py", moment, str(folder)]
        with self._out.open("w") as out, self._err.open("w") as err:
            self.process: Process = cluster.popen(HEAD, command, cwd=folder, env=told, stdout=out, stderr=err)

    @property
    def _heard(self) -> Path:
        return self._folder / "heard.txt"

    @property
    def _out(self) -> Path:
        return self._folder / "out.txt"

    @property
    def _err(self) -> Path:
        return self._folder / "err.txt"

    def said(self) -> str:
        """What workers have written, which no starter's way of passing it on delays, and what the launcher has."""
        return "\n---\n".join(file.read_text() for file in (self._heard, self._out, self._err))

    def until(self, condition: Callable[[], bool], within_s: float, hosts: Sequence[str] = ()) -> None:
        """Wait for ``condition``; fail with the job's output, and what runs on ``hosts``."""
        deadline = time.monotonic() + within_s
        while not condition():
            assert time.monotonic() < deadline, f"not within {within_s} s\n{self.said()}\n{self._left(hosts)}"
            time.sleep(0.01)  # nothing announces what files and /proc show

    def arrive(self) -> None:
        """Wait for the moment on ``node2``, and where that is the end, for all ranks to have what was reduced."""
        self.until(lambda: self._has_arrived() or self.process.poll() is not None, 60)
        assert self.process.poll() is None, self.said()

    def _has_arrived(self) -> bool:
        heard = self._heard.read_text()
        return "reached node2" in heard and (self._moment != "end" or heard.count("reduced ") == 3)

    def go_on(self) -> None:
        """Let the workers know that the fault has struck."""
        (self._folder / "struck").touch()

    def end(self) -> int:
        """Wait for the launcher within the deadline that follows from the time-out; its exit status."""
        self.until(lambda: self.process.poll() is not None, HOST_TIMEOUT_S + MARGIN_S)
        return self.process.returncode

    def leaves_nothing(self, *hosts: str) -> None:
        """Wait, again for as long as silence is suffered, until nothing of the job runs on these hosts."""
        self.until(lambda: not self._left(hosts), HOST_TIMEOUT_S + MARGIN_S, hosts)

    def _left(self, hosts: Sequence[str]) -> list[str]:
        """What runs on hosts, but for what of Slurm waits there for a word from a host that is no more."""
        words = [words for host in hosts for words in self.cluster.processes(host).values()]
        return [each for each in words if each != "slurmd" and not each.startswith("slurmstepd: ")]


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
    assert re.search(r"^farandole: .*node2.*has sent nothing for", said, re.MULTILINE), said
    survivors = re.findall(r"raised node1 \w+ .*", said)
    assert len(survivors) == (0 if moment == "end" else 2), said
    assert all("node2" in line for line in survivors), said
    job.leaves_nothing(HEAD, "node1")
    if fault == "freeze":
        cluster.thaw("node2")
    if fault != "power":
        job.leaves_nothing("node2")


@pytest.mark.parametrize("moment", ["collective", "planned"])
def test_who_died_is_named_and_not_who_lost_a_connection(
    make_cluster: Callable[..., Cluster], tmp_path: Path, moment: str
) -> None:
    """The launcher hears of it long after the survivors have noticed."""
    cluster = make_cluster(2)
    job = Job(cluster, tmp_path, moment, host_timeout_s=10)
    job.arrive()
    try:
        cluster.lag(HEAD, 300)
    except UnavailableError as error:
        pytest.skip(str(error))
    kill_on(cluster, "node2", "^[^ ]+ worker.py")
    assert job.end() != 0, job.said()
    assert len(re.findall("raised node1 AbortError rank 2 on node2 was killed by SIGKILL", job.said())) == 2, job.said()


def test_hosts_that_do_not_hear_each_other_are_named_though_the_launcher_hears_both(
    make_cluster: Callable[..., Cluster], tmp_path: Path
) -> None:
    cluster = make_cluster(2)
    job = Job(cluster, tmp_path, "collective")
    job.arrive()
    cluster.cut("node2", "node1")
    assert job.end() != 0, job.said()
    said = job.said()
    parted = "hosts node[12] and node[12] do not reach each other"
    assert re.search(rf"^farandole: {parted}", said, re.MULTILINE), said
    assert len(re.findall(rf"raised node[12] AbortError {parted}", said)) == 3, said
    job.leaves_nothing(*cluster.hosts)


def test_hosts_that_do_not_hear_each_other_can_end(make_cluster: Callable[..., Cluster], tmp_path: Path) -> None:
    cluster = make_cluster(2)
    job = Job(cluster, tmp_path, "end")
    job.arrive()
    cluster.cut("node1", "node2")
    job.go_on()
    assert job.end() == 0, job.said()
    assert len(re.findall("done node[12]", job.said())) == 3
    job.leaves_nothing(*cluster.hosts)


@pytest.mark.parametrize("moment", ["start", "collective"])  # and it stays so until the end
def test_a_host_that_gets_slow_is_not_lost(make_cluster: Callable[..., Cluster], tmp_path: Path, moment: str) -> None:
    cluster = make_cluster(2)
    job = Job(cluster, tmp_path, moment, host_timeout_s=5)
    job.arrive()
    cluster.rate("node2", "10mbit")
    if moment == "collective":
        try:
            cluster.lag("node2", 500)
        except UnavailableError as error:
            pytest.skip(str(error))
    job.go_on()
    assert job.end() == 0, job.said()
    assert len(re.findall("done node[12]", job.said())) == 3
    job.leaves_nothing(*cluster.hosts)


def test_short_silences_are_forgiven(make_cluster: Callable[..., Cluster], tmp_path: Path) -> None:
    cluster = make_cluster(2)
    job = Job(cluster, tmp_path, "collective", host_timeout_s=30)
    job.arrive()
    for _ in range(3):
        cluster.cut("node2")
        cluster.heal("node2")
        cluster.freeze("node1")
        cluster.thaw("node1")
    job.go_on()
    assert job.end() == 0, job.said()


def test_hosts_that_lose_the_launcher_end_their_workers(make_cluster: Callable[..., Cluster], tmp_path: Path) -> None:
    cluster = make_cluster(2)
    job = Job(cluster, tmp_path, "collective")
    job.arrive()
    cluster.kill(HEAD)
    job.leaves_nothing(*cluster.nodes)


@pytest.mark.parametrize("starter", [SRUN, SRUN_AGENTS], ids=["srun", "salloc"])
def test_survivors_of_a_host_lost_under_slurm_raise_and_name_it(
    make_slurm: Callable[..., SlurmCluster], tmp_path: Path, starter: Sequence[str]
) -> None:
    slurm = make_slurm(2)
    job = Job(slurm.cluster, tmp_path, "collective", starter)
    job.arrive()
    slurm.cluster.kill("node2")
    job.until(lambda: len(re.findall(r"raised node1 AbortError .*node2", job.said())) == 2, HOST_TIMEOUT_S + MARGIN_S)
    job.leaves_nothing("node1")
