"""``farandole check``: list what is usable here, and how to install the rest.

    farandole check              a table of 80 columns, plain text in a log
    farandole check --json       the same for programs

It starts no process and imports no framework.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias, final

import msgspec

from farandole.engines import candidates
from farandole.engines.candidates import CANDIDATES, Find
from farandole.launch.tools.advice import Here
from farandole.version import __version__

VersionOf: TypeAlias = Callable[[str], str]
"""Function that returns the version of an installed package, or ""."""

WIDTH = 80
LAUNCHERS = {
    "ssh": "farandole run -H a:2,b:2: workers on other hosts",
    "srun": "{program} python train.py, and farandole run in an allocation: Slurm",
    "mpirun": "{program} python train.py: MPI's launchers",
    "torchrun": "{program} train.py",
}
"""Programs that start workers, and their use."""
SSH = {"apt-get": "apt-get install openssh-client", "dnf": "dnf install openssh-clients"}
"""Commands of system package managers to install ssh."""
MODULES = ("MODULESHOME", "LMOD_CMD")
"""Variables of Environment Modules, with which clusters provide their MPI."""
KERAS_BACKENDS = ("tensorflow", "torch", "jax")
"""Backends of Keras; the first is the default."""
PIDFD_SINCE = (5, 3)
"""First Linux version with the system call ``pidfd_open``."""


@final
class Finding(msgspec.Struct, frozen=True):
    """Result of one check. ``detail``: use or version, or why it is not usable."""

    kind: str
    name: str
    usable: bool
    detail: str
    remedy: str = ""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``check`` to the commands."""
    parser = subparsers.add_parser(
        "check",
        help="what is usable here, and why not",
        description="Lists engines, frameworks and launchers. The exit status is 1 if\n"
        "no job of several workers could run here.",
    )
    parser.add_argument("--json", action="store_true", help="for programs")
    parser.set_defaults(main=lambda args: report(examine(), args.json))


def report(findings: Sequence[Finding], json: bool = False) -> int:
    """Print the findings; return the exit status."""
    if json:
        print(msgspec.json.format(msgspec.json.encode({"version": __version__, "findings": findings})).decode())
    else:
        _print_table(findings)
    ready = {finding.kind for finding in findings if finding.usable and finding.name != "solo"}
    return 0 if {"engine", "launcher"} <= ready else 1


def examine(version_of: VersionOf | None = None, here: Here | None = None) -> list[Finding]:
    """Check everything; optional frameworks are listed only if they are installed.

    ``version_of``: versions of packages; ``here``: the ``PATH`` and importable modules.
    """
    here = here or Here()
    found = [
        *_engines(here.find),
        *_frameworks(version_of or _installed_version, here),
        _horovod(),
        *_launchers(here),
    ]
    return [msgspec.structs.replace(finding, remedy=here.typed(finding.remedy)) for finding in found]


def _engines(find: Find) -> Iterator[Finding]:
    for name, candidate in CANDIDATES.items():
        lack = candidate.lack(find)
        yield Finding("engine", name, not lack, lack or candidate.serves, candidate.cure(find) if lack else "")


def _frameworks(version_of: VersionOf, here: Here) -> Iterator[Finding]:
    if torch := version_of("torch"):
        yield Finding("framework", "torch", True, f"PyTorch {torch}")
    elif here.find("torch"):
        yield Finding("framework", "torch", True, "PyTorch, which no package manager has installed")
    else:
        yield Finding("framework", "torch", False, "torch is not installed", torch_remedy(candidates.GPUS.exists()))
    if mxnet := version_of("mxnet"):
        yield Finding("framework", "mxnet", True, f"MXNet {mxnet}")
    yield from _tensorflow(version_of)
    if jax := version_of("jax"):
        yield Finding("framework", "jax", True, f"JAX {jax}: farandole.jax, with native calls inside of jit")
    if keras := version_of("keras"):
        yield _keras(keras, version_of, here.variables)


def torch_remedy(has_gpu: bool) -> str:
    """Advice for installing PyTorch: on Linux the default package includes NVIDIA's GPU libraries."""
    plain = "type: pip install 'farandole[torch]'"
    index = "--index-url https://download.pytorch.org/whl/cpu"
    return plain if has_gpu else f"{plain}, which may bring gigabytes of CUDA; without: pip install torch numpy {index}"


def _tensorflow(version_of: VersionOf) -> Iterator[Finding]:
    from farandole.graphs.tensorflow_versions import lack

    if version := _tensorflow_version(version_of):
        why = lack(version)
        op = f"tf.numpy_function, one call at a time: {why}" if why else "native"
        words = f"TensorFlow {version}, farandole.tensorflow; operation of graphs: {op}"
        yield Finding("framework", "tensorflow", True, words)


def _tensorflow_version(version_of: VersionOf) -> str:
    return version_of("tensorflow") or version_of("tensorflow-cpu")


def _keras(version: str, version_of: VersionOf, variables: Mapping[str, str]) -> Finding:
    if int(version.partition(".")[0]) < 3:
        why = f"Keras {version} is installed, and farandole.keras serves Keras 3"
        return Finding("framework", "keras", False, why, "type: pip install 'farandole[keras]'")
    versions = {"tensorflow": _tensorflow_version(version_of), "torch": version_of("torch"), "jax": version_of("jax")}
    installed = [name for name in KERAS_BACKENDS if versions[name]]
    chosen = _keras_backend(variables)
    if chosen not in installed:
        lack = "is not installed" if chosen in KERAS_BACKENDS else "farandole.keras does not serve"
        remedy = f"set KERAS_BACKEND={installed[0]}" if installed else f"install one of {', '.join(KERAS_BACKENDS)}"
        return Finding("framework", "keras", False, f"Keras {version} takes the backend {chosen}, which {lack}", remedy)
    return Finding("framework", "keras", True, f"Keras {version}, farandole.keras, on its backend's call of graphs")


