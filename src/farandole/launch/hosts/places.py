"""Addresses at which workers will listen, in the variables of PyTorch and TensorFlow. Pure.

    >>> tf_config(("a", "a", "b"), {"a": (7000, 7001, 7002), "b": (8000, 8001)}, 2)
    '{"cluster":{"worker":["a:7001","a:7002","b:8001"]},"task":{"type":"worker","index":2}}'

The first free port of a host is for PyTorch (``MASTER_PORT``), the following ones for the host's workers.

Environment variables for ``torch.distributed`` (``env://``), Lightning, Accelerate and DeepSpeed. Pure.

    >>> torch_ranks(Topology.of(3, ("a", "a", "b", "b"), 0))
    {'RANK': '3', 'WORLD_SIZE': '4', 'LOCAL_RANK': '1', 'LOCAL_WORLD_SIZE': '2'}
    >>> torch_meeting(("a", "a", "b", "b"), 29500)
    {'MASTER_ADDR': 'a', 'MASTER_PORT': '29500'}

Scripts of an elastic job do not get them, because ranks change there, nor scripts that use Horovod's names
(``--horovod``): some of these take the variables as a sign that PyTorch's own launcher started them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from farandole.control.agent_messages import StartWorkers
from farandole.events import logger
from farandole.settings import Settings
from farandole.topology import Topology

MEETING = ("MASTER_ADDR", "MASTER_PORT")


def wants_torch_environment(settings: Settings) -> bool:
    """True if workers get these variables."""
    return settings.torch_env and not settings.horovod and not settings.is_elastic


def torch_ranks(topology: Topology) -> dict[str, str]:
    """Rank and size of a worker."""
    values = (topology.rank, topology.size, topology.local_rank, topology.local_size)
    return dict(zip(("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"), map(str, values), strict=True))


def torch_meeting(hosts: Sequence[str], port: int) -> dict[str, str]:
    """Address and port at which rank 0 will listen."""
    address = "127.0.0.1" if len(set(hosts)) == 1 else hosts[0]
    return dict(zip(MEETING, (address, str(port)), strict=True))


def with_meeting(
    start: StartWorkers, hosts: Sequence[str], settings: Settings, port: int, inherited: Mapping[str, str]
) -> StartWorkers:
    """The order to start workers, with the address of rank 0 and a ``port`` of its host.

    Unchanged if the launcher's environment has these variables already, unless from an outer job (``RANK`` is set).
    """
    is_told = all(inherited.get(name) for name in MEETING) and "RANK" not in inherited
    if is_told or not port or not wants_torch_environment(settings):
        return start
    return msgspec.structs.replace(start, environment={**start.environment, **torch_meeting(hosts, port)})


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
