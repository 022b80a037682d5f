"""A file in a folder that all hosts see, by which processes learn the contact from the first of them.

    file = SharedFile("/scratch/me", "slurm-1234.0.0")
    file.share(contact, timeout_s=30.0)       # the first
    file.share(None, timeout_s=30.0)          # the others

Only its owner can read it. Whoever has read it may find it outdated, and then reads again.
"""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path
from typing import final

from farandole.cluster.contact import Contact
from farandole.errors import StartError

FIRST_LOOK_S, LONGEST_LOOK_S = 0.01, 0.2
"""Time between looks, at first and at most: file systems of clusters tell nobody when a file appears."""

REMEDY = "name a folder that every host sees and you can write to: export FARANDOLE_RENDEZVOUS_DIR=/shared/folder"


@final
class SharedFile:
    """``.farandole-NAME`` in ``folder``."""

    def __init__(self, folder: str, name: str) -> None:
        self.path = Path(folder).absolute() / f".farandole-{name}"

    @property
    def paths(self) -> list[Path]:
        """The files that may lie there, to be removed when nobody needs them any more."""
        return [self.path, self._new]

    def share(self, contact: Contact | None, timeout_s: float) -> Contact:
        """Leave the contact there, or say what is there; raises ``StartError`` if nothing is in time."""
        if contact is None:
            return Contact.decode(self.read(timeout_s))
        self.write(contact.encode())
        return contact

    def write(self, payload: bytes) -> None:
        """Put it there, whole from the first moment; raises ``StartError`` if the folder does not take it."""
        new = self._new
        try:
            # A new file, made by us (O_EXCL): what lies there may be a link that somebody else has laid.
            new.unlink(missing_ok=True)
            with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(payload)
            new.rename(self.path)  # at one stroke: readers on other hosts look all the time
        except OSError as error:
            raise StartError(f"rank 0 cannot tell the others where it is by {self.path}: {error}; {REMEDY}") from error

    def read(self, timeout_s: float) -> bytes:
        """Return its content as soon as it is there; raises ``StartError`` after ``timeout_s``."""
        deadline, pause_s = time.monotonic() + timeout_s, FIRST_LOOK_S
        while (payload := self._look()) is None:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise StartError(
                    f"rank 0 has not written {self.path} within {timeout_s:.3g} s. Has it called init()? If it has, it "
                    f"sees another folder: {REMEDY}. If it needs longer: --start-timeout (FARANDOLE_START_TIMEOUT_S)"
                )
            time.sleep(min(pause_s, left_s))
            pause_s = min(2 * pause_s, LONGEST_LOOK_S)
        return payload

    @property
    def _new(self) -> Path:
        return self.path.with_name(f"{self.path.name}.new")

    def _look(self) -> bytes | None:
        try:
            # NFS remembers that a name did not exist until the folder is opened again.
            os.close(os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY))
            # In a folder of several users anything may lie there; a FIFO would hold an open() up for ever.
            fd = os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StartError(f"{self.path}, by which rank 0 says where it is, cannot be read: {error}") from error
        status = os.fstat(fd)  # of what was opened, which the name may not stand for any more
        if not stat.S_ISREG(status.st_mode):
            os.close(fd)
            raise StartError(
                f"{self.path} is not from rank 0: it is no file, but a {_kind(status.st_mode)} of user "
                f"{status.st_uid}. Remove it, or {REMEDY}"
            )
        with open(fd, "rb") as file:
            if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077:
                raise StartError(
                    f"{self.path} is not from rank 0: it belongs to user {status.st_uid} with mode "
                    f"{stat.S_IMODE(status.st_mode):o}, not to you alone. Remove it, or {REMEDY}"
                )
            return file.read()


def _kind(mode: int) -> str:
    kinds = {stat.S_IFIFO: "FIFO", stat.S_IFDIR: "folder", stat.S_IFCHR: "device", stat.S_IFBLK: "device"}
    return kinds.get(stat.S_IFMT(mode), "socket")
