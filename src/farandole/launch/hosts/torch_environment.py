"""Variables by which ``torch.distributed`` (``env://``), Lightning, Accelerate and DeepSpeed start. Pure.

    >>> torch_ranks(Topology.of(3, ("a", "a", "b", "b"), 0))
    {'RANK': '3', 'WORLD_SIZE': '4', 'LOCAL_RANK': '1', 'LOCAL_WORLD_SIZE': '2'}
    >>> torch_meeting(("a", "a", "b", "b"), 29500)
    {'MASTER_ADDR': 'a', 'MASTER_PORT': '29500'}

Scripts of an elastic job do not get them, as ranks change there, nor those that speak Horovod's names
(``--horovod``): some of them take the variables for a sign that PyTorch's own launcher has started them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from farandole.control.agent_messages import StartWorkers
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
    """Place where rank 0 will listen."""
    address = "127.0.0.1" if len(set(hosts)) == 1 else hosts[0]
    return dict(zip(MEETING, (address, str(port)), strict=True))


def with_meeting(
    start: StartWorkers, hosts: Sequence[str], settings: Settings, port: int, inherited: Mapping[str, str]
) -> StartWorkers:
    """The order to start workers, with the place where rank 0 of their job listens, at a ``port`` of its host.

    Not if who started the launcher has named one, and it is none of a job of which the launcher is a worker.
    """
    is_told = all(inherited.get(name) for name in MEETING) and "RANK" not in inherited
    if is_told or not port or not wants_torch_environment(settings):
        return start
    return msgspec.structs.replace(start, environment={**start.environment, **torch_meeting(hosts, port)})
