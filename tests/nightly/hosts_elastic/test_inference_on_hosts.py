"""Predictions by workers on two hosts, one of which loses power: the rows of one process, each sample answered once."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from farandole.inference import Draw, opened
from farandole.inference.records import Answer, read_record
from tests.support.cluster.running import ClusterJob
from tests.support.inference.predicting import BATCH, BLOCK_BATCHES, SAMPLES
from tests.support.paths import SUPPORT
from workbench.cluster import HEAD, Cluster

PROGRAM = str(SUPPORT / "inference" / "predicting.py")
BLOCK = BATCH * BLOCK_BATCHES
SHORT = {"FARANDOLE_HOST_TIMEOUT_S": "3"}


def recorded(output: Path) -> dict[int, Answer]:
    """Records of the blocks so far."""
    files = {i: output.with_name(f"{output.name}.blocks") / f"block-{i:06d}" for i in range(SAMPLES // BLOCK)}
    return {i: found for i, each in files.items() if (found := read_record(each, Answer)) is not None}


def started(cluster: Cluster, folder: Path, read_s: float) -> ClusterJob:
    """The program on ``head``, with two workers on each node."""
    command = [sys.executable, PROGRAM, str(folder / "out"), "--workers", "4", "--hosts", "node1:2,node2:2"]
    return ClusterJob(cluster, folder, [*command, "--read-s", str(read_s)], SHORT, HEAD)


def check(folder: Path) -> Counter[int]:
    """Compare the answers with those of a loop; how often each sample was read."""
    found = opened(folder / "out")
    assert found["twice"][:].tolist() == [2 * i for i in range(SAMPLES)]
    assert found["noise"][:].tolist() == [Draw(7, range(i, i + 1)).rng(i).normal() for i in range(SAMPLES)]
    found.verify()
    return Counter(int(line.split()[0]) for line in (folder / "reads").read_text().splitlines())


def test_two_hosts_share_the_samples(cluster: Cluster, tmp_path: Path) -> None:
    running = started(cluster, tmp_path, read_s=0.03)
    assert running.end() == 0, running.stderr
    assert "on node1 node2" in running.stdout
    assert set(check(tmp_path).values()) == {1}


def test_a_host_without_power_costs_the_blocks_that_it_had(
    make_cluster: Callable[..., Cluster], tmp_path: Path
) -> None:
    cluster = make_cluster(2)
    running = started(cluster, tmp_path, read_s=0.05)
    output = tmp_path / "out"
    running.until(lambda: {"node1", "node2"} <= {each.host for each in recorded(output).values()}, "for both hosts")
    cluster.kill("node2")
    before = recorded(output)
    assert len(before) < SAMPLES // BLOCK
    running.until(lambda: running.process.poll() is not None, "for the end")
    cluster.boot("node2")
    assert running.end() == 0, running.stderr
    times = check(tmp_path)
    assert {i: each for i, each in recorded(output).items() if i in before} == before  # none is computed again
    again = {sample // BLOCK for sample, number in times.items() if number > 1}
    assert len(again) <= 4
    assert not again & {*before}
    assert max(times.values()) <= 3
