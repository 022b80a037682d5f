"""Files that hold a secret: nobody else can read them, and what somebody else has laid in their place is refused.

write_private(path, b"...")
read_private(path)              # raises NotPrivateError for a link, a FIFO, or what others can read or own
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import final


@final
class NotPrivateError(Exception):
    """Reason why a file is not one that this user alone has written."""


def new_path(path: Path) -> Path:
    """Path of the file that ``write_private`` renames."""
    return path.with_name(f"{path.name}.new")


def write_private(path: Path, payload: bytes) -> None:
    """Put ``payload`` there, whole from the first moment; raises ``OSError`` if the folder does not take it."""
    new = new_path(path)
    # A new file, made by us (O_EXCL): what lies there may be a link that somebody else has laid.
    new.unlink(missing_ok=True)
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(payload)
        file.flush()
        os.fsync(file.fileno())  # before the name: after a loss of power that could stand for an empty file
    new.rename(path)  # at one stroke: readers on other hosts look all the time


def read_private(path: Path) -> bytes:
    """Content of the file. Raises ``OSError`` where it cannot be opened, ``NotPrivateError`` where it is not ours."""
    # NFS remembers that a name did not exist until the folder is opened again.
    os.close(os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY))
    # In a folder of several users anything may lie there; a FIFO would hold an open() up for ever.
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    status = os.fstat(fd)  # of what was opened, which the name may not stand for any more
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
