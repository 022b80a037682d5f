"""Addresses at which workers will listen, in the variables of PyTorch and TensorFlow. Pure.

    >>> tf_config(("a", "a", "b"), {"a": (7000, 7001, 7002), "b": (8000, 8001)}, 2)
    '{"cluster":{"worker":["a:7001","a:7002","b:8001"]},"task":{"type":"worker","index":2}}'

The first free port of a host is for PyTorch (``MASTER_PORT``), the following ones for the host's workers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from farandole.control.agent_messages import StartWorkers
from farandole.events import logger
from farandole.launch.hosts.torch_environment import with_meeting
from farandole.settings import Settings

CONFIG = "TF_CONFIG"


def ports_wanted(settings: Settings, hosts: Sequence[str]) -> int:
    """Number of free ports that each host must find; ``hosts``: host of each rank.

    >>> ports_wanted(Settings(tf_config=True), ("a", "a", "b"))
    3
    """
    return 1 + (max(Counter(hosts).values()) if settings.tf_config else 0)


def with_places(
    start: StartWorkers,
    hosts: Sequence[str],
    settings: Settings,
    ports: Mapping[str, Sequence[int]],
    inherited: Mapping[str, str],
) -> StartWorkers:
    """The order to start workers, with all addresses that they need; ``ports``: free ports of each host."""
    start = with_meeting(start, hosts, settings, next(iter(ports.get(hosts[0], ())), 0), inherited)
    if not settings.tf_config or settings.is_elastic:
        return start
    if lacking := [host for host, count in Counter(hosts).items() if len(ports.get(host, ())) <= count]:
        logger.warning("--tf-config: %s has too few free ports, so TF_CONFIG is not set: widen --ports", lacking[0])
        return start
    workers = [
        msgspec.structs.replace(each, environment={**each.environment, CONFIG: tf_config(hosts, ports, each.worker_id)})
        for each in start.workers
    ]
    return msgspec.structs.replace(start, workers=workers)


def tf_config(hosts: Sequence[str], ports: Mapping[str, Sequence[int]], rank: int) -> str:
    """Value of ``TF_CONFIG`` for a rank: all ranks are workers, and TensorFlow takes rank 0 as the chief."""
    seen: Counter[str] = Counter()
    workers = []
    for host in hosts:
        seen[host] += 1
        address = "127.0.0.1" if len(set(hosts)) == 1 else host
        workers.append(f"{address}:{ports[host][seen[host]]}")
    value = {"cluster": {"worker": workers}, "task": {"type": "worker", "index": rank}}
    return msgspec.json.encode(value).decode()
