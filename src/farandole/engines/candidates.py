"""Every engine with what it needs to run here, looked for without importing a framework or touching a device.

>>> usable(find=lambda module: module, variables={})
['solo', 'shm', 'tcp', 'hybrid']
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TypeAlias, final

from farandole.cluster.detect import detect

Find: TypeAlias = Callable[[str], object | None]
"""Looks for a module without importing it, like ``importlib.util.find_spec``."""

Variables: TypeAlias = Mapping[str, str]

STARTED_BY_MPI = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "PALS_RANKID")
"""Variables of launchers for a process of an MPI job: Open MPI, Slurm's and PRRTE's PMIx, MPICH and Intel, Cray."""

GPUS = Path("/proc/driver/nvidia/gpus")
_VISIBLE = "CUDA_VISIBLE_DEVICES"

_MISSING = {
    "farandole.native.core": "the native core farandole.native.core is not built",
    "torch": "torch is not installed",
    "mpi4py": "mpi4py is not installed",
}


@final
@dataclass(frozen=True, slots=True)
class Candidate:
    """An engine: what it is for, the modules it needs, what else it needs, and what to do where that is missing.

    ``devices`` are the kinds of device whose tensors it takes.
    """

    name: str
    serves: str
    needs: tuple[str, ...]
    remedy: str
    besides: Callable[[Variables], str] | None = None
    besides_remedy: str = ""
    devices: frozenset[str] = frozenset({"cpu"})

    def lack(self, find: Find = find_spec, variables: Variables | None = None) -> str:
        """The reason why this process cannot use it; "" if it can."""
        if missing := self.uninstalled(find):
            return missing
        return self.besides(os.environ if variables is None else variables) if self.besides else ""

    def uninstalled(self, find: Find = find_spec) -> str:
        """The text for a module that is missing; "" if none is."""
        return next((_MISSING[module] for module in self.needs if find(module) is None), "")

    def cure(self, find: Find = find_spec) -> str:
        """The remedy where it lacks something."""
        return self.remedy if self.uninstalled(find) or not self.besides_remedy else self.besides_remedy


def _not_started_by_mpi(variables: Variables) -> str:
    """Lack of an MPI: the ranks of ``farandole run`` are not MPI's, even if mpirun has started the launcher."""
    if variables.get("FARANDOLE_LAUNCHED") == "1":
        return "the job was started by farandole run, not by an MPI"
    return "" if any(name in variables for name in STARTED_BY_MPI) else "no MPI has started this process"


def torch_has_cuda() -> bool:
    """True if the installed torch was built for NVIDIA's GPUs; it is not imported."""
    torch = find_spec("torch")
    return bool(torch and torch.origin and (Path(torch.origin).parent / "lib" / "libtorch_cuda.so").exists())


def _no_gpu_of_its_own(variables: Variables) -> str:
    """Lack of a GPU: NCCL cannot share one between two ranks; a rank that is shown a single GPU was given it."""
    try:
        shown = len(list(GPUS.iterdir()))
    except OSError:
        return "this host has no NVIDIA GPU"
    if _VISIBLE in variables:
        shown = len([name for name in variables[_VISIBLE].split(",") if name not in ("", "-1")])
    if not torch_has_cuda():
        return "the torch that is installed was built without CUDA"
    local_rank = detect(None if variables is os.environ else variables).local_worker_id
    alone = shown == 1 and _VISIBLE in variables
    return "" if alone or local_rank < shown else f"none of the {shown} GPUs is left for local rank {local_rank}"


_TORCH = "type: pip install 'farandole[torch]'"
_NATIVE = "install a wheel of farandole, or type: make native"

CANDIDATES = {
    candidate.name: candidate
    for candidate in (
        Candidate("solo", "jobs of one rank", (), ""),
        Candidate("shm", "ranks of one host, in shared memory", ("farandole.native.core",), _NATIVE),
        Candidate(
            "nccl",
            "ranks with a GPU each, and their CUDA tensors",
            ("torch",),
            _TORCH,
            _no_gpu_of_its_own,
            "start one rank per GPU",
            frozenset({"cpu", "cuda"}),
        ),
        Candidate(
            "mpi",
            "any hosts, over the MPI that started the job",
            ("farandole.native.core", "mpi4py"),
            "type: pip install 'farandole[mpi]', or 'farandole[mpi-wheel]' where there is no MPI",
            _not_started_by_mpi,
            "start it by mpirun or srun",
        ),
        Candidate("tcp", "any hosts, over TCP", ("farandole.native.core",), _NATIVE),
        Candidate("hybrid", "several hosts: shm inside, another engine across", ("farandole.native.core",), _NATIVE),
    )
}
"""Every engine there is, in the order in which ``farandole check`` lists them."""


def usable(find: Find = find_spec, variables: Variables | None = None) -> list[str]:
    """The names of the engines that this process could use."""
    return [name for name, candidate in CANDIDATES.items() if not candidate.lack(find, variables)]
