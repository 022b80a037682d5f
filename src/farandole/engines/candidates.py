"""Engines and their requirements, checked without importing a framework or touching a device.

>>> usable(find=lambda module: module, variables={})
['solo', 'shm', 'tcp', 'hybrid']
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple, TypeAlias, final

from farandole.cluster.detect import detect

Find: TypeAlias = Callable[[str], object | None]
"""Finds a module without importing it, like ``importlib.util.find_spec``."""

Variables: TypeAlias = Mapping[str, str]

STARTED_BY_MPI = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "PALS_RANKID")
"""Variables that MPI launchers set: Open MPI; Slurm and PRRTE by PMIx; MPICH and Intel; Cray."""

GPUS = Path("/proc/driver/nvidia/gpus")
_VISIBLE = "CUDA_VISIBLE_DEVICES"

_CORE = "farandole.native.core"
_MISSING = {
    _CORE: "the native core farandole.native.core is not built",
    "torch": "torch is not installed",
    "mpi4py": "mpi4py is not installed",
}


class Lack(NamedTuple):
    """Reason why an engine cannot be used, and the remedy; ``is_final`` if no installation would help."""

    reason: str = ""
    remedy: str = ""
    is_final: bool = False


@final
@dataclass(frozen=True, slots=True)
class Candidate:
    """An engine: its purpose, the modules and other things it needs, and the remedy if a module is missing.

    ``besides_remedy`` is for reports from another host, which do not say what is missing.
    ``devices`` are the kinds of device whose tensors the engine accepts.
    """

    name: str
    serves: str
    needs: tuple[str, ...]
    remedy: str
    besides: Callable[[Variables], Lack] | None = None
    besides_remedy: str = ""
    devices: frozenset[str] = frozenset({"cpu"})

    def lack(self, find: Find = find_spec, variables: Variables | None = None) -> str:
        """Reason why this process cannot use it; "" if it can."""
        return self._lack(find, variables).reason

    def cure(self, find: Find = find_spec, variables: Variables | None = None) -> str:
        """Remedy if a requirement is missing; "" if none is."""
        return self._lack(find, variables).remedy

    def uninstalled(self, find: Find = find_spec) -> str:
        """Text for a missing module; "" if none is missing."""
        return _MISSING.get(self._missing(find), "")

    def _missing(self, find: Find) -> str:
        return next((module for module in self.needs if find(module) is None), "")

    def _lack(self, find: Find, variables: Variables | None) -> Lack:
        besides = self.besides(os.environ if variables is None else variables) if self.besides else Lack()
        missing = self._missing(find)
        if besides.is_final or not missing:
            return besides
        return Lack(_MISSING[missing], _NATIVE if missing == _CORE else self.remedy)


def _not_started_by_mpi(variables: Variables) -> Lack:
    """Lack of an MPI: ranks of ``farandole run`` are no MPI ranks, even if mpirun has started the launcher."""
    if variables.get("FARANDOLE_LAUNCHED") == "1":
        return Lack("the job was started by farandole run, not by an MPI", _BY_MPI)
    if any(name in variables for name in STARTED_BY_MPI):
        return Lack()
    return Lack("no MPI has started this process", _BY_MPI)


def torch_has_cuda() -> bool:
    """True if the installed torch was built with CUDA; torch is not imported."""
    torch = find_spec("torch")
    return bool(torch and torch.origin and (Path(torch.origin).parent / "lib" / "libtorch_cuda.so").exists())


def _no_gpu_of_its_own(variables: Variables) -> Lack:
    """Lack of a GPU: NCCL needs one GPU per rank; a rank with a single visible GPU owns it."""
    try:
        shown = len(list(GPUS.iterdir()))
    except OSError:
        return Lack("this host has no NVIDIA GPU", "start it on hosts with one for each rank", is_final=True)
    if _VISIBLE in variables:
        shown = len([name for name in variables[_VISIBLE].split(",") if name not in ("", "-1")])
    if not torch_has_cuda():
        return Lack("the torch that is installed was built without CUDA", f"install one with it: {_TORCH_WITH_CUDA}")
    local_rank = detect(None if variables is os.environ else variables).local_worker_id
    if local_rank < shown or (shown == 1 and _VISIBLE in variables):
        return Lack()
    reason = f"none of the {shown} GPUs is left for local rank {local_rank}"
    return Lack(reason, _GPU_EACH if shown else f"{_VISIBLE} hides them: unset it")


_BY_MPI = "start it by mpirun or srun"
_GPU_EACH = "start one rank per GPU"
_TORCH_WITH_CUDA = "https://pytorch.org/get-started/locally"
_TORCH = "type: pip install 'farandole[torch]'"
_NATIVE = "install a wheel of farandole, or in a checkout type: pip install -e ."

CANDIDATES = {
    candidate.name: candidate
    for candidate in (
        Candidate("solo", "jobs of one rank", (), ""),
        Candidate("shm", "ranks of one host, in shared memory", (_CORE,), _NATIVE),
        Candidate(
            "nccl",
            "ranks with a GPU each, and their CUDA tensors",
            ("torch",),
            _TORCH,
            _no_gpu_of_its_own,
            _GPU_EACH,
            frozenset({"cpu", "cuda"}),
        ),
        Candidate(
            "mpi",
            "any hosts, over the MPI that started the job",
            (_CORE, "mpi4py"),
            "type: pip install 'farandole[mpi]', or 'farandole[mpi-wheel]' where there is no MPI",
            _not_started_by_mpi,
            _BY_MPI,
        ),
        Candidate("tcp", "any hosts, over TCP", (_CORE,), _NATIVE),
        Candidate("hybrid", "several hosts: shm inside, another engine across", (_CORE,), _NATIVE),
    )
}
"""All engines, in the order in which ``farandole check`` lists them."""


def usable(find: Find = find_spec, variables: Variables | None = None) -> list[str]:
    """Names of the engines that this process can use."""
    return [name for name, candidate in CANDIDATES.items() if not candidate.lack(find, variables)]
