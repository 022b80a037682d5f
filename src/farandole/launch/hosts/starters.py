"""Choice of the starter of agents: only this host, ssh, or Slurm's ``srun``. Pure, and the only place that chooses.

    >>> choose_starter(Means(), None, ("box", "box"), "box") is None
    True
    >>> choose_starter(Means(), None, ("box", "node2"), "box")
    Ssh(port=None, identity_file='', options=())

Static and elastic jobs use the same function; the hosts of an elastic job may be unknown at that time.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Literal, final

import msgspec

from farandole.cluster.allocation import OWN_NAME, Allocation, allocation
from farandole.cluster.detect import detect
from farandole.cluster.mpi import Mpi
from farandole.cluster.slurm import Slurm
from farandole.errors import UsageError
from farandole.launch.agents.agents import AgentStarter
from farandole.launch.agents.srun import Srun
from farandole.launch.agents.ssh import Ssh

PTY = "SLURM_PTY_PORT"
"""Variable of tasks started by ``srun --pty``; only the first task has a terminal."""

LauncherName = Literal["auto", "local", "ssh", "srun"]


@final
class Means(msgspec.Struct, frozen=True):
    """Means to reach other hosts: the launcher, and the options of ssh."""

    launcher: LauncherName = "auto"
    ssh: Ssh = Ssh()


def own_allocation(means: Means, variables: Mapping[str, str], here: str) -> tuple[Allocation | None, str]:
    """The Slurm allocation of this process, if any, and the name of this host in it (otherwise ``here``).

    Raises ``UsageError`` in one of several tasks: each would start the same training on the same hosts.
    """
    _refuse_many(means, variables)
    slurm = allocation(variables)
    if slurm is None and means.launcher == "srun":
        raise UsageError("--launcher srun starts workers in a Slurm allocation, and this is none: type salloc first")
    return slurm, (variables.get(OWN_NAME) or here) if slurm is not None else here


def _refuse_many(means: Means, variables: Mapping[str, str]) -> None:
    starter = detect(variables)
    if means.launcher == "local" or not isinstance(starter, Slurm | Mpi) or starter.size == 1:
        return
    if PTY in variables and starter.worker_id == 0:  # srun --pty bash: the other shells exit at once
        return
    name, allocate = starter.name, ", or write salloc in its place" if isinstance(starter, Slurm) else ""
    raise UsageError(
        f"{name} has started this launcher {starter.size} times, and each would train on all hosts: leave {name} away"
        f"{allocate}, as farandole run starts the workers itself; or leave farandole run away: {name} python train.py. "
        "For a training of its own in each task: farandole run --launcher local"
    )


def choose_starter(
    means: Means, slurm: Allocation | None, hosts: Collection[str] | None, here: str
) -> AgentStarter | None:
    """The starter for these hosts (``None``: unknown yet); ``None`` if all workers run on this host.

    Slurm starts no process outside its allocation: other hosts are reached by ssh, unless the user gives ``--launcher
    srun``. Raises ``UsageError``, with the fix, for impossible combinations.
    """
    others = None if hosts is None else sorted(set(hosts) - {here})
    if others == [] and means.launcher != "srun":
        return None
    if means.launcher == "local":
        if others:
            raise UsageError(
                f"--launcher local: {', '.join(others)} is not this host ({here}): leave --launcher out, or say "
                f"-H localhost:{len(hosts or ())}"
            )
        return None
    foreign = sorted(set(hosts or ()) - set(slurm.tasks)) if slurm is not None else []
    if means.launcher == "srun" and foreign:
        raise UsageError(
            f"--launcher srun: {', '.join(foreign)} is not in the Slurm allocation; leave -H out to take its hosts"
        )
    if means.launcher == "srun":
        return Srun()
    if means.launcher == "auto" and slurm is not None:
        return Srun(frozenset(slurm.tasks), elsewhere=means.ssh)
    return means.ssh
