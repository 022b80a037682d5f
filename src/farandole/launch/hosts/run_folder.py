"""Folder of a run: its leader publishes its contact there for agents of leases and for commands.

    folder = RunFolder.create("/scratch/me/run7")
    folder.publish(RunContact(...))                 # in the leader
    contact = RunFolder("/scratch/me/run7").contact()

Every file in it has one writer. Only ``run.json`` contains the secret of the job: file and folder must be private to
the user, or they are refused.
"""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path
from typing import final

import msgspec

from farandole.control.dial import first_answering
from farandole.control.keys import JobKeys
from farandole.control.private_file import NotPrivateError, read_private, write_private
from farandole.errors import ControlError, UsageError
from farandole.version import __version__

RUNS = Path("~/.farandole/runs")
"""Parent folder of run folders without an explicit path."""

CONTACT = "run.json"
LEAD_ANSWERS_S = 2.0
"""Time for a leader that may already use a folder to answer."""


@final
class NoLeaderError(UsageError):
    """No ``run.json``, and so no leader: the run has not begun, or is over."""


@final
class RunContact(msgspec.Struct, frozen=True):
    """Contact of a leader: its ``addresses``, the job's ``secret``, and settings for its agents.

    ``host_timeout_s``, ``interface``, ``start_timeout_s`` and ``version`` are the leader's. ``epoch``: its number among
    the leaders of the run. After it is lost, agents look for the next leader for ``lead_patience_s``; that one adopts
    their workers if its ``training`` is the same.
    """

    addresses: list[str]
    secret: str
    host_timeout_s: float
    start_timeout_s: float
    interface: str = ""
    version: str = __version__
    epoch: int = 0
    lead_patience_s: float = 0.0
    training: str = ""


@final
class RunFolder:
    """Folder of one run."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).absolute()

    @classmethod
    def told(cls, text: str) -> RunFolder:
        """Folder of a run that a user gives by path, or by name if it is in ``RUNS``."""
        own = RUNS.expanduser() / text
        return cls(own if os.sep not in text and not os.path.exists(text) and os.path.exists(own) else text)

    @classmethod
    def create(cls, path: str | Path) -> RunFolder:
        """Make the folder, or use an existing one; raises ``UsageError`` if other users can access it."""
        folder = cls(path)
        try:
            folder.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"the run folder {folder.path} cannot be made: {error.strerror}") from error
        folder.check()
        return folder

    @property
    def name(self) -> str:
        """Name of the run: that of its folder."""
        return self.path.name

    def check(self) -> None:
        """Raise ``UsageError`` unless the folder exists and is private to this user."""
        try:
            status = os.stat(self.path)
        except FileNotFoundError as error:
            raise UsageError(
                f"there is no run folder {self.path} here: is its name right (farandole ps shows those of {RUNS}), and "
                "does it lie on a file system that every node sees?"
            ) from error
        except OSError as error:
            raise UsageError(f"the run folder {self.path} cannot be read: {error.strerror}") from error
        mode = stat.S_IMODE(status.st_mode)
        if not stat.S_ISDIR(status.st_mode):
            raise UsageError(f"{self.path} is no folder of a run: is its name right?")
        if status.st_uid != os.geteuid():
            raise UsageError(
                f"the run folder {self.path} belongs to user {status.st_uid}, who alone can ask this run and order it"
            )
        if mode & 0o077:
            raise UsageError(
                f"the run folder {self.path} has the mode {mode:o}: it holds the key of the job, so type: "
                f"chmod 700 {self.path}"
            )

    def publish(self, contact: RunContact) -> None:
        """Write the contact file; raises ``UsageError`` if it cannot be written, or a later leader exists."""
        if contact.epoch < self._epoch():
            raise UsageError(f"another leader has {self.path}: number {self._epoch()}, and this is {contact.epoch}")
        try:
            write_private(self.path / CONTACT, msgspec.json.encode(contact))
        except OSError as error:
            raise UsageError(f"{self.path / CONTACT} cannot be written: {error.strerror}") from error

    def withdraw(self, epoch: int) -> None:
        """Remove the contact file of the leader of this epoch, if possible: the run is over."""
        with contextlib.suppress(OSError):
            if self._epoch() == epoch:  # else another leader has taken over
                (self.path / CONTACT).unlink(missing_ok=True)

    def ensure(self, contact: RunContact) -> None:
        """Publish a contact again if the file differs; raises ``UsageError`` if that is unknown, or fails."""
        self.check()
        found = None
        try:
            found = self.contact()
        except NoLeaderError:
            pass
        except UsageError as error:
            if isinstance(error.__cause__, OSError):  # the contact may be there
                raise
        if found != contact:  # a late leader has overwritten it
            self.publish(contact)

    def _epoch(self) -> int:
        """Epoch of the leader that published last; 0 if unknown."""
        with contextlib.suppress(UsageError):
            return self.contact().epoch
        return 0

    def refuse_second(self) -> None:
        """Raise ``UsageError`` if a leader uses, or may use, this folder: two would release the same leases."""
        try:
            contact = self.contact()
        except NoLeaderError:
            return
        except UsageError as error:
            path = self.path / CONTACT
            raise UsageError(
                f"it is not known whether a run goes on in {self.path}: {error}. Try again, take another --run-folder, "
                f"or, if that run is over, type: rm {path}"
            ) from error
        try:
            first_answering(contact.addresses, JobKeys.from_secret(contact.secret), LEAD_ANSWERS_S)
        except ControlError:  # the leader died and left its contact file
            return
        raise UsageError(
            f"a run goes on in {self.path}: take another --run-folder, or end that one: farandole stop {self.path}"
        )

    def contact(self) -> RunContact:
        """Read the contact file; raises ``UsageError`` if it is missing, not private or invalid."""
        self.check()
        path = self.path / CONTACT
        try:
            found = msgspec.json.decode(read_private(path), type=RunContact)
        except FileNotFoundError as error:
            raise NoLeaderError(f"there is no {path}: the run has not begun, or is over") from error
        except OSError as error:
            raise UsageError(f"{path} cannot be read: {error.strerror}") from error
        except NotPrivateError as error:
            raise UsageError(f"{path} is refused: {error}; type: chmod 600 {path}") from error
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise UsageError(f"{path} is not what a leader writes: {error}") from error
        if found.version != __version__:
            raise UsageError(
                f"the run {self.name} has Farandole {found.version} and this is {__version__}: install the same on all "
                "nodes"
            )
        return found
