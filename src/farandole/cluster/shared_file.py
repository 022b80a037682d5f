"""File in a folder that all hosts share, by which the first process gives the contact to the others.

    file = SharedFile("/scratch/me", "slurm-1234.0.0")
    file.share(contact, timeout_s=30.0)       # the first
    file.share(None, timeout_s=30.0)          # the others

Only its owner can read it. The content may be outdated when a process reads it; the process then reads it again.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import final

from farandole.cluster.contact import Contact
from farandole.control.private_file import NotPrivateError, new_path, read_private, write_private
from farandole.errors import StartError

FIRST_LOOK_S, LONGEST_LOOK_S = 0.01, 0.2
"""Polling interval, at first and at most: file systems of clusters do not notify when a file appears."""

REMEDY = "name a folder that every host sees and you can write to: export FARANDOLE_RENDEZVOUS_DIR=/shared/folder"


@final
class SharedFile:
    """File ``.farandole-NAME`` in ``folder``."""

    def __init__(self, folder: str, name: str) -> None:
        self.path = Path(folder).absolute() / f".farandole-{name}"

    @property
    def paths(self) -> list[Path]:
        """Files that may exist, for removal when no process needs them any more."""
        return [self.path, new_path(self.path)]

    def share(self, contact: Contact | None, timeout_s: float) -> Contact:
        """Write the contact, or wait for it and return it; raises ``StartError`` if the wait times out."""
        if contact is None:
            return Contact.decode(self.read(timeout_s))
        self.write(contact.encode())
        return contact

    def write(self, payload: bytes) -> None:
        """Write the file atomically; raises ``StartError`` if the folder cannot be written to."""
        try:
            write_private(self.path, payload)
        except OSError as error:
            raise StartError(f"rank 0 cannot publish its address in {self.path}: {error}; {REMEDY}") from error

    def read(self, timeout_s: float) -> bytes:
        """Return the content as soon as the file exists; raises ``StartError`` after ``timeout_s``."""
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

    def _look(self) -> bytes | None:
        try:
            return read_private(self.path)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StartError(f"{self.path}, by which rank 0 says where it is, cannot be read: {error}") from error
        except NotPrivateError as error:
            raise StartError(f"{self.path} is not from rank 0: {error}. Remove it, or {REMEDY}") from error
