"""Scenarios on a real Ray cluster of two nodes, both on this machine."""

from __future__ import annotations

import os
import tempfile

import farandole.ray
from tests.clusters import scenarios


def main() -> None:
    """Start the cluster, play, and leave nothing of it."""
    import ray
    from ray.cluster_utils import Cluster

    with tempfile.TemporaryDirectory(prefix="ray", dir="/tmp", ignore_cleanup_errors=True) as folder:
        os.environ |= {"HOME": folder, "RAY_TMPDIR": folder}  # Ray keeps a token in one, and its address in the other
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
        cluster.add_node(num_cpus=1)
        try:
            ray.init(address=cluster.address, log_to_driver=False)
            scenarios.play(farandole.ray.run, 2)
        finally:
            ray.shutdown()
            cluster.shutdown()


if __name__ == "__main__":
    main()
