"""Jobs whose workers are reached through relays, and what becomes of them if a host between is lost."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from farandole.testing.cluster import HEAD, Cluster
from tests.cluster.test_faults import FARANDOLE_RUN, Job

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
    assert re.search(rf"^farandole: .*{host}.*not been heard of", said, re.MULTILINE), said
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
