"""Guard against children of a worker that call ``init`` as well, with the variables that they inherit.

    require_no_ancestor(environment)        # StartError in a child that calls init()
    hold(environment)                       # from now on children of this process are refused
    release()                               # it has left; a child may take its worker_id

A worker has a name in the abstract namespace of Unix sockets, with its process number in it, so a child needs to ask
nobody: it looks whether one of its ancestors has that name. This is decided here, before the child contacts anybody,
because the child of rank 0 would start a controller of its own, and that of a process of MPI's initialise MPI again.
Other processes with inherited variables are the controller's to refuse (``occupants``).

The name is a lock between processes: the kernel lets one socket at a time have it, and frees it with the last copy of
its descriptor, however the process ends. So it needs no file that somebody would have to remove. In a process, ``hold``
and ``release`` are called with the lock of the session, or in a child that has just been forked, which has one thread.
"""

from __future__ import annotations

import errno
import os
import socket
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
"""Advice that ends the texts of such errors."""

_held: list[socket.socket] = []


def require_no_ancestor(environment: Environment) -> None:
    """Raise ``StartError`` if an ancestor of this process is the job's worker of the same ``worker_id``."""
    for ancestor in _ancestors():
        if _is_held(_name(environment, ancestor)):
            raise StartError(
                f"init() was called by process {os.getpid()}, a child of process {ancestor}, which is rank "
                f"{environment.worker_id} of the job and has not left it. {GUARD}"
            )


def hold(environment: Environment) -> None:
    """Bind the name by which children know this process as a worker, until ``release``."""
    release()  # a name that is still held would refuse itself below
    named = socket.socket(socket.AF_UNIX)
    try:
        named.bind(_name(environment, os.getpid()))
        named.listen(1)  # nobody accepts: that one may connect is the answer
    except OSError:  # no abstract namespace in this sandbox, or a process of another namespace has the same number
        named.close()
    else:
        _held.append(named)


def release() -> None:
    """Close the name; in a forked child the copy of the parent's, which would hold it longer than the parent."""
    while _held:
        _held.pop().close()


def _ancestors() -> Iterator[int]:
    """Ancestors of this process, the nearest first, as far as ``/proc`` shows them."""
    pid = os.getppid()
    while pid > 0:
        yield pid
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b") ")[2].split()[1])
        except OSError:
            return


def _is_held(name: bytes) -> bool:
    with socket.socket(socket.AF_UNIX) as asking:
        try:
            # Connecting is the question. Binding would be one, too, but two children that ask at the same time would
            # each find the name taken, by the other.
            asking.setblocking(False)
            asking.connect(name)
        except OSError as error:
            return error.errno == errno.EAGAIN  # others have asked before: the queue is full
    return True


def _name(environment: Environment, pid: int) -> bytes:
    """Name for this job and ``worker_id`` only: a worker may start another job among its descendants."""
    identity = blake2b(repr(environment.identity).encode(errors="surrogateescape"), digest_size=12).hexdigest()
    return f"\0farandole-{identity}-{pid}".encode()
