"""Guard against child processes of a worker that also call ``init``, with inherited environment variables.

    require_no_ancestor(environment)        # StartError in a child that calls init()
    hold(environment)                       # from now on children of this process are refused
    release()                               # it has left; a child may take its worker_id

A worker keeps a named, empty memfd open, so a child needs no communication: it checks in ``/proc`` whether one of its
ancestors has that file open. The check runs before the child connects anywhere, because a child of rank 0 would start a
controller of its own, and a child of an MPI process would initialize MPI again. The controller refuses all other
processes with inherited variables (``WorkerRegistry``).

The file disappears with its descriptor, however the process ends, and nothing has to be removed. Only this user's
processes see it in ``/proc``, and no process can take its name: a name shared by all users (an abstract socket, a file
in ``/tmp``) could be taken by another user first, and our workers would be refused. ``hold`` and ``release`` are called
with the lock of the session, or in a child that has just been forked, which has one thread.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path

from farandole.cluster.environment import Environment
from farandole.errors import StartError

GUARD = (
    "A child process inherits the variables that say which rank its parent is. Call init() in the process that trains "
    'and in no other: move it, and what follows it, below the line: if __name__ == "__main__": (the children that '
    "DataLoader and multiprocessing start by spawn or forkserver import the script, without what stands there)"
)
"""Advice at the end of these errors."""

_held: list[int] = []


def require_no_ancestor(environment: Environment) -> None:
    """Raise ``StartError`` if an ancestor of this process is the job's worker of the same ``worker_id``."""
    for ancestor in _ancestors():
        if _is_held(_name(environment, ancestor), ancestor):
            raise StartError(
                f"init() was called by process {os.getpid()}, a child of process {ancestor}, which is rank "
                f"{environment.worker_id} of the job and has not left it. {GUARD}"
            )


def hold(environment: Environment) -> None:
    """Open the memfd that marks this process as a worker for its children, until ``release``."""
    release()
    with contextlib.suppress(OSError):  # a sandbox without memfd
        _held.append(os.memfd_create(_name(environment, os.getpid()), os.MFD_CLOEXEC))


def release() -> None:
    """Close the memfd; in a forked child, the inherited copy of the parent's descriptor."""
    while _held:
        os.close(_held.pop())


def _ancestors() -> Iterator[int]:
    """Yield the ancestors of this process, nearest first, as far as ``/proc`` shows them."""
    pid = os.getppid()
    while pid > 0:
        yield pid
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b") ")[2].split()[1])
        except OSError:
            return


def _is_held(name: str, pid: int) -> bool:
    """True if the process ``pid`` has the memfd open; False for another user's process, which is not a worker."""
    with contextlib.suppress(OSError):
        for each in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):  # closed meanwhile
                if os.readlink(each).startswith(f"/memfd:{name} "):
                    return True
    return False


def _name(environment: Environment, pid: int) -> str:
    """Name for this job, ``worker_id`` and process: unique, because a descendant may be a worker of another job."""
    identity = blake2b(repr(environment.identity).encode(errors="surrogateescape"), digest_size=12).hexdigest()
    return f"farandole-{identity}-{pid}"
