"""Plan of an elastic job: the source of its hosts and the limits of its size. Pure, except for finding a script.

    elastic = elastic_job(job, None, "", "hosts.txt", Means(), os.environ, "node1")
    ElasticLauncher(elastic).run()

Sources of hosts: the output of a script, a file, ``-H``, Slurm's allocation, or this host.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import final

import msgspec

from farandole.errors import UsageError
from farandole.launch.agents.agents import AgentStarter
from farandole.launch.agents.local import Local
from farandole.launch.hosts.discovery import Discovery, Fixed, Script, SlurmNodes, Watched
from farandole.launch.hosts.leased_hosts import LeasedHosts
from farandole.launch.hosts.plan import Host, Job, parse_hosts
from farandole.launch.hosts.run_folder import RunFolder
from farandole.launch.hosts.starters import Means, choose_starter, own_allocation
from farandole.settings import Settings


@final
class ElasticJob(msgspec.Struct, frozen=True):
    """Request for an elastic launch; ``job.hosts`` is empty. ``here``: the name of this host.

    With a ``folder``, leases may lend it hosts: then ``discovery`` is a ``LeasedHosts``.
    """

    job: Job
    discovery: Discovery
    starter: AgentStarter
    here: str
    folder: RunFolder | None = None

    @property
    def reaches_out(self) -> bool:
        """False if all workers always run on this host."""
        return self.folder is not None or not isinstance(self.starter, Local)


def elastic_job(
    job: Job,
    np: int | None,
    hosts: str,
    hostfile: str,
    means: Means,
    variables: Mapping[str, str],
    here: str,
    run_folder: str = "",
) -> ElasticJob:
    """Plan an elastic job; raises ``UsageError``, with the fix, if it is impossible.

    With a ``run_folder`` the hosts are the leader's own, with ``min_np`` workers.
    """
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
        own = [Host(host, settings.slots_per_host or tasks) for host, tasks in slurm.tasks.items()]
        # Leases let a run grow: the nodes of the leader are looked at only after the loss of one, not every minute.
        look_s = math.inf if run_folder and settings.slurm_look_s else settings.slurm_look_s
        discovery = SlurmNodes(slurm.job, own, look_s, variables) if look_s else Fixed(own)
    else:
        known = [here]
        most = settings.min_np if run_folder else settings.max_np or settings.min_np
        discovery = Fixed([Host(here, settings.slots_per_host or most)])
    starter = choose_starter(means, slurm, known, here) or Local()
    job = msgspec.structs.replace(job, settings=settings)
    if not run_folder:
        return ElasticJob(job, discovery, starter, here)
    return ElasticJob(job, LeasedHosts(discovery), starter, here, RunFolder.create(run_folder))


def limits(settings: Settings, np: int | None) -> Settings:
    """Fill in ``min_np`` and ``max_np``; ``-np`` replaces those that were not given."""
    fewest = settings.min_np or (1 if settings.max_np or np is None else np)
    most = settings.max_np or np or 0
    if np is not None and not fewest <= np <= (most or np):
        raise UsageError(f"-np {np} is not between --min-np {fewest} and --max-np {most}")
    if most and most < fewest:
        raise UsageError(f"--max-np {most} is less than --min-np {fewest}")
    return msgspec.structs.replace(settings, min_np=fewest, max_np=most)
