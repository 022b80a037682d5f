"""Elastic jobs over several hosts: hosts that lose power or network and come back, and those that are new."""

from __future__ import annotations

import re
import shlex
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.cluster.running import DEADLINE_S, ClusterJob, StartOnCluster, kill_on
from tests.support.paths import SUPPORT
from workbench.cluster import HEAD, URGENT, Cluster, SlurmCluster

WORKER = SUPPORT / "elastic_worker.py"
LARGE_STEPS = """
import os
import numpy as np
from farandole.elastic.worker.run import run
from farandole.elastic.worker.state import ObjectState
from farandole.runtime.session.init import current, init, shutdown
from workbench.jobs import NumpyCalls

@run
def train(state):
    who, do, ends = current().topology, NumpyCalls(), np.zeros(100_000, np.float32)
    print(
        f"worker {os.environ['FARANDOLE_WORKER_ID']} trains: generation {who.generation}, rank {who.rank} of "
        f"{who.size}, step {state.step}, process {os.getpid()}",
        flush=True,
    )
    while not ends[0]:
        ends[:] = os.path.exists("end")
        do.allreduce("step", ends)
        state.step += 1
        state.commit()

init()
train(ObjectState(step=0))
shutdown()
"""
TRAINS = re.compile(r"worker (\d+) trains: generation (\d+), rank (\d+) of (\d+), step (\d+), process (\d+)")
SHORT = ("--host-timeout", "3", "--blacklist-cooldown-range", "0.5", "2")
MakeCluster = Callable[..., Cluster]
MakeSlurm = Callable[..., SlurmCluster]


def generation(running: ClusterJob, size: int, after: int = 0) -> list[tuple[int, ...]]:
    """Wait until all ranks of a generation of this size train, later than ``after``: place, generation, rank, ..."""
    found: list[tuple[int, ...]] = []

    def is_there() -> bool:
        own = [tuple(map(int, match.groups())) for match in TRAINS.finditer(running.stdout)]
        own = [each for each in own if each[1] > after and each[3] == size]
        last = max((each[1] for each in own), default=0)
        found[:] = sorted((each for each in own if each[1] == last), key=lambda each: each[2])
        return len(found) == size

    running.until(is_there, f"for a generation of {size}")
    return found


def end(running: ClusterJob, folder: Path) -> int:
    """Tell the workers to finish, and wait for that."""
    (folder / "end").touch()
    return running.end()


def begin(start: StartOnCluster, cluster: Cluster, *options: str, **more: object) -> ClusterJob:
    """Start a job of ``elastic_worker.py`` on the head."""
    return start(cluster, *SHORT, *options, command=[sys.executable, str(WORKER)], **more)


def test_a_host_without_power_is_done_without_and_used_again(
    make_cluster: MakeCluster, start: StartOnCluster, tmp_path: Path
) -> None:
    cluster = make_cluster(2)
    radix = ("--tree-radix", "2")  # fewer than there are workers: elastic jobs have no relays, and need none to work
    running = begin(start, cluster, "-H", "node1:2,node2:2", "--min-np", "2", *radix)
    first = generation(running, 4)
    cluster.kill("node2")
    fewer = generation(running, 2)
    assert [each[0] for each in fewer] == [0, 1]
    assert fewer[0][5] == first[0][5]
    assert fewer[0][4] >= first[0][4]
    cluster.boot("node2")
    again = generation(running, 4, after=fewer[0][1])
    assert [each[5] for each in again][:2] == [each[5] for each in first][:2]
    assert end(running, tmp_path) == 0


def test_a_host_that_is_cut_off_ends_its_workers_and_is_used_again(
    make_cluster: MakeCluster, start: StartOnCluster, tmp_path: Path
) -> None:
    cluster = make_cluster(2)
    running = begin(start, cluster, "-H", "node1:1,node2:1", "--min-np", "1")
    generation(running, 2)
    cluster.cut("node1")  # where rank 0 is
    fewer = generation(running, 1)
    assert fewer[0][0] == 1
    running.until(lambda: not cluster.processes("node1"), "for the other side to end by itself")
    cluster.heal("node1")
    again = generation(running, 2, after=fewer[0][1])
    assert again[0][5] == fewer[0][5]
    assert end(running, tmp_path) == 0


def test_hosts_that_do_not_hear_each_other_go_on_with_the_elder_one(
    make_cluster: MakeCluster, start: StartOnCluster, tmp_path: Path
) -> None:
    cluster = make_cluster(2)
    running = start(cluster, *SHORT, "-H", "node1:1,node2:1", "--min-np", "1", python=LARGE_STEPS)
    first = generation(running, 2)
    cluster.cut("node1", "node2")
    fewer = generation(running, 1, after=first[0][1])
    assert fewer[0][5] == first[0][5]
    assert "do not reach each other" in running.stderr
    cluster.heal("node1", "node2")
    again = generation(running, 2, after=fewer[0][1])
    assert again[0][5] == first[0][5]
    assert end(running, tmp_path) == 0


def test_killed_agents_and_workers_are_replaced_on_all_hosts(
    cluster: Cluster, start: StartOnCluster, tmp_path: Path
) -> None:
    running = begin(start, cluster, "-H", "node1:2,node2:2", "--min-np", "2")
    generation(running, 4)
    kill_on(cluster, "node2", "farandole.launch.agents.agent")
    fewer = generation(running, 2)
    again = generation(running, 4, after=fewer[0][1])
    kill_on(cluster, "node1", "elastic_worker")
    last = generation(running, 4, after=again[2][1])
    assert {each[5] for each in last} > {each[5] for each in again[2:]}
    assert end(running, tmp_path) == 0


