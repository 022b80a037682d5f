"""Plan of a job: hosts and slots to ranks, and the command and environment of each worker. Pure.

    >>> assign_ranks(3, (Host("a", 2), Host("b", 2)))
    ('a', 'a', 'b')

Ranks fill the hosts in the given order, as in Horovod's launcher.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import final

import msgspec

from farandole.cluster import hostlist
from farandole.cluster.environment import WATCHED, variables_for
from farandole.control.agent_messages import StartWorkers, WorkerSpec
from farandole.control.monitor_messages import MonitorConfig
from farandole.errors import UsageError
from farandole.launch.agents.agents import AgentStarter
from farandole.launch.agents.worker_output import is_nested
from farandole.launch.hosts import horovod_site
from farandole.launch.hosts.places import torch_ranks, wants_torch_environment
from farandole.launch.hosts.remote_environment import for_other_hosts
from farandole.settings import Settings
from farandole.topology import Topology

LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")

_BRACKETED = re.compile(r"\[([0-9a-fA-F:.]*:[0-9a-fA-F:.]*(?:%\w+)?)\]")
_NAME = re.compile(r"[\w.:%@~-]+")


@final
class Host(msgspec.Struct, frozen=True):
    """A machine and its number of slots for workers (0: as many as requested)."""

    name: str
    slots: int = 0


@final
class Job(msgspec.Struct, frozen=True):
    """Request for a launch.

    ``hosts``: host of each rank; ``starter``: starts the agents there (``None``: all ranks are on this host). Workers
    get the launcher's variables and ``environment``; ``python_path`` is put before their ``PYTHONPATH``. Without
    ``output_dir`` their lines go to the launcher's standard streams, each with its rank. With a ``monitor`` the job is
    recorded, and may have a web page.
    """

    command: list[str]
    hosts: tuple[str, ...]
    settings: Settings = Settings()
    starter: AgentStarter | None = None
    output_dir: str = ""
    timestamps: bool = False
    verbose: bool = False
    python_path: tuple[str, ...] = ()
    environment: dict[str, str] = {}
    monitor: MonitorConfig | None = None

    @property
    def size(self) -> int:
        """Number of workers."""
        return len(self.hosts)


def parse_hosts(text: str, slots_each: int = 1, source: str = "-H") -> tuple[Host, ...]:
    """Parse hosts like ``"a:4,b,node[01-04]:2,[fd77::1]:2"``; without a number a host has one slot, as in Horovod.

    ``slots_each``: another default. Errors name the ``source``.
    """
    hosts: list[Host] = []
    for item in hostlist.split(text):
        name, colon, slots = item.strip().rpartition(":")
        if not colon or "]" in slots:
            name, slots = item.strip(), str(slots_each)
        if ":" in name and not _BRACKETED.fullmatch(name):
            raise UsageError(f"{source} {text!r}: an IPv6 address is written in brackets: [{item.strip()}]:4")
        if not name or not slots.isdecimal() or int(slots) < 1:
            raise UsageError(f"{source} {text!r}: {item!r} is no host; write NAME:SLOTS, for example -H localhost:4")
        hosts += [Host(each, int(slots)) for each in _names(name)]
    return tuple(hosts)


def parse_hostfile(text: str) -> tuple[Host, ...]:
    """Parse lines of ``NAME slots=N``; empty lines and comments after ``#`` are ignored."""
    hosts = parse_host_lines(text)
    if not hosts:
        raise UsageError("the host file names no host; write one a line: NAME slots=N")
    return hosts


def parse_host_lines(text: str, slots_each: int = 1, source: str = "the host file") -> tuple[Host, ...]:
    """Parse lines as in a host file, also ``NAME:N``; there may be none. Errors name the ``source``."""
    hosts: list[Host] = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        name, *rest = words
        if not rest:
            hosts += parse_hosts(name, slots_each, f"line {number} of {source},")
            continue
        slots = rest[0].removeprefix("slots=") if len(rest) == 1 else ""
        if not slots.isdecimal() or int(slots) < 1:
            raise UsageError(f"line {number} of {source}, {line.strip()!r}, is not of the form: NAME slots=N")
        hosts += [Host(each, int(slots)) for each in _names(name)]
    return tuple(hosts)


def by_own_name(hosts: Sequence[Host], here: str, is_own: Callable[[str], bool]) -> tuple[Host, ...]:
    """Rename entries of this machine to ``here``, and add up several entries of one host.

    ``is_own`` resolves a name; it is called only for addresses, and for names that differ from ours by their domain.
    """
    slots: dict[str, int] = {}
    for host in hosts:
        name = here if _is_here(host.name, here, is_own) else host.name
        slots[name] = slots.get(name, 0) + host.slots
    return tuple(Host(name, number) for name, number in slots.items())


