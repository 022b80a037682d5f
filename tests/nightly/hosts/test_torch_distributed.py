"""Scripts of ``torch.distributed`` under ``farandole run`` on two hosts, on Gloo and on ours; and ``TF_CONFIG``."""

from __future__ import annotations

import sys

import pytest

from tests.support.cluster.running import DEADLINE_S
from workbench.cluster import HEAD, Cluster

SCRIPT = """
import sys, torch
import torch.distributed as dist
dist.init_process_group(sys.argv[1])
rank, size = dist.get_rank(), dist.get_world_size()
total, message = torch.full((4,), 1.0 + rank), torch.empty(3)
dist.all_reduce(total)
work = dist.isend(torch.full((3,), float(rank)), (rank + 1) % size)
dist.recv(message, (rank - 1) % size)
assert (total == 6).all() and (message == (rank - 1) % size).all()
part = dist.new_group([0, 2])  # one on each host
if rank != 1:
    dist.all_reduce(total, group=part)
    assert (total == 12).all()
dist.barrier()
dist.destroy_process_group()
print("well", flush=True)
"""


@pytest.mark.parametrize("backend", ["gloo", "farandole"])
def test_groups_between_hosts(cluster: Cluster, backend: str) -> None:
    command = [sys.executable, "-m", "farandole", "run", "-H", "node1:2,node2:1", "--start-timeout", "60"]
    done = cluster.run(HEAD, [*command, sys.executable, "-c", SCRIPT, backend], timeout_s=DEADLINE_S, check=False)
    assert (done.returncode, done.stdout.count("well")) == (0, 3), done.stdout + done.stderr


OF_TENSORFLOW = """
import json, os, socket
config = json.loads(os.environ["TF_CONFIG"])
assert config["task"]["index"] == int(os.environ["RANK"])
host, port = config["cluster"]["worker"][config["task"]["index"]].split(":")
with socket.socket() as probe:
    probe.bind((host, int(port)))  # it is an address of this host, and free
print(config["cluster"]["worker"], flush=True)
"""


def test_workers_of_tensorflow_have_ports_of_their_hosts(cluster: Cluster) -> None:
    command = [sys.executable, "-m", "farandole", "run", "-H", "node1:2,node2:1", "--tf-config"]
    done = cluster.run(HEAD, [*command, sys.executable, "-c", OF_TENSORFLOW], timeout_s=DEADLINE_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    [told] = {line.partition(">:")[2] for line in done.stdout.splitlines()}
    assert [each.strip(" '[]").partition(":")[0] for each in told.split(",")] == ["node1", "node1", "node2"]