@final
class _KerasFile(msgspec.Struct):
    """Relevant contents of ``~/.keras/keras.json``."""

    backend: str = KERAS_BACKENDS[0]


def _keras_backend(variables: Mapping[str, str]) -> str:
    """Backend that Keras uses: from its variable, its file, or the default."""
    if name := variables.get("KERAS_BACKEND"):
        return name
    home = Path(variables.get("KERAS_HOME") or Path(variables.get("HOME", "/"), ".keras"))
    with contextlib.suppress(OSError, msgspec.DecodeError):
        return msgspec.json.decode((home / "keras.json").read_bytes(), type=_KerasFile).backend
    return KERAS_BACKENDS[0]


def _horovod() -> Finding:
    from farandole.launch.tools import horovod_install  # slow import: it lists installed packages

    if horovod_install.is_active():
        return Finding("framework", "horovod", True, "'import horovod' means Farandole here")
    if real := horovod_install.foreign():
        return Finding("framework", "horovod", False, f"'import horovod' means {real}", "type: farandole run --horovod")
    return Finding(
        "framework", "horovod", False, "'import horovod' finds nothing here",
        "type: farandole run --horovod, or once: farandole horovod install",
    )  # fmt: skip


def _launchers(here: Here) -> Iterator[Finding]:
    lack, remedy = pidfd_lack(hasattr(os, "pidfd_open"), _pidfd_error(), platform.release())
    serves = here.typed("farandole run, farandole.run(): workers on this host")
    yield Finding("launcher", "local", not lack, lack or serves, remedy)
    yield Finding("launcher", "variables", True, "processes with FARANDOLE_RANK, _SIZE, _CONTROLLER and _KEY set")
    for name, serves in LAUNCHERS.items():
        program, note = _program(name, here)
        if program:
            yield Finding("launcher", name, True, here.typed(serves.format(program=program)) + note)
        else:
            yield Finding("launcher", name, False, note or "it is not installed", _launcher_remedy(name, here))


def _program(name: str, here: Here) -> tuple[str, str]:
    """Command of a launcher ("" if there is none), and a note if it differs from the name."""
    found = here.which(name)
    if name not in ("mpirun", "torchrun"):  # these two may be in Python environments
        return (name if found else ""), ""
    if name == "mpirun" and (found or here.which("mpiexec")):
        return (name if found else "mpiexec"), ""
    if here.leads_here(name):
        return name, ""
    note = f"{found} is another Python's" if found else f"there is no {name} on the PATH"
    module = "python -m torch.distributed.run" if name == "torchrun" and here.find("torch") else ""
    if program := here.beside(name) or module:
        return program, f", as {note}"
    return "", note if found else ""


def _launcher_remedy(name: str, here: Here) -> str:
    if name == "ssh":
        command = next((command for manager, command in SSH.items() if here.which(manager)), "")
        return f"type: {command}" if command else "install the client of OpenSSH"
    if name == "srun":
        return "it comes with Slurm; run it there"
    if name == "torchrun":
        return torch_remedy(candidates.GPUS.exists())
    modules = "load an MPI (module avail), or " if any(name in here.variables for name in MODULES) else ""
    return f"{modules}type: pip install 'farandole[mpi-wheel]'"


def pidfd_lack(is_known: bool, error: OSError | None, release: str) -> tuple[str, str]:
    """Why ``pidfd_open``, needed to wait for local workers, does not work, and the remedy; "" if it does.

    ``is_known``: whether this Python has ``os.pidfd_open``; ``error``: the error of Linux of this ``release``.
    """
    if is_known and error is None:
        return "", ""
    lack = f"Linux refuses pidfd_open ({error.strerror})" if error else "this Python has no os.pidfd_open"
    if tuple(map(int, re.findall(r"\d+", release)[:2])) < PIDFD_SINCE:
        return f"{lack}, and Linux {release} is older than 5.3", "use Linux 5.3 or newer"
    if error:
        return lack, "let the container's seccomp profile allow it"
    return lack, "use one that was built on Linux 5.3 or newer"


def _pidfd_error() -> OSError | None:
    try:
        os.close(os.pidfd_open(os.getpid()))
    except AttributeError:
        return None
    except OSError as error:
        return error
    return None


def _print_table(findings: Sequence[Finding]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(width=WIDTH, highlight=False, soft_wrap=False)
    where = f"Python {platform.python_version()}, {sys.platform} {platform.machine()}"
    console.print(f"farandole {__version__}, {where}, {len(os.sched_getaffinity(0))} cores")
    for kind in dict.fromkeys(finding.kind for finding in findings):
        table = Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
        table.add_column(width=12, no_wrap=True)
        table.add_column(width=3)
        table.add_column(overflow="fold")
        for finding in (f for f in findings if f.kind == kind):
            mark = Text("yes", "green") if finding.usable else Text("no", "red")
            words = f"{finding.detail}; {finding.remedy}" if finding.remedy else finding.detail
            table.add_row(f"  {finding.name}", mark, Text(words))
        console.print(f"\n{kind}s usable here")
        console.print(table)


def _installed_version(package: str) -> str:
    from importlib import metadata  # slow import, and "farandole run" imports this module

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""
