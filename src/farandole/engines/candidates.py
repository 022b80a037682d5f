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
from typing import NamedTuple, TypeAlias, final

from farandole.cluster.detect import detect

Find: TypeAlias = Callable[[str], object | None]
"""Looks for a module without importing it, like ``importlib.util.find_spec``."""

Variables: TypeAlias = Mapping[str, str]

STARTED_BY_MPI = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "PALS_RANKID")
"""Variables of launchers for a process of an MPI job: Open MPI, Slurm's and PRRTE's PMIx, MPICH and Intel, Cray."""

GPUS = Path("/proc/driver/nvidia/gpus")
_VISIBLE = "CUDA_VISIBLE_DEVICES"

_CORE = "farandole.native.core"
_MISSING = {
    _CORE: "the native core farandole.native.core is not built",
    "torch": "torch is not installed",
    "mpi4py": "mpi4py is not installed",
}


class Lack(NamedTuple):
    """Why an engine cannot be used and what to do about it; ``is_final`` where no installation would help."""

    reason: str = ""
    remedy: str = ""
    is_final: bool = False


@final
@dataclass(frozen=True, slots=True)
class Candidate:
    """An engine: what it is for, the modules it needs, what else it needs, and what to do where that is missing.

    ``besides_remedy`` is for whoever does not know which of that is missing, as another host has asked.
    ``devices`` are the kinds of device whose tensors it takes.
    """

    name: str
    serves: str
    needs: tuple[str, ...]
    remedy: str
    besides: Callable[[Variables], Lack] | None = None
    besides_remedy: str = ""
    devices: frozenset[str] = frozenset({"cpu"})

    def lack(self, find: Find = find_spec, variables: Variables | None = None) -> str:
        """The reason why this process cannot use it; "" if it can."""
        return self._lack(find, variables).reason

    def cure(self, find: Find = find_spec, variables: Variables | None = None) -> str:
        """The remedy where it lacks something; "" if it lacks nothing."""
        return self._lack(find, variables).remedy

    def uninstalled(self, find: Find = find_spec) -> str:
        """The text for a module that is missing; "" if none is."""
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
    """Lack of an MPI: the ranks of ``farandole run`` are not MPI's, even if mpirun has started the launcher."""
    if variables.get("FARANDOLE_LAUNCHED") == "1":
        return Lack("the job was started by farandole run, not by an MPI", _BY_MPI)
    if any(name in variables for name in STARTED_BY_MPI):
        return Lack()
    return Lack("no MPI has started this process", _BY_MPI)


def torch_has_cuda() -> bool:
    """True if the installed torch was built for NVIDIA's GPUs; it is not imported."""
    torch = find_spec("torch")
    return bool(torch and torch.origin and (Path(torch.origin).parent / "lib" / "libtorch_cuda.so").exists())


def _no_gpu_of_its_own(variables: Variables) -> Lack:
    """Lack of a GPU: NCCL cannot share one between two ranks; a rank that is shown a single GPU was given it."""
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
"""Every engine there is, in the order in which ``farandole check`` lists them."""


def usable(find: Find = find_spec, variables: Variables | None = None) -> list[str]:
    """The names of the engines that this process could use."""
    return [name for name, candidate in CANDIDATES.items() if not candidate.lack(find, variables)]