def test_agents_that_are_told_to_end_one_after_the_other_are_replaced_and_the_job_goes_on(
    cluster: Cluster, start: StartOnCluster, tmp_path: Path
) -> None:
    running = begin(start, cluster, "-H", "node1:1,node2:1", "--min-np", "1")
    first = generation(running, 2)
    kill_on(cluster, "node2", "farandole.launch.agents.agent", "-TERM")
    fewer = generation(running, 1)
    again = generation(running, 2, after=fewer[0][1])
    assert again[0][5] == first[0][5]
    kill_on(cluster, "node1", "farandole.launch.agents.agent", "-TERM")  # node2 has another agent, which was not told
    fewer = generation(running, 1, after=again[0][1])
    last = generation(running, 2, after=fewer[0][1])
    assert again[1][5] in {each[5] for each in last}
    assert end(running, tmp_path) == 0


def test_a_new_host_joins_and_one_that_is_taken_away_leaves(
    cluster: Cluster, start: StartOnCluster, tmp_path: Path
) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("node1 slots=1\n")
    running = begin(start, cluster, "--hostfile", "hosts", "--min-np", "1")
    first = generation(running, 1)
    hosts.write_text("node1:1\nnode2:2\n")
    more = generation(running, 3)
    assert more[0][5] == first[0][5]
    hosts.write_text("node2:2\n")
    moved = generation(running, 2, after=more[0][1])
    assert [each[5] for each in moved] == [each[5] for each in more[1:]]
    running.until(lambda: not any("elastic_worker" in words for words in cluster.processes("node1").values()), "to go")
    assert end(running, tmp_path) == 0


@pytest.mark.parametrize("why", ["its time is up", "a more urgent one comes"])
def test_a_job_that_has_to_end_goes_on_from_its_checkpoint_when_slurm_has_requeued_it(
    make_slurm: MakeSlurm, tmp_path: Path, why: str
) -> None:
    slurm, out = make_slurm(2), tmp_path / "out.txt"
    worker = SUPPORT / "checkpoint_worker.py"
    command = shlex.join([sys.executable, "-m", "farandole", "run", "--min-np", "2", sys.executable, str(worker)])
    (tmp_path / "job.sh").write_text(f"#!/bin/sh\n{command} && exit\n[ $? = 143 ] && scontrol requeue $SLURM_JOB_ID\n")
    is_short = why == "its time is up"
    limit = ["--time=1", "--signal=TERM@25"] if is_short else []  # in minutes, and seconds before; looks every 30 s
    how = ["-N2", "-n4", "--ntasks-per-node=2", "--requeue", "--open-mode=append", f"--output={out}", *limit]
    number = slurm.run(["sbatch", "--parsable", *how, "job.sh"], cwd=tmp_path).stdout.strip()

    def said(pattern: str) -> list[tuple[int, int]]:
        """By which place, and of which step."""
        found = re.findall(rf"worker (\d+) {pattern}", out.read_text() if out.exists() else "")
        return sorted((int(worker_id), int(step)) for worker_id, step in found)

    if not is_short:
        wait_for(lambda: len(said(r"trains: rank . of 4, step (\d+)")) >= 4, "four workers", out)
        slurm.run(["sbatch", "-p", URGENT, "-N2", "--exclusive", "--output=/dev/null", "--wrap", "true"], cwd=tmp_path)
    wait_for(lambda: len(said(r"leaves at step (\d+)")) == 4, "the first four workers to leave", out)
    wait_for(lambda: len(said(r"trains: rank . of 4, step (\d+)")) == 8, "four others", out)
    left, found = said(r"leaves at step (\d+)"), said(r"goes on from step (\d+)")
    assert [step for _, step in found] == [max(step for _, step in left)] * 4
    if is_short:  # one that is preempted may be killed before it has told
        text = out.read_text()
        if "SIGTERM: ending 4 workers" not in text:  # one that starts late hears of the limit itself, launcher and all
            assert "the job is told to end (SIGTERM): all workers leave at their next commit" in text, text
            assert "the job was told to end, and all workers have left" in text, text
    assert slurm.run(["squeue", "-h", "-o", "%i"]).stdout.split() == [number]
    slurm.run(["scancel", number])
    cluster = slurm.cluster
    wait_for(
        lambda: not any("python" in w for h in cluster.hosts for w in cluster.processes(h).values()), "the end", out
    )


def wait_for(condition: Callable[[], bool], what: str, out: Path) -> None:
    """Fail, with what the job has written, if it takes too long."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(f"waited in vain for {what}\n{out.read_text() if out.exists() else ''}")
        time.sleep(0.05)  # nothing announces what a file shows


@pytest.mark.parametrize("signal", ["-KILL", "-TERM"])
def test_nothing_is_left_on_any_host(cluster: Cluster, start: StartOnCluster, signal: str) -> None:
    running = begin(start, cluster, "-H", "node1:1,node2:1", "--min-np", "1")
    generation(running, 2)
    kill_on(cluster, HEAD, "farandole run", signal)
    running.leaves_nothing()
