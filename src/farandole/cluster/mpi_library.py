"""The MPI library of this process, through mpi4py: loaded once, initialised when first needed, finalised at the end.

    library = load()
    if "Open MPI" in library.version:
        library.initialise().COMM_WORLD

A library under the launcher of another MPI ends the process, or believes to be alone; hence its version may be asked
for before it is initialised.
"""

from __future__ import annotations

import atexit
import functools
import signal
import sys
from collections.abc import Callable
from typing import Any, final

from farandole.errors import UnsupportedError

FINALIZE_S = 5
"""How long ``MPI_Finalize`` may take where a peer is lost and it is not ours to leave out."""


@final
class MpiLibrary:
    """One per process. ``ours`` if nobody else has loaded it before."""

    def __init__(self, mpi: Any, ours: bool) -> None:
        self._mpi, self._ours = mpi, ours
        self.doubts: list[Callable[[], bool]] = []
        """Asked at the end of the process; one that says True knows of a peer that will not finalise, too."""

    @property
    def version(self) -> str:
        """What the library says of itself, in one line."""
        return str(self._mpi.Get_library_version()).partition("\n")[0].partition(",")[0].strip("\0 ")

    def initialise(self) -> Any:
        """The module ``mpi4py.MPI``, ready for use."""
        if not self._mpi.Is_initialized():
            self._mpi.Init_thread()
        return self._mpi

    def leave(self) -> None:
        """At the end of the process: ``MPI_Finalize`` waits for all peers, so it is left out where one is lost.

        Whoever started the job then sees a process that ended without it, and ends the others.
        """
        if not self._mpi.Is_initialized() or self._mpi.Is_finalized():
            return
        healthy = not hasattr(sys, "last_value") and not any(doubt() for doubt in self.doubts)
        if self._ours and healthy:
            self._mpi.Finalize()
        elif not self._ours and not healthy:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(FINALIZE_S)  # mpi4py finalises after this, and nothing of Python's would end it


@functools.cache
def load() -> MpiLibrary:
    """Load it; raises ``UnsupportedError`` if mpi4py or the library is not there."""
    try:
        import mpi4py

        ours = "mpi4py.MPI" not in sys.modules
        if ours:
            mpi4py.rc.initialize = mpi4py.rc.finalize = False
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise UnsupportedError(f"mpi4py cannot load an MPI library: {str(error).partition(chr(10))[0]}") from error
    library = MpiLibrary(MPI, ours)
    atexit.register(library.leave)
    return library
