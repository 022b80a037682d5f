"""From hosts and slots to ranks, and to what each worker is started with. Pure.

    >>> place(3, (Host("a", 2), Host("b", 2)))
    ('a', 'a', 'b')

Ranks fill the hosts in the order given, as Horovod's launcher does.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import final

import msgspec

import farandole
from farandole.cluster.environment import variables_for
from farandole.control.agent_messages import WorkerSpec
from farandole.errors import UsageError
from farandole.settings import Settings
from farandole.topology import Topology

LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")


@final
class Host(msgspec.Struct, frozen=True):
    """A machine and how many workers it takes (0: as many as are asked for)."""

    name: str
    slots: int = 0


@final
class Job(msgspec.Struct, frozen=True):
    """Everything that is asked of a launch.

    Workers get the launcher's variables and ``environment``; ``python_path`` is put before their ``PYTHONPATH``.
    Without ``output_dir`` their lines go to the launcher's standard streams, each with its rank.
    """

    command: list[str]
    hosts: tuple[str, ...]
    settings: Settings = Settings()
    output_dir: str = ""
    timestamps: bool = False
    verbose: bool = False
    python_path: tuple[str, ...] = ()
    environment: dict[str, str] = {}

    @property
    def size(self) -> int:
        """Number of workers."""
        return len(self.hosts)


def parse_hosts(text: str) -> tuple[Host, ...]:
    """``"a:4,b"`` as ``-H`` takes it; a host without a number has one slot, as in Horovod."""
    hosts = []
    for item in text.split(","):
        name, colon, slots = item.strip().rpartition(":")
        if not colon:
            name, slots = slots, "1"
        if not name or not slots.isdecimal() or int(slots) < 1:
            raise UsageError(f"-H {text!r}: {item!r} is no host; write NAME:SLOTS, for example -H localhost:4")
        hosts.append(Host(name, int(slots)))
    return tuple(hosts)


def parse_hostfile(text: str) -> tuple[Host, ...]:
    """Lines of ``NAME slots=N``; empty lines and what follows ``#`` do not count."""
    hosts = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        name, *rest = words
        slots = rest[0].removeprefix("slots=") if len(rest) == 1 else "1" if not rest else ""
        if not slots.isdecimal() or int(slots) < 1:
            raise UsageError(f"line {number} of the host file, {line.strip()!r}, is not of the form: NAME slots=N")
        hosts.append(Host(name, int(slots)))
    if not hosts:
        raise UsageError("the host file names no host; write one a line: NAME slots=N")
    return tuple(hosts)


def place(np: int | None, hosts: Sequence[Host]) -> tuple[str, ...]:
    """The host of every rank. Without ``np`` every slot is taken; without hosts all ranks are here."""
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


def on_this_host(hosts: Sequence[str], here: str) -> tuple[str, ...]:
    """The hosts of the ranks by the name of this machine; refuses every other host."""
    local = {*LOCAL_NAMES, here, here.partition(".")[0]}
    others = sorted(set(hosts) - local)
    if others:
        raise UsageError(
            f"{', '.join(others)} is not this host ({here}): this release starts workers on one host only, "
            "many hosts come with a later one; leave -H and --hostfile out, or say -H localhost:N"
        )
    return (here,) * len(hosts)


def entry_command(module: str) -> list[str]:
    """Calls ``main`` of a module of this package in a new Python.

    It is told to look where this package is instead of in the current folder, which may hold a ``signal.py``.
    """
    home = os.path.dirname(os.path.dirname(os.path.abspath(farandole.__file__)))
    return [sys.executable, "-c", f"import sys; sys.path[0] = {home!r}; from {module} import main; main()"]


def workers(job: Job, controller: str, secret: str, inherited: Mapping[str, str]) -> list[WorkerSpec]:
    """What every worker is started with, beyond the variables it inherits."""
    shared = job.settings.to_environment(Settings.resolve(environment=inherited))
    if "PYTHONUNBUFFERED" not in inherited:
        shared["PYTHONUNBUFFERED"] = "1"  # lines appear when they are printed, and none is lost with a killed worker
    shared.update(job.environment)
    if job.python_path:
        rest = shared.get("PYTHONPATH", inherited.get("PYTHONPATH"))
        shared["PYTHONPATH"] = os.pathsep.join([*job.python_path, *filter(None, [rest])])
    return [
        WorkerSpec(rank, job.command, {**shared, **variables_for(Topology.of(rank, job.hosts, 0), controller, secret)})
        for rank in range(job.size)
    ]
