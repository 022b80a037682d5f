"""``farandole check``: what is usable here, and what to do about the rest.

    farandole check              a table of 80 columns, plain text in a log
    farandole check --json       the same for programs

Nothing is started and no framework is imported.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from typing import final

import msgspec

from farandole.engines.candidates import CANDIDATES, Find
from farandole.version import __version__

WIDTH = 80
LAUNCHERS = {
    "ssh": ("farandole run -H a:2,b:2: workers on other hosts", "type: apt-get install openssh-client"),
    "srun": ("srun python train.py, and farandole run in an allocation: Slurm", "it comes with Slurm; run it there"),
    "mpirun": ("mpirun python train.py: MPI's launchers", "type: pip install 'farandole[mpi-wheel]'"),
    "torchrun": ("torchrun train.py", "type: pip install 'farandole[torch]'"),
}
"""Programs that start workers: what for, and where to get them."""


@final
class Finding(msgspec.Struct, frozen=True):
    """One thing that was looked at. ``detail`` says what it serves or its version, or why it cannot be used."""

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
    """Print them; returns the exit status."""
    if json:
        print(msgspec.json.format(msgspec.json.encode({"version": __version__, "findings": findings})).decode())
    else:
        _print_table(findings)
    ready = {finding.kind for finding in findings if finding.usable and finding.name != "solo"}
    return 0 if {"engine", "launcher"} <= ready else 1


def examine(find: Find = find_spec, version_of: Callable[[str], str] | None = None) -> list[Finding]:
    """Look at everything; what comes with a later release is named only where it is installed.

    ``find`` looks for a module, ``version_of`` knows the version of an installed package ("" for none).
    """
    engines = []
    for name, candidate in CANDIDATES.items():
        lack = candidate.lack(find)
        remedy = candidate.cure(find) if lack else ""
        engines.append(Finding("engine", name, not lack, lack or candidate.serves, remedy))
    return [*engines, *_frameworks(version_of or _installed_version), _horovod(), *_launchers()]


def _frameworks(version_of: Callable[[str], str]) -> Iterator[Finding]:
    torch = version_of("torch")
    if torch:
        yield Finding("framework", "torch", True, f"PyTorch {torch}")
    else:
        yield Finding("framework", "torch", False, "torch is not installed", "type: pip install 'farandole[torch]'")
    if mxnet := version_of("mxnet"):
        yield Finding("framework", "mxnet", True, f"MXNet {mxnet}")
    yield from _tensorflow(version_of)
    if jax := version_of("jax"):
        yield Finding("framework", "jax", True, f"JAX {jax}: farandole.jax, with native calls inside of jit")
    if keras := version_of("keras"):
        yield _keras(keras)


def _tensorflow(version_of: Callable[[str], str]) -> Iterator[Finding]:
    from farandole.graphs.tensorflow_versions import lack

    version = version_of("tensorflow") or version_of("tensorflow-cpu")
    if version:
        why = lack(version)
        op = f"tf.numpy_function, one call at a time: {why}" if why else "native"
        words = f"TensorFlow {version}, farandole.tensorflow; operation of graphs: {op}"
        yield Finding("framework", "tensorflow", True, words)


def _keras(version: str) -> Finding:
    if int(version.partition(".")[0]) < 3:
        why = f"Keras {version} is installed, and farandole.keras serves Keras 3"
        return Finding("framework", "keras", False, why, "type: pip install 'farandole[keras]'")
    return Finding("framework", "keras", True, f"Keras {version}, farandole.keras, on its backend's call of graphs")


def _horovod() -> Finding:
    from farandole.launch.tools import horovod_install  # slow to load, as it asks for installed packages

    if horovod_install.is_active():
        return Finding("framework", "horovod", True, "'import horovod' means Farandole here")
    if real := horovod_install.foreign():
        return Finding("framework", "horovod", False, f"'import horovod' means {real}", "type: farandole run --horovod")
    return Finding(
        "framework", "horovod", False, "'import horovod' finds nothing here",
        "type: farandole run --horovod, or once: farandole horovod install",
    )  # fmt: skip


def _launchers() -> Iterator[Finding]:
    if hasattr(os, "pidfd_open"):
        yield Finding("launcher", "local", True, "farandole run, farandole.run(): workers on this host")
    else:
        yield Finding("launcher", "local", False, "this system has no pidfd_open", "use Linux 5.3 or newer")
    yield Finding("launcher", "variables", True, "processes with FARANDOLE_RANK, _SIZE, _CONTROLLER and _KEY set")
    for program, (serves, remedy) in LAUNCHERS.items():
        found = shutil.which(program) is not None
        yield Finding("launcher", program, found, serves if found else "it is not installed", "" if found else remedy)


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
    from importlib import metadata  # slow to load, and "farandole run" loads this module

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""
