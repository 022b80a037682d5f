"""Log of the leaders of a run and of its last generation. It fences off a late leader.

    log = LeaderLog(folder.path)
    epoch = log.begin_epoch(goes_on=False).epoch              # a leader, before anything else
    log.append(LeaderEntry(epoch, generation=1, members=...)) # before the members of a generation are told
    log.append(...)                                           # raises SupersededError after another leader took over

An entry is a file that is linked to its number by ``link(2)``, which fails if the number exists, also on shared file
systems. A leader reads the previous entry before it appends; so entries are totally ordered, and an entry of an earlier
epoch never follows one of a later epoch. Entries are never removed: a leader that was suspended must find the next
number taken. Each entry has the complete state, so only the last one is read.

Why two halves of a run cannot both commit, without any clock: a generation of a later leader begins with a worker of
the last generation in this log, which that worker has left, and a step needs the votes of all ranks of its generation.
After that no generation of an earlier leader can enter the log.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path
from typing import final

import msgspec

from farandole.errors import FarandoleError, UsageError

LEADS = "leads"
"""Folder of the entries, in the run folder."""


@final
class SupersededError(FarandoleError):
    """Another leader has taken over this run."""


@final
class LeaderMember(msgspec.Struct, frozen=True):
    """Member of a generation: worker id, host, and slot there."""

    worker_id: int
    host: str
    slot: int


@final
class LeaderEntry(msgspec.Struct, frozen=True):
    """One entry: the ``epoch`` of a leader, and the ``members`` of the last ``generation`` formed (0: none).

    Worker ids from ``next_worker_id`` on were unused when it was written; ``nonce`` makes the entry unique.
    """

    epoch: int
    generation: int = 0
    members: tuple[LeaderMember, ...] = ()
    next_worker_id: int = 0
    nonce: str = ""


@final
class LeaderLog:
    """Log in the folder of a run. Methods raise ``OSError`` if the folder cannot be read or written."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / LEADS
        self._number = 0
        self._last = LeaderEntry(0)

    def last(self) -> LeaderEntry:
        """The last entry; an entry of epoch 0 if the log is empty."""
        self._skip()
        while (entry := self._read(self._number + 1)) is not None:
            self._number, self._last = self._number + 1, entry
        return self._last

    def begin_epoch(self, *, goes_on: bool) -> LeaderEntry:
        """Begin the next epoch; if the run ``goes_on``, its entry contains the last generation."""
        self._path.mkdir(mode=0o700, exist_ok=True)
        while True:
            last = self.last()
            kept = last if goes_on else LeaderEntry(0)
            entry = msgspec.structs.replace(kept, epoch=last.epoch + 1, nonce=secrets.token_hex(8))
            if self._link(entry):
                return entry

    def append(self, entry: LeaderEntry) -> None:
        """Append an entry; raises as ``check`` unless its epoch is the last one."""
        entry = msgspec.structs.replace(entry, nonce=secrets.token_hex(8))
        while True:
            self.check(entry.epoch)
            if self._link(entry):
                return

    def check(self, epoch: int) -> None:
        """Raise ``SupersededError`` if there is a later epoch, ``UsageError`` if even this one is missing."""
        last = self.last()
        if last.epoch < epoch:  # file system unmounted, or showing an old state
            raise UsageError(f"{self._path} shows no leader after number {last.epoch}, and this is number {epoch}")
        if last.epoch > epoch:
            raise SupersededError(
                f"this run has another leader: this one was number {epoch}, and number {last.epoch} has taken over. "
                "Nothing is committed here any more; see: farandole ps"
            )

    def _skip(self) -> None:
        """Start reading at the last existing number: earlier entries are not needed."""
        if not self._last.epoch and self._path.is_dir():
            numbers = [int(name) for name in os.listdir(self._path) if name.isdecimal()]
            self._number = max(numbers, default=1) - 1

    def _file(self, number: int) -> Path:
        return self._path / f"{number:08}"

    def _read(self, number: int) -> LeaderEntry | None:
        if self._last.epoch:  # a missing folder says nothing about the leader
            self._open_again()
        with contextlib.suppress(FileNotFoundError):
            self._open_again()
            text = self._file(number).read_bytes()
            try:
                return msgspec.json.decode(text, type=LeaderEntry)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise UsageError(f"{self._file(number)} is not what a leader writes: {error}") from error
        return None

    def _open_again(self) -> None:
        """Open the folder: until then NFS caches that a name did not exist."""
        os.close(os.open(self._path, os.O_RDONLY | os.O_DIRECTORY))

    def _link(self, entry: LeaderEntry) -> bool:
        """Link an entry to the next number; False if that is taken. The entry is on disk on return."""
        new = self._path / f"{entry.nonce}.new"
        try:
            with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
                file.write(msgspec.json.encode(entry))
                file.flush()
                os.fsync(file.fileno())
            with contextlib.suppress(FileExistsError):  # NFS reports this also if only its reply was lost
                os.link(new, self._file(self._number + 1))
            folder = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        finally:
            with contextlib.suppress(OSError):
                new.unlink(missing_ok=True)
        found = self._read(self._number + 1)
        return found is not None and found.nonce == entry.nonce
