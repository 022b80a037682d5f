"""Plan of an elastic job: the source of its hosts and the limits of its size. Pure, but for finding a script.

    elastic = elastic_job(job, None, "", "hosts.txt", Means(), os.environ, "node1")
    ElasticLauncher(elastic).run()

Hosts are those that a script prints, that stand in a file, that ``-H`` names, that Slurm has allocated; or this one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import final

import msgspec

from farandole.errors import UsageError
from farandole.launch.agents.agents import AgentStarter
from farandole.launch.agents.local import Local
from farandole.launch.hosts.discovery import Discovery, Fixed, Script, Watched
from farandole.launch.hosts.plan import Host, Job, parse_hosts
from farandole.launch.hosts.starters import Means, choose_starter, own_allocation
from farandole.settings import Settings


@final
class ElasticJob(msgspec.Struct, frozen=True):
    """Everything that is asked of an elastic launch; ``job.hosts`` is empty. ``here`` is what this host is called."""

    job: Job
    discovery: Discovery
    starter: AgentStarter
    here: str

    @property
    def reaches_out(self) -> bool:
        """False if all workers are on this host, whatever happens."""
        return not isinstance(self.starter, Local)


def elastic_job(
    job: Job, np: int | None, hosts: str, hostfile: str, means: Means, variables: Mapping[str, str], here: str
) -> ElasticJob:
    """Plan an elastic job; raises ``UsageError`` for what cannot be, with what to type."""
    settings = limits(job.settings, np)
    slurm, here = own_allocation(means, variables, here)
    slots_each = settings.slots_per_host or 1
    discovery: Discovery
    known: list[str] | None = None
    if settings.host_discovery_script:
        discovery = Script(settings.host_discovery_script, slots_each)
    elif hostfile:
        discovery = Watched(hostfile, slots_each)
    elif hosts:
        discovery = Fixed(parse_hosts(hosts, slots_each))
    elif slurm is not None and means.launcher != "local":
        known = list(slurm.tasks)
        discovery = Fixed([Host(host, settings.slots_per_host or tasks) for host, tasks in slurm.tasks.items()])
    else:
        known = [here]
        discovery = Fixed([Host(here, settings.slots_per_host or settings.max_np or settings.min_np)])
    starter = choose_starter(means, slurm, known, here) or Local()
    return ElasticJob(msgspec.structs.replace(job, settings=settings), discovery, starter, here)


def limits(settings: Settings, np: int | None) -> Settings:
    """Fill in the fewest and the most workers; ``-np`` stands for those of them that were not given."""
    fewest = settings.min_np or (1 if settings.max_np or np is None else np)
    most = settings.max_np or np or 0
    if np is not None and not fewest <= np <= (most or np):
        raise UsageError(f"-np {np} is not between --min-np {fewest} and --max-np {most}")
    if most and most < fewest:
        raise UsageError(f"--max-np {most} is less than --min-np {fewest}")
    return msgspec.structs.replace(settings, min_np=fewest, max_np=most)
