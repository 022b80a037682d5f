"""Factory of engines by name. Each engine is imported on first use, because some need a library."""

from __future__ import annotations

import functools
import importlib
from importlib.util import find_spec

from farandole.engines.candidates import CANDIDATES, Find
from farandole.engines.engine import Engine, Group, Rendezvous
from farandole.errors import UnsupportedError

MODULES = {
    "shm": ("farandole.engines.shm",),
    "hybrid": ("farandole.engines.hybrid.engine",),
    "tcp": ("farandole.engines.tcp",),
    "nccl": ("farandole.engines.nccl.engine", "torch.distributed"),
}
"""Modules that ``load`` imports for an engine; the modules of other engines import fast."""


def make(name: str, group: Group, rendezvous: Rendezvous, find: Find = find_spec) -> Engine:
    """Make one member's engine; collective among ``group``. ``hybrid`` names its inter-host engine: ``hybrid+tcp``.

    Raises ``UnsupportedError`` for an unknown name and for an engine that this process cannot use.
    """
    name, _, across = name.partition("+")
    candidate = CANDIDATES.get(name)
    if candidate is None:
        raise UnsupportedError(f"there is no engine {name!r}; the legal names are: {', '.join(CANDIDATES)}")
    if lack := candidate.lack(find):
        raise UnsupportedError(f"{group.name(group.rank)} cannot use engine {name}: {lack}; {candidate.cure(find)}")
    if name == "shm":
        from farandole.engines.shm import ShmEngine

        return ShmEngine(group, rendezvous)
    if name == "hybrid":
        return _make_hybrid(group, rendezvous, across, find)
    if name == "tcp":
        from farandole.engines.tcp import TcpEngine

        return TcpEngine(group, rendezvous)
    if name == "nccl":
        from farandole.engines.nccl.engine import NcclEngine

        return NcclEngine(group, rendezvous)
    if name == "mpi":
        from farandole.engines.mpi import MpiEngine

        return MpiEngine(group, rendezvous)
    from farandole.engines.solo import SoloEngine

    return SoloEngine(group)


def load(name: str) -> None:
    """Import the modules of this engine ahead of time, so that ``make`` does not wait for imports."""
    for part in name.split("+"):
        for module in MODULES.get(part, ()):
            importlib.import_module(module)


def _make_hybrid(group: Group, rendezvous: Rendezvous, across: str, find: Find) -> Engine:
    """Make ``hybrid``; a group on one host needs only ``shm``, a group with one member per host only ``across``."""
    hosts = len(set(group.hosts))
    if hosts == 1:
        return make("shm", group, rendezvous, find=find)
    if hosts == group.size:
        return make(across, group, rendezvous, find=find)
    if across == "mpi":  # MPI_Init waits for all processes of mpirun, also for those that carry no lane
        from farandole.engines.mpi import initialise_together

        initialise_together(group, rendezvous.among("mpi", group.ranks))
    from farandole.engines.hybrid.engine import HybridEngine

    return HybridEngine(group, rendezvous, functools.partial(make, across, find=find))
