"""Jobs whose workers are reached through relays, and what becomes of them if a host between is lost."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.nightly.hosts_elastic.test_faults import FARANDOLE_RUN, Job
from tests.support.cluster.ranks import FACTS, column, told
from tests.support.cluster.running import ClusterJob
from workbench.cluster import HEAD, Cluster
from workbench.mpi import LAUNCHERS

SSH = (*FARANDOLE_RUN, "-H", "node1:2,node2:2,node3:2")
"""With two children for each relay, the first two agents to answer are the controller's; the third is behind one."""

FAULTS: dict[str, Callable[[Cluster, str], None]] = {
    "cable": lambda cluster, host: cluster.cut(host),
    "power": lambda cluster, host: cluster.kill(host),
    "freeze": lambda cluster, host: cluster.freeze(host),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_lost_relay_is_named_by_the_ranks_below_it_and_by_all_others(
    make_cluster: Callable[..., Cluster], tmp_path: Path, fault: str
) -> None:
    cluster, host = make_cluster(3), "node1"
    job = Job(cluster, tmp_path, "collective", SSH, tree_radix=2)
    job.arrive()
    FAULTS[fault](cluster, host)
    assert job.end() != 0, job.said()
    said = job.said()
    assert re.search(rf"^farandole: .*{host}.*has sent nothing for", said, re.MULTILINE), said
    survivors = [node for node in cluster.nodes if node != host]
    for node in survivors:
        assert len(re.findall(rf"raised {node} \w+ .*{host}", said)) == 2, said
    if fault == "freeze":
        cluster.thaw(host)
    job.leaves_nothing(HEAD, *(cluster.nodes if fault == "freeze" else survivors))


def test_a_job_with_relays_ends_well(make_cluster: Callable[..., Cluster], tmp_path: Path) -> None:
    cluster = make_cluster(3)
    job = Job(cluster, tmp_path, "collective", SSH, tree_radix=2)
    job.arrive()
    job.go_on()
    assert job.end() == 0, job.said()
    assert len(re.findall("done node[123]", job.said())) == 6
    job.leaves_nothing(*cluster.hosts)


def test_four_hosts_of_four_ranks_each(make_cluster: Callable[..., Cluster], tmp_path: Path) -> None:
    """By MPI, whose engine imports no framework: sixteen processes that import torch are a slice of their own."""
    mpi, cluster = LAUNCHERS["mpich"], make_cluster(4)
    if lack := mpi.lack():
        pytest.skip(lack)
    (tmp_path / "rank.py").write_text(FACTS + 'join("first")\njoin("again")\n')
    hosts = ",".join(f"{node}:4" for node in cluster.nodes)
    command = [str(mpi.program), "-launcher", "ssh", "-hosts", hosts, "-n", "16", sys.executable, "rank.py"]
    told_all = {**mpi.environment, "FARANDOLE_TREE_RADIX": "4", "FARANDOLE_ACROSS": "mpi"}
    job = ClusterJob(cluster, tmp_path, command, told_all, "node1")
    assert job.end() == 0, job.stderr
    for when in ("first", "again"):
        facts = told(job.stdout, when)
        assert column(facts, "rank") == list(range(16))
        assert column(facts, "host") == [node for node in cluster.nodes for _ in range(4)]
        assert column(facts, "local") == [[rank % 4, 4] for rank in range(16)]
        assert column(facts, "cross") == [[rank // 4, 4] for rank in range(16)]
        assert column(facts, "sum") == [2.0**16 - 1] * 16