def within(hosts: Sequence[Host], most: int) -> tuple[Host, ...]:
    """The first hosts with ``most`` slots in total, reducing the slots of the last one; 0: all hosts.

    >>> within((Host("a", 2), Host("b", 2), Host("c", 2)), 3)
    (Host(name='a', slots=2), Host(name='b', slots=1))
    """
    if not most:
        return tuple(hosts)
    taken, left = [], most
    for host in hosts:
        if left > 0:
            taken.append(Host(host.name, min(host.slots, left)))
            left -= host.slots
    return tuple(taken)


def assign_ranks(np: int | None, hosts: Sequence[Host]) -> tuple[str, ...]:
    """Host of each rank. Without ``np`` every slot is used; without hosts all ranks are on this host."""
    if np is None:
        if not hosts:
            raise UsageError("how many workers? Say -np N, for example: farandole run -np 4 python train.py")
        np = sum(host.slots for host in hosts)
    if np < 1:
        raise UsageError(f"-np {np} asks for no worker; it must be at least 1")
    slots = [host.name for host in hosts or (Host(LOCAL_NAMES[0], np),) for _ in range(host.slots)]
    if np > len(slots):
        raise UsageError(
            f"-np {np} asks for more workers than the hosts have slots ({len(slots)}): "
            f"give them more, for example -H {hosts[0].name}:{np}"
        )
    return tuple(slots[:np])


def workers(job: Job, secret: str, inherited: Mapping[str, str]) -> list[WorkerSpec]:
    """Specs of all workers; their agent adds inherited variables and the controller's address."""
    shared = variables_for_all(job, inherited)
    if job.monitor is not None:
        shared[WATCHED] = "1"
    has_torchs = wants_torch_environment(job.settings)
    specs = []
    for rank in range(job.size):
        topology = Topology.of(rank, job.hosts, 0)
        own = {**variables_for(topology, "", secret), **(torch_ranks(topology) if has_torchs else {})}
        specs.append(WorkerSpec(rank, job.command, {**shared, **own}))
    return specs


def start_workers(job: Job, specs: Sequence[WorkerSpec], size: int, *, inherits: bool) -> StartWorkers:
    """Order for an agent; ``inherits``: whether it has the launcher's variables; ``size``: that of the job."""
    return StartWorkers(
        list(specs),
        environment={} if inherits else for_other_hosts(os.environ),
        output_dir=os.path.abspath(job.output_dir) if job.output_dir else "",
        timestamps=job.timestamps,
        colour=os.isatty(1) and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb",
        nested=is_nested(os.environ),
        cwd=os.getcwd(),
        size=size,
        grace_s=job.settings.grace_s,
    )


def variables_elsewhere(job: Job) -> dict[str, str]:
    """Variables of all workers that have none of the launcher's: every setting that differs from its default."""
    shared = {"PYTHONUNBUFFERED": "1", **job.settings.to_environment(Settings.resolve(environment={}))}
    return {**shared, **job.environment}


def variables_for_all(job: Job, inherited: Mapping[str, str]) -> dict[str, str]:
    """Variables of all workers besides inherited ones."""
    shared = job.settings.to_environment(Settings.resolve(environment=inherited))
    if "PYTHONUNBUFFERED" not in inherited:
        shared["PYTHONUNBUFFERED"] = "1"  # no lost or delayed lines, even of a killed worker
    shared.update(job.environment)
    if job.settings.horovod:
        shared.update(horovod_site.variables({**inherited, **shared}))
    if job.settings.cray:
        path = shared.get("PYTHONPATH", inherited.get("PYTHONPATH", ""))
        shared["PYTHONPATH"] = horovod_site.before(horovod_site.CRAY_SITE, path)
    if job.python_path:
        rest = shared.get("PYTHONPATH", inherited.get("PYTHONPATH"))
        shared["PYTHONPATH"] = os.pathsep.join([*job.python_path, *filter(None, [rest])])
    return shared


def _names(text: str) -> tuple[str, ...]:
    """Hosts of one entry."""
    if match := _BRACKETED.fullmatch(text):
        return (match[1],)
    names = (text,) if ":" in text else hostlist.expand(text)
    for name in names:
        if not _NAME.fullmatch(name) or name.startswith("-"):
            raise UsageError(f"{name!r} is no name of a host; write, for example, -H localhost:4")
    return names


def _is_here(name: str, here: str, is_own: Callable[[str], bool]) -> bool:
    name, here = name.lower(), here.lower()  # host names are case-insensitive
    if name in (*LOCAL_NAMES, here):
        return True
    is_address = ":" in name or name.replace(".", "").isdecimal()
    return (is_address or name.partition(".")[0] == here.partition(".")[0]) and is_own(name)
