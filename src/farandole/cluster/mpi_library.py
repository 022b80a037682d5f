"""MPI library of this process, through mpi4py: loaded once, initialized on first use, finalized at the end.

    library = load()
    if "Open MPI" in library.version:
        library.initialise().COMM_WORLD

A library under the launcher of another MPI ends the process, or runs as a job of one; hence its version can be read
before it is initialized.

Threads. ``MPI_Init`` may be called once per process, and several threads make engines: ``_lock`` lets one of them
initialize MPI, and the others wait. mpi4py keeps the GIL in ``MPI_Init``, so no Python code runs while it waits for
other processes, no signal handler and no timer of ours. Only a C thread can end such a wait, and ``faulthandler`` has
one. ``finalize`` runs in the main thread, at the end of the process, and acquires no lock: a thread that waits for
other processes in ``initialise`` may hold it.
"""

from __future__ import annotations

import atexit
import faulthandler
import functools
import re
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, final

from farandole.errors import UnsupportedError

STDERR = 2
MPICH_MEMORY = re.compile(r" (/dev/shm/mpich_shm_\w+)$", re.MULTILINE)
FINALIZE_S = 5
"""Time limit of ``MPI_Finalize`` if a peer is lost and the script, not this module, initialized MPI."""


@final
class MpiLibrary:
    """Loaded MPI library; one per process."""

    def __init__(self, mpi: Any) -> None:
        self.mpi = mpi
        self.doubts: dict[str, Callable[[], bool]] = {}
        """Checks at the end of the process, by owner; True means that a peer may be lost."""
        self._ours = not mpi.Is_initialized()
        self._lock = threading.Lock()

    @property
    def version(self) -> str:
        """Name and version that the library reports, in one line."""
        return str(self.mpi.Get_library_version()).partition("\n")[0].partition(",")[0].strip("\0 ")

    def initialise(self, timeout_s: float | None = None) -> Any:
        """Module ``mpi4py.MPI``, initialized. The first call is collective among all processes of the MPI job.

        MPI_Init has no time limit, and mpi4py holds the GIL meanwhile; so if the other processes do not call it within
        ``timeout_s``, this process is ended, with its stack on standard error.
        """
        with self._lock:
            if not self.mpi.Is_initialized():
                if timeout_s is not None:
                    faulthandler.dump_traceback_later(timeout_s, exit=True, file=STDERR)
                try:
                    self.mpi.Init_thread(self.mpi.THREAD_MULTIPLE)
                    self.mpi.COMM_WORLD.Barrier()  # all have mapped the shared memory: its name can be unlinked
                    unname_memory()
                finally:
                    faulthandler.cancel_dump_traceback_later()
        return self.mpi

    def finalize(self) -> None:
        """Finalize MPI at the end of the process, unless a peer may be lost: ``MPI_Finalize`` waits for all peers.

        Without it mpirun sees a process that ended without ``MPI_Finalize``, and ends the others. Unfinished requests
        do not matter: neither MPICH nor Open MPI waits for sends without a receiver.
        """
        if not self.mpi.Is_initialized() or self.mpi.Is_finalized():
            return
        # ``last_value``: an exception ends this process, and its peers may wait for it outside of MPI_Finalize.
        healthy = not hasattr(sys, "last_value") and not any(doubt() for doubt in self.doubts.values())
        if self._ours and healthy:
            self.mpi.Finalize()
        elif not self._ours and not healthy:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(FINALIZE_S)  # mpi4py finalizes after this, and no Python code could end that wait


def unname_memory() -> None:
    """Unlink MPICH's shared-memory segment once all ranks of this host have mapped it.

    It would otherwise exist until ``MPI_Finalize``, and so forever if that is not called: mpiexec kills all ranks when
    one dies.
    """
    for path in MPICH_MEMORY.findall(Path("/proc/self/maps").read_text()):
        Path(path).unlink(missing_ok=True)


def heed(doubt: Callable[[], bool]) -> None:
    """Register the check ``doubt`` of the newest generation for the end of the process, if the process uses MPI."""
    if load.cache_info().currsize:
        load().doubts["generation"] = doubt


@functools.cache
def load() -> MpiLibrary:
    """Load the library; raises ``UnsupportedError`` if mpi4py or the library is missing."""
    try:
        import mpi4py

        if "mpi4py.MPI" not in sys.modules:  # else the script has already decided who initializes it
            mpi4py.rc.initialize = mpi4py.rc.finalize = False
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise UnsupportedError(f"mpi4py cannot load an MPI library: {str(error).partition(chr(10))[0]}") from error
    library = MpiLibrary(MPI)
    atexit.register(library.finalize)
    return library
