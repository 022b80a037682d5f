"""Jobs on the hosts of a cluster, watched while they run: ``start(cluster, "-H", "node1:2", bash="...")``."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import final

import pytest

from tests.support.patience import PATIENCE_S
from workbench.cluster import HEAD, Cluster, Process

DEADLINE_S = 2 * PATIENCE_S
LAUNCHER = rf"^{re.escape(sys.executable)} -m farandole run"


@final
class ClusterJob:
    """``farandole run`` on a host of a cluster, or whatever else is to be waited for."""

    def __init__(
        self, cluster: Cluster, folder: Path, command: Sequence[str], environment: Mapping[str, str], host: str
    ) -> None:
        self.cluster = cluster
        self._out, self._err = folder / "out.txt", folder / "err.txt"
        with self._out.open("w") as out, self._err.open("w") as err:
            self.process: Process = cluster.popen(host, command, env=environment, cwd=folder, stdout=out, stderr=err)

    @property
    def stdout(self) -> str:
        return self._out.read_text()

    @property
    def stderr(self) -> str:
        return self._err.read_text()

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait for ``condition``; fail with the job's output at the deadline."""
        deadline = time.monotonic() + DEADLINE_S
        while not condition():
            if time.monotonic() > deadline:
                pytest.fail(
                    f"waited in vain {what}\n--- stdout\n{self.stdout[-2000:]}\n--- stderr\n{self.stderr[-4000:]}\n"
                    f"--- processes\n{self.left()}"
                )
            time.sleep(0.01)  # nothing announces what /proc and a file show

    def prints(self, text: str, times: int = 1) -> None:
        """Wait until ``text`` has been printed so often."""
        self.until(lambda: self.stdout.count(text) >= times, f"for {text!r}")

    def end(self) -> int:
        """Wait for the end: exit status as a shell has it. Soon after, nothing of the job may be left on any host."""
        self.until(lambda: self.process.poll() is not None, "for the end")
        self.leaves_nothing()
        code = int(self.process.returncode)
        return code if code >= 0 else 128 - code

    def leaves_nothing(self) -> None:
        """Wait until no process is left on any host that has power."""
        self.until(lambda: not self.left(), "for the last processes to go")

    def left(self) -> dict[str, str]:
        """Host and number of every process that is left, and its command line."""
        return {
            f"{host} {pid}": words for host in self.cluster.hosts for pid, words in self.cluster.processes(host).items()
        }


StartOnCluster = Callable[..., ClusterJob]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[StartOnCluster]:
    """Starts ``farandole run OPTIONS bash -c BASH`` on ``head``; ``before`` comes before it on the command line."""
    jobs: list[ClusterJob] = []

    def begin(
        cluster: Cluster,
        *options: str,
        bash: str = "",
        python: str = "",
        command: Sequence[str] = (),
        before: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        host: str = HEAD,
        executable: str = sys.executable,
        flags: Sequence[str] = (),
    ) -> ClusterJob:
        if bash:
            command = ["bash", "-c", bash]
        elif python:
            (tmp_path / "worker.py").write_text(python)
            command = [sys.executable, "worker.py"]
        words = [*before, executable, *flags, "-m", "farandole", "run", *options, *command]
        jobs.append(ClusterJob(cluster, tmp_path, words, environment or {}, host))
        return jobs[-1]

    yield begin
    for job in jobs:
        if job.process.poll() is None:
            job.process.kill()
            job.process.wait(DEADLINE_S)


def kill_on(cluster: Cluster, host: str, words: str, *signals: str) -> None:
    """Kill the processes of a host whose command line matches ``words``."""
    pids = [str(pid) for pid, line in cluster.processes(host).items() if re.search(words, line)]
    assert pids, f"no process on {host} matches {words!r} in {cluster.processes(host)}"
    done = cluster.run(host, ["kill", *(signals or ("-KILL",)), *pids], check=False)
    # One may end by itself meanwhile, as one of those that were killed before it has.
    assert not done.returncode or len(done.stderr.splitlines()) < len(pids), done.stderr
