"""Placement of a job: the host of each rank, and the starter of agents there. Pure except for name lookups.

    >>> where(3, (Host("localhost", 4),), Means(), {}, "box").hosts
    ('box', 'box', 'box')

Without hosts, the job uses those of the Slurm allocation in which it starts, or this host.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from farandole.cluster.allocation import Allocation
from farandole.control.addresses import is_own as looked_up
from farandole.errors import UsageError
from farandole.launch.agents.agents import AgentStarter
from farandole.launch.hosts.plan import Host, assign_ranks, by_own_name, parse_hostfile, parse_hosts
from farandole.launch.hosts.starters import Means, choose_starter, own_allocation


class Where(NamedTuple):
    """The host of each rank, and the starter of agents (``None``: all ranks are on this host)."""

    hosts: tuple[str, ...]
    starter: AgentStarter | None


def where(
    np: int | None,
    named: Sequence[Host],
    means: Means,
    variables: Mapping[str, str],
    here: str,
    is_own: Callable[[str], bool] = looked_up,
) -> Where:
    """Place the ranks of a job; raises ``UsageError``, with the fix, if that is impossible."""
    slurm, here = own_allocation(means, variables, here)
    if slurm is not None and not named and means.launcher != "local":
        _refuse_beyond(slurm, np)
        named = [Host(host, tasks) for host, tasks in slurm.tasks.items()]
    if not named and np is not None:
        named = [Host(here, np)]
    hosts = assign_ranks(np, by_own_name(named, here, is_own))
    return Where(hosts, choose_starter(means, slurm, hosts, here))


def read_hosts(hosts: str, hostfile: str) -> tuple[Host, ...]:
    """Hosts of ``-H`` or of a host file; none if both are "". Raises ``UsageError``."""
    if hosts:
        return parse_hosts(hosts)
    if not hostfile:
        return ()
    try:
        with open(hostfile, encoding="utf-8") as file:
            return parse_hostfile(file.read())
    except OSError as error:
        raise UsageError(f"the host file {hostfile} cannot be read: {error.strerror}") from error


def _refuse_beyond(slurm: Allocation, np: int | None) -> None:
    slots = sum(slurm.tasks.values())
    if np is not None and np > slots:
        listed = ",".join(f"{host}:{tasks}" for host, tasks in slurm.tasks.items())
        raise UsageError(
            f"-np {np} asks for more workers than Slurm's allocation {slurm.job} has tasks ({slots}: {listed}): ask "
            f"for more (salloc -n {np} ...), or say how many each host takes, such as -H {next(iter(slurm.tasks))}:{np}"
        )
