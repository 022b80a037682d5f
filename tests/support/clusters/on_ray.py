"""Scenarios on a real Ray cluster of two nodes, both on this machine."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import tempfile
from typing import Any

import farandole.ray
from farandole.launch.hosts.horovod_site import HOROVOD_SITE
from tests.support.clusters import scenarios


class Counter:
    """Object that stays on a worker."""

    def __init__(self, start: int, *, step: int) -> None:
        self.value, self.step = start + int(os.environ["HOROVOD_RANK"]), step

    def count(self) -> int:
        """Count once more."""
        self.value += self.step
        return self.value


def executor() -> dict[str, Any]:
    """``horovod.ray.RayExecutor`` from its start to its end, and what it refuses."""
    sys.path.insert(0, HOROVOD_SITE)
    import horovod.ray
    import ray

    made = horovod.ray.RayExecutor(horovod.ray.RayExecutor.create_settings(timeout_s=30), num_workers=2)
    made.start(Counter, [10], {"step": 2}, extra_env_vars={"COLOUR": "blue"})
    seen: dict[str, Any] = {
        "counted": [made.execute(Counter.count), made.execute(Counter.count)],
        "single": made.execute_single(lambda counter: counter.value),
        "run": made.run(lambda one, *, two: [one, two, os.environ["COLOUR"]], [1], {"two": 2}),
        "remote": ray.get(made.run_remote(lambda: os.environ["HOROVOD_SIZE"])),
        "error": scenarios.raised(lambda: made.run(lambda: 1 // 0)),
        "after": made.run(lambda: "here"),
    }
    made.shutdown()
    seen["shut"] = scenarios.raised(lambda: made.run(len, [""]))
    seen["elastic"] = scenarios.raised(lambda: horovod.ray.RayExecutor(min_workers=1))
    seen["elastic_executor"] = scenarios.raised(horovod.ray.ElasticRayExecutor)
    hosts = horovod.ray.RayExecutor(num_hosts=2, num_workers_per_host=1)
    hosts.start()
    seen["hosts"] = hosts.run(lambda: os.environ["HOROVOD_CROSS_RANK"])
    waits = hosts.run_remote(signal.pause)
    hosts.shutdown()  # in the middle of a call
    with contextlib.suppress(Exception):
        ray.get(waits)
    return seen


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
            scenarios.play(farandole.ray.run, 2, nodes=2)
            scenarios.show("horovod", **executor())
        finally:
            ray.shutdown()
            cluster.shutdown()


if __name__ == "__main__":
    main()
