"""``farandole run`` inside a Slurm allocation: hosts and slots from Slurm, agents by one ``srun``, no ssh."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.nightly.hosts.test_ssh import AGENT, FLOOD, PATIENT, SLEEP
from tests.support.cluster.running import LAUNCHER, StartOnCluster, kill_on
from workbench.cluster import SlurmCluster

SALLOC = ("salloc", "--quiet", "--nodes=2", "--ntasks=3")
"""Two tasks on node1, one on node2."""


@pytest.fixture(autouse=True)
def no_allocation_is_left(slurm: SlurmCluster) -> Iterator[None]:
    """A test that failed must not let all others wait for its hosts."""
    yield
    slurm.run(["scancel", "--user=root"])


REPORT = """
import json, os
names = ["RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "HOSTNAME"]
facts = {name: os.environ["FARANDOLE_" + name] for name in names}
facts |= {"host": os.uname().nodename, "word": os.environ["WORD"], "node": os.environ["SLURMD_NODENAME"]}
print(json.dumps(facts), flush=True)
"""


def test_the_allocation_says_where_and_how_many(slurm: SlurmCluster, start: StartOnCluster) -> None:
    job = start(slurm.cluster, *PATIENT, before=SALLOC, python=REPORT, environment={"WORD": "from the launcher"})
    job.until(lambda: job.process.poll() is not None, "for the end")
    assert job.end() == 0
    facts = sorted((json.loads(line.partition(":")[2]) for line in job.stdout.splitlines()), key=lambda f: f["RANK"])
    assert [fact["host"] for fact in facts] == ["node1", "node1", "node2"]
    assert [fact["host"] for fact in facts] == [fact["HOSTNAME"] for fact in facts] == [fact["node"] for fact in facts]
    assert [(fact["LOCAL_RANK"], fact["LOCAL_SIZE"]) for fact in facts] == [("0", "2"), ("1", "2"), ("0", "1")]
    assert {fact["word"] for fact in facts} == {"from the launcher"}
    assert job.stderr == ""


@pytest.mark.parametrize(
    ("options", "hosts"),
    [
        (("-np", "2"), ["node1", "node1"]),
        (("-H", "node2:3"), ["node2"] * 3),
        (("-H", "node2,head"), ["head", "node2"]),
        (("--launcher", "ssh"), ["node1", "node1", "node2"]),
        (("--launcher", "local", "-np", "2"), ["head", "head"]),
    ],
    ids=["fewer", "some of its hosts", "others, too", "by ssh", "here"],
)
def test_the_command_line_may_say_otherwise(
    slurm: SlurmCluster, start: StartOnCluster, options: tuple[str, ...], hosts: list[str]
) -> None:
    job = start(slurm.cluster, *options, *PATIENT, before=SALLOC, bash="hostname")
    assert job.end() == 0
    assert sorted(line.partition(":")[2] for line in job.stdout.splitlines()) == hosts


def test_a_discovery_script_that_prints_slurms_nodes_needs_no_ssh(
    slurm: SlurmCluster, start: StartOnCluster, tmp_path: Path
) -> None:
    script = tmp_path / "discover.sh"
    script.write_text("#!/bin/sh\nprintf 'node1:1\\nnode2:1\\n'\n")
    script.chmod(0o700)
    options = ("--min-np", "2", "--host-discovery-script", str(script), "--ssh-option", "ProxyCommand=false")
    job = start(slurm.cluster, *options, *PATIENT, before=SALLOC, bash="hostname")
    assert job.end() == 0
    assert sorted(line.partition(":")[2] for line in job.stdout.splitlines()) == ["node1", "node2"]


def test_a_batch_script_on_one_node_needs_no_step(slurm: SlurmCluster, start: StartOnCluster, tmp_path: Path) -> None:
    job = start(slurm.cluster, "-np", "1", command=["true"])  # to wait with
    script = "hostname; echo step=$SLURM_STEP_ID; touch ended.$FARANDOLE_RANK"
    wrapped = shlex.join([sys.executable, "-m", "farandole", "run", "--start-timeout", "60", "sh", "-c", script])
    slurm.run(["sbatch", "--ntasks=2", "--nodes=1", "--output=batch.txt", f"--wrap={wrapped}"], cwd=tmp_path)
    job.until(lambda: len(list(tmp_path.glob("ended.*"))) == 2, "for the batch script")
    assert job.end() == 0
    lines = [line.partition(">:")[2] for line in (tmp_path / "batch.txt").read_text().splitlines()]
    assert sorted(lines) == ["node1"] * 2 + ["step="] * 2


def test_a_launcher_in_each_task_trains_nothing(slurm: SlurmCluster, start: StartOnCluster) -> None:
    job = start(slurm.cluster, *PATIENT, before=("srun", "--nodes=2"), command=["true"])
    assert job.end() == 2
    assert job.stderr.count("srun has started this launcher 2 times") == 2


def test_more_workers_than_tasks_are_refused_with_the_remedy(slurm: SlurmCluster, start: StartOnCluster) -> None:
    job = start(slurm.cluster, "-np", "4", before=SALLOC, command=["true"])
    assert job.end() == 2
    assert re.search(r"-np 4 .* has tasks \(3: node1:2,node2:1\): ask for more \(salloc -n 4", job.stderr)
    job = start(slurm.cluster, "--launcher", "srun", "-H", "head", before=SALLOC, command=["true"])
    assert job.end() == 2
    assert "head is not in the Slurm allocation" in job.stderr


def test_a_flood_by_way_of_slurm_arrives_whole(slurm: SlurmCluster, start: StartOnCluster) -> None:
    job = start(slurm.cluster, *PATIENT, before=SALLOC, python=FLOOD)
    assert job.end() == 0
    counts: dict[str, int] = defaultdict(int)
    for line in job.stdout.splitlines():
        tag, _, rest = line.partition(":")
        rank, number, filler = rest.split(" ")
        assert tag == f"[{rank}]<stdout>"
        assert int(number) == counts[rank]
        assert len(filler) == (int(number) % 150 if number != "60000" else 3_000_000)
        counts[rank] += 1
    assert counts == {str(rank): 60_001 for rank in range(3)}


def test_a_failure_ends_the_job_on_all_hosts(slurm: SlurmCluster, start: StartOnCluster) -> None:
    together = "touch up.$FARANDOLE_RANK; until [ $(ls up.* | wc -l) = 3 ]; do sleep 0.02; done"
    failing = "if ((FARANDOLE_RANK == 2)); then echo why >&2; exit 7; fi"
    script = f"trap 'echo told; exit' TERM; {together}; {failing}; while :; do sleep 0.05; done"
    job = start(slurm.cluster, *PATIENT, before=SALLOC, bash=script)
    assert job.end() == 7
    assert job.stdout.count("told") == 2
    assert "rank 2 on node2 exited with code 7; the last lines of its stderr:\n    why\n" in job.stderr


def test_ctrl_c_lets_workers_tidy_up(slurm: SlurmCluster, start: StartOnCluster) -> None:
    job = start(
        slurm.cluster,
        *PATIENT,
        before=SALLOC,
        bash="trap 'echo tidied; exit' TERM; echo up; while :; do sleep 0.05; done",
    )
    job.prints("up", 3)
    kill_on(slurm.cluster, "head", LAUNCHER, "-INT")
    job.end()
    assert job.stdout.count("tidied") == 3
    assert "the job was ended by SIGINT" in job.stderr


def test_killing_the_launcher_leaves_nothing(slurm: SlurmCluster, start: StartOnCluster) -> None:
    job = start(slurm.cluster, *PATIENT, before=SALLOC, bash=SLEEP)
    job.prints("up", 3)
    kill_on(slurm.cluster, "head", LAUNCHER)
    job.end()


@pytest.mark.parametrize("fault", ["kill the agent", "freeze"])
def test_a_lost_host_is_named(slurm: SlurmCluster, start: StartOnCluster, fault: str) -> None:
    job = start(slurm.cluster, "--host-timeout", "3", "--start-timeout", "60", before=SALLOC, bash=SLEEP)
    job.prints("up", 3)
    if fault == "freeze":
        frozen = set(slurm.cluster.processes("node2"))
        slurm.cluster.run("node2", ["kill", "-STOP", *map(str, frozen)])
    else:
        kill_on(slurm.cluster, "node2", AGENT)
    job.until(lambda: "host node2 has sent nothing for 3 s" in job.stderr, "for the news")
    job.until(lambda: not slurm.cluster.processes("node1"), "for the workers of the other host to end")
    if fault == "freeze":
        slurm.cluster.run("node2", ["kill", "-CONT", *map(str, frozen)], check=False)
    assert job.end() == 1


def test_an_allocation_that_has_ended_is_named(slurm: SlurmCluster, start: StartOnCluster) -> None:
    job = start(
        slurm.cluster, "--start-timeout", "20", command=["true"],
        environment={"SLURM_JOB_ID": "99999", "SLURM_JOB_NODELIST": "node[1-2]", "SLURM_TASKS_PER_NODE": "1(x2)"},
    )  # fmt: skip
    assert job.end() == 1
    assert re.search(r"the srun that starts the agents of node1, node2 exited with code 1: .*error: ", job.stderr)
