"""Searches on several hosts made of namespaces, with agents over real ssh."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from workbench.cluster import HEAD, Cluster

DEADLINE_S = 90.0

UNTIL_GO = """\
            while trial.number == 0 and state.epoch == 3 and not pathlib.Path("go").exists():
                time.sleep(0.02)
"""
SCRIPT = """
import os, pathlib, time
import numpy as np
import farandole.numpy as hvd
from farandole.numpy import elastic

def train(trial):
    hvd.init()
    state = elastic.NumpyState(weights={"w": np.zeros(2)}, epoch=0)
    trial.resume(state)

    @elastic.run
    def epochs(state):
        while state.epoch < trial.epochs:
UNTIL_GO
            state.weights["w"] += hvd.allreduce(np.ones(2), name="gradient")
            state.epoch += 1
            assert state.weights["w"].tolist() == [state.epoch] * 2, (state.weights, state.epoch)
            if hvd.rank() == 0:
                fd = os.open("epochs.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
                os.write(fd, f"{trial.number} {state.epoch} {os.uname().nodename} {hvd.size()}\\n".encode())
                os.close(fd)
            trial.report(trial.number + 1 / state.epoch, state.epoch)

    epochs(state)
""".replace("UNTIL_GO\n", UNTIL_GO)


def search(cluster: Cluster, folder: Path, *words: str, script: str = SCRIPT) -> subprocess.Popen[str]:
    """``farandole search`` on the head."""
    (folder / "tune.py").write_text(script)
    (folder / "space.toml").write_text("[x]\nlow = 0.0\nhigh = 1.0\n")
    command = [sys.executable, "-m", "farandole", "search", "tune.py", "space.toml", "--folder", "run", *words]
    patient = {"FARANDOLE_HOST_TIMEOUT_S": "5", "FARANDOLE_START_TIMEOUT_S": "60"}
    with (folder / "said.txt").open("w") as said:
        return cluster.popen(HEAD, command, cwd=folder, env=patient, stdout=said, stderr=said)


def epochs(folder: Path) -> list[tuple[int, int, str, int]]:
    """Trial, epoch, host of rank 0, and number of ranks, in the order in which they were trained."""
    path = folder / "epochs.txt"
    lines = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
    return [(int(trial), int(epoch), host, int(size)) for trial, epoch, host, size in lines]


def firsts(folder: Path) -> list[tuple[int, int, int]]:
    """The same without hosts."""
    return [(trial, epoch, size) for trial, epoch, _, size in epochs(folder)]


def until(condition: Callable[[], bool], what: str, folder: Path) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline_s, f"waited in vain {what}\n{(folder / 'said.txt').read_text()}"
        time.sleep(0.02)  # nothing announces a file of another host


def test_a_host_loses_power_and_its_trials_go_on_from_their_last_reports(
    make_cluster: Callable[..., Cluster], tmp_path: Path
) -> None:
    cluster = make_cluster(2)
    words = ["--hosts", "node1,node2", "--trials", "2", "--epochs", "9", "--min-epochs", "9"]
    with search(cluster, tmp_path, *words) as process:
        until(lambda: (0, 3, 1) in firsts(tmp_path) or process.poll() is not None, "for trial 0", tmp_path)
        assert process.poll() is None, (tmp_path / "said.txt").read_text()
        host = next(host for trial, _, host, _ in epochs(tmp_path) if trial == 0)
        cluster.kill(host)
        (tmp_path / "go").touch()
        until(lambda: process.poll() is not None, "for the end", tmp_path)
        said = (tmp_path / "said.txt").read_text()
        assert process.returncode == 0, said
    assert f"the search goes on without host {host}" in said
    trained = [epoch for trial, epoch, _, _ in epochs(tmp_path) if trial == 0]
    assert trained in ([1, 2, 3, 4, 5, 6, 7, 8, 9], [1, 2, 3, 3, 4, 5, 6, 7, 8, 9]), "it lost more than one epoch"
    assert {other for trial, epoch, other, _ in epochs(tmp_path) if trial == 0 and epoch > 3} == {
        ({"node1", "node2"} - {host}).pop()
    }
    entries = [json.loads(line) for line in (tmp_path / "run" / "trials.log").read_text().splitlines()]
    assert [each["state"] for each in entries if each["op_code"] == 6] == [1, 1]
    until(lambda: not cluster.processes(HEAD), "for the last process", tmp_path)


def test_a_trial_has_workers_of_two_hosts(cluster: Cluster, tmp_path: Path) -> None:
    words = ["--hosts", "node[1-2]:2", "--trials", "1", "--epochs", "4", "--workers", "4"]
    (tmp_path / "go").touch()
    with search(cluster, tmp_path, *words) as process:
        until(lambda: process.poll() is not None, "for the end", tmp_path)
        said = (tmp_path / "said.txt").read_text()
        assert process.returncode == 0, said
    assert [(epoch, size) for _, epoch, _, size in epochs(tmp_path)] == [(1, 4), (2, 4), (3, 4), (4, 4)]
    until(lambda: not any(cluster.processes(host) for host in cluster.hosts), "for the last process", tmp_path)


def test_a_host_that_cannot_be_reached_costs_nothing_but_itself(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "go").touch()
    words = ["--trials", "2", "--epochs", "1"]
    with search(cluster, tmp_path, "--hosts", "node1,nowhere", *words) as process:
        until(lambda: process.poll() is not None, "for the end", tmp_path)
        said = (tmp_path / "said.txt").read_text()
        assert process.returncode == 0, said
    assert "without host nowhere" in said
    with search(cluster, tmp_path, "--hosts", "nowhere", *words, "--seed", "1", "--folder", "other") as process:
        until(lambda: process.poll() is not None, "for the end", tmp_path)
        said = (tmp_path / "said.txt").read_text()
        assert process.returncode != 0
    assert "no host of the search is left" in said
    assert "Traceback" not in said
