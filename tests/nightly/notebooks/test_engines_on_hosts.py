"""Engines that ``ipp.Cluster(engines="farandole")`` starts on other hosts, over real ssh and by a real ``srun``."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from farandole.monitor.folder import PointRecord, read_records
from workbench.cluster import HEAD, Cluster, SlurmCluster

DEADLINE_S = 200.0

SCRIPT = """
import logging, sys, time
import ipyparallel as ipp
from traitlets.config import Config
import farandole.notebook

config = Config()
config.FarandoleEngineSetLauncher.hosts = sys.argv[2]
cluster = ipp.Cluster(
    engines="farandole", n=2, config=config, log_level=logging.ERROR, controller_ip=sys.argv[1],
    controller_location=sys.argv[1], controller_args=["--IPController.enable_curve=True"],
)
rc = cluster.start_and_connect_sync()
ranks = farandole.notebook.attach(rc, record="run")
cell = '''
import os
import numpy as np
import farandole.numpy as hvd
hvd.init()
hvd.log(loss=1.0)
assert os.environ["OF_THE_NOTEBOOK"] == "as in farandole run"
print(hvd.rank(), os.uname().nodename, hvd.allreduce(np.ones(1), op=hvd.Sum).tolist(), flush=True)
'''
ranks.run(cell)
first = [(seat.report.host, seat.report.pid) for seat in ranks.seats]
ranks.kill(1)
while ranks.living != [0]:
    time.sleep(0.02)
ranks.replace(setup=cell)
ranks.run(cell)
again = [(seat.report.host, seat.report.pid) for seat in ranks.seats]
assert again[0] == first[0] and again[1] != first[1], (first, again)
print("replaced on", again[1][0])
ranks.close()
cluster.stop_cluster_sync()
"""


def require_ranks_on_two_hosts(said: str, folder: Path) -> None:
    """The cell ran on both hosts before and after the engine of rank 1 was replaced, and the record has both ranks."""
    lines = said.splitlines()
    # Ranks are in the order of IPython Parallel's numbers: who has started sooner may come first.
    hosts = [line.split()[2] for rank in (0, 1) for line in lines if line.startswith(f"[stdout:{rank}] {rank} ")][::2]
    assert sorted(hosts) == ["node1", "node2"], said
    for rank, host in enumerate(hosts):
        assert lines.count(f"[stdout:{rank}] {rank} {host} [2.0]") == 2, said
    assert f"replaced on {hosts[1]}" in lines
    points = [record for record in read_records(folder / "run") if isinstance(record, PointRecord)]
    assert {each.rank for each in points} == {0, 1}, "the monitor beside the notebook reaches a controller on node1"


def run(cluster: Cluster, folder: Path, hosts: str, *before: str) -> str:
    """Run the script on the head, as an argument of the command ``before``."""
    (folder / "train.py").write_text(SCRIPT)
    command = [*before, sys.executable, "-W", "default", "train.py", cluster.address(HEAD).ipv4, hosts]
    told = {"IPYTHONDIR": str(folder / "ipython"), "OF_THE_NOTEBOOK": "as in farandole run"}
    return cluster.run(HEAD, command, cwd=folder, env=told, timeout_s=DEADLINE_S).stdout


def test_engines_come_over_ssh_and_one_is_replaced_where_it_was(cluster: Cluster, tmp_path: Path) -> None:
    require_ranks_on_two_hosts(run(cluster, tmp_path, "node1:1,node2:1"), tmp_path)
    until_s = time.monotonic() + 30.0
    while any(cluster.processes(host) for host in cluster.hosts):
        assert time.monotonic() < until_s, {host: cluster.processes(host) for host in cluster.hosts}
        time.sleep(0.02)  # nothing announces it


def test_engines_come_by_srun_to_the_hosts_of_an_allocation(slurm: SlurmCluster, tmp_path: Path) -> None:
    allocated = ("salloc", "--quiet", "--nodes=2", "--ntasks=2")
    require_ranks_on_two_hosts(run(slurm.cluster, tmp_path, "", *allocated), tmp_path)
