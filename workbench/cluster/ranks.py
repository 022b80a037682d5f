"""Ranks for ``run_ranks`` on the hosts of a cluster.

with Cluster(2) as cluster:
    hosts = ["node1", "node1", "node2"]
    run_ranks(program, 3, start=on_hosts(cluster, hosts), hosts=hosts)
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from typing import IO

from farandole.testing.harness import Start
from workbench.cluster.hosts import Cluster, Process


def on_hosts(cluster: Cluster, hosts: Sequence[str]) -> Start:
    """Return a ``Start`` that puts rank ``r`` on ``hosts[r]``."""

    def start(size: int, command: list[str], environment: Mapping[str, str], output: IO[bytes]) -> list[Process]:
        place = dict(enumerate(hosts[:size]))
        return [
            cluster.popen(
                host, [*command, str(rank)], env=environment, stdout=output.fileno(), stderr=subprocess.STDOUT
            )
            for rank, host in place.items()
        ]

    return start
