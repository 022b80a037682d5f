"""The MPI library of this process, through mpi4py: loaded once, initialised when first needed, finalised at the end.

    library = load()
    if "Open MPI" in library.version:
        library.initialise().COMM_WORLD

A library under the launcher of another MPI ends the process, or believes to be alone; hence its version may be asked
for before it is initialised.

Threads. ``MPI_Init`` may be called once per process, and engines are made by more than one thread: ``_lock`` lets one
of them initialise, and the others wait. mpi4py keeps the GIL in ``MPI_Init``, so no Python runs while that waits for
other processes, no signal handler and no timer of ours. Only a thread of C can end such a wait, which is what
``faulthandler`` has. ``leave`` runs in the main thread, at the end of the process, and takes no lock: a thread that
waits for others in ``initialise`` may have it.
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
"""Time that ``MPI_Finalize`` may take where a peer is lost and it is not ours to leave out."""


@final
class MpiLibrary:
    """The loaded library; one per process."""

    def __init__(self, mpi: Any) -> None:
        self.mpi = mpi
        self.doubts: dict[str, Callable[[], bool]] = {}
        """Questions at the end of the process, by who has them; the answer True says that a peer may be lost."""
        self._ours = not mpi.Is_initialized()
        self._lock = threading.Lock()

    @property
    def version(self) -> str:
        """Name and version of the library, as it tells them, in one line."""
        return str(self.mpi.Get_library_version()).partition("\n")[0].partition(",")[0].strip("\0 ")

    def initialise(self, timeout_s: float | None = None) -> Any:
        """The module ``mpi4py.MPI``, ready for use. The first call is collective among all that MPI has started.

        It knows no time limit, and mpi4py keeps the interpreter to itself meanwhile; so all that can be done where
        these do not come within ``timeout_s`` is to end the process, and show on standard error where it has waited.
        """
        with self._lock:
            if not self.mpi.Is_initialized():
                if timeout_s is not None:
                    faulthandler.dump_traceback_later(timeout_s, exit=True, file=STDERR)
                try:
                    self.mpi.Init_thread(self.mpi.THREAD_MULTIPLE)
                    self.mpi.COMM_WORLD.Barrier()  # all have mapped the shared memory: its name may go
                    unname_memory()
                finally:
                    faulthandler.cancel_dump_traceback_later()
        return self.mpi

    def leave(self) -> None:
        """At the end of the process: ``MPI_Finalize`` waits for all peers, so it is left out where one may be lost.

        Whoever started the job then sees a process that ended without it, and ends the others. What is unfinished
        does not matter: neither MPICH nor Open MPI waits for sends that nobody receives.
        """
        if not self.mpi.Is_initialized() or self.mpi.Is_finalized():
            return
        # ``last_value``: an exception ends this process, and its peers may wait for it elsewhere than in MPI_Finalize.
        healthy = not hasattr(sys, "last_value") and not any(doubt() for doubt in self.doubts.values())
        if self._ours and healthy:
            self.mpi.Finalize()
        elif not self._ours and not healthy:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(FINALIZE_S)  # mpi4py finalises after this, and nothing of Python's would end it


def unname_memory() -> None:
    """Take from MPICH's shared memory, which all of this host have mapped, the name by which nobody looks for it again.

    It would keep the name until ``MPI_Finalize``, and so for ever if that is not called: mpiexec kills all ranks when
    one dies.
    """
    for path in MPICH_MEMORY.findall(Path("/proc/self/maps").read_text()):
        Path(path).unlink(missing_ok=True)


def heed(doubt: Callable[[], bool]) -> None:
    """Ask ``doubt`` of the newest generation at the end of the process, if that uses MPI."""
    if load.cache_info().currsize:
        load().doubts["generation"] = doubt


@functools.cache
def load() -> MpiLibrary:
    """Load it; raises ``UnsupportedError`` if mpi4py or the library is not there."""
    try:
        import mpi4py

        if "mpi4py.MPI" not in sys.modules:  # else the script has settled who initialises it
            mpi4py.rc.initialize = mpi4py.rc.finalize = False
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise UnsupportedError(f"mpi4py cannot load an MPI library: {str(error).partition(chr(10))[0]}") from error
    library = MpiLibrary(MPI)
    atexit.register(library.leave)
    return library
