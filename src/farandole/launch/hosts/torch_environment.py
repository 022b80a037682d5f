"""Environment variables for ``torch.distributed`` (``env://``), Lightning, Accelerate and DeepSpeed. Pure.

    >>> torch_ranks(Topology.of(3, ("a", "a", "b", "b"), 0))
    {'RANK': '3', 'WORLD_SIZE': '4', 'LOCAL_RANK': '1', 'LOCAL_WORLD_SIZE': '2'}
    >>> torch_meeting(("a", "a", "b", "b"), 29500)
    {'MASTER_ADDR': 'a', 'MASTER_PORT': '29500'}

Scripts of an elastic job do not get them, because ranks change there, nor scripts that use Horovod's names
(``--horovod``): some of these take the variables as a sign that PyTorch's own launcher started them.
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
