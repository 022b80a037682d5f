"""Lock of a folder of pieces, which a stager without workers leaves to the stager of another job.

    lock(fd, folder)                                    # BlockingIOError: a stager with workers has it
    with socket.socket(socket.AF_UNIX) as listening:    # in the stager that has it
        listening.bind(name_of(folder))
        leave_to(listening.accept()[0])                 # exits

A stager whose workers were killed lingers, because others of its job may follow, and reads on. A job that is started
again at once would read the same from the source, beside it, into another folder. So it asks for the folder, gets all
whole pieces, and reads the others again: a piece that was read in part has no checksums yet.
"""

from __future__ import annotations

import fcntl
import os
import select
import socket
from pathlib import Path

from farandole.control.local_peer import is_own, process_of

EXIT_S = 2.0
"""Timeout for the answer of the other stager, and for its exit: the kernel may keep one that reads storage."""

_LEAVES = b"\1"


def name_of(folder: Path) -> str:
    """Name at which the stager that has locked ``folder`` listens for others."""
    found = folder.stat()
    return f"farandole-folder-{found.st_dev:x}-{found.st_ino:x}"


def lock(fd: int, folder: Path) -> None:
    """Lock an open folder, if need be after the exit of a stager without workers. Raises ``BlockingIOError``."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        _ask_for(folder)
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _ask_for(folder: Path) -> None:
    """Ask the stager that has locked a folder to leave it, and wait for its exit if it does."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as connection:
        connection.settimeout(EXIT_S)
        try:
            connection.connect(f"\0{name_of(folder)}")
            exits = os.pidfd_open(process_of(connection))
        except OSError:  # an older version, or another network namespace
            return
        try:
            if is_own(connection) and connection.recv(1) == _LEAVES:
                select.select([exits], [], [], EXIT_S)
        except OSError:
            pass
        finally:
            os.close(exits)


def leave_to(other: socket.socket) -> None:
    """Leave the folder to another stager: exit."""
    other.send(_LEAVES)
    os._exit(0)
