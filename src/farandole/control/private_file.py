"""Files that hold a secret: only this user can read them, and a file that another user put there is refused.

write_private(path, b"...")
read_private(path)              # raises NotPrivateError for a link, a FIFO, or a file that others can read or own
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import final


@final
class NotPrivateError(Exception):
    """The file was not written by this user alone; the text says why."""


def new_path(path: Path) -> Path:
    """Path of the temporary file that ``write_private`` renames to ``path``."""
    return path.with_name(f"{path.name}.new")


def write_private(path: Path, payload: bytes) -> None:
    """Write ``payload`` atomically; raises ``OSError`` if the folder cannot be written to."""
    new = new_path(path)
    # O_EXCL: always create the file, because the name may be a link that another user created.
    new.unlink(missing_ok=True)
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(payload)
        file.flush()
        os.fsync(file.fileno())  # before the rename: after a loss of power the name could denote an empty file
    new.rename(path)  # atomic: processes on other hosts poll for this file


def read_private(path: Path) -> bytes:
    """Read the file. Raises ``OSError`` if it cannot be opened, ``NotPrivateError`` if it is not this user's alone."""
    # NFS remembers that a name did not exist until the folder is opened again.
    os.close(os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY))
    # In a shared folder the name may be any kind of file; without O_NONBLOCK a FIFO would block open() forever.
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    status = os.fstat(fd)  # of the opened file; the name may already denote another file
    if not stat.S_ISREG(status.st_mode):
        os.close(fd)
        raise NotPrivateError(f"it is no file, but a {_kind(status.st_mode)} of user {status.st_uid}")
    with open(fd, "rb") as file:
        mode = stat.S_IMODE(status.st_mode)
        if status.st_uid != os.geteuid() or mode & 0o077:
            raise NotPrivateError(f"it belongs to user {status.st_uid} with mode {mode:o}, not to you alone")
        return file.read()


def _kind(mode: int) -> str:
    kinds = {stat.S_IFIFO: "FIFO", stat.S_IFDIR: "folder", stat.S_IFCHR: "device", stat.S_IFBLK: "device"}
    return kinds.get(stat.S_IFMT(mode), "socket")
