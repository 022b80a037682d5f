"""Log of the leads of a run: who leads it, and which generation was formed last. What fences off a lead that is late.

    log = LeaderLog(folder.path)
    epoch = log.take(goes_on=False).epoch                   # a lead, before it does anything else
    log.append(LeadEntry(epoch, generation=1, members=...)) # before the members of a generation hear of it
    log.append(...)                                         # raises SupersededError once another lead has come

An entry is a file that is linked to its number by ``link(2)``, which fails where that number is taken, on shared file
systems, too. Whoever appends has read the entry before; so entries are in one order, and one of an earlier epoch never
follows one of a later. None is ever removed: a lead that has slept must find the next number taken. Each entry says
all that there is to know, so that only the last one is read.

Why halves of a run cannot both commit, though nobody's clock is asked: a generation of a later lead begins with a
worker of the last one in this log, which has left that one, and no step is voted on without all of its ranks. And
after that no generation of an earlier lead can enter the log.
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
"""Folder of the entries, in that of the run."""


@final
class SupersededError(FarandoleError):
    """Another lead has this run."""


@final
class LeadMember(msgspec.Struct, frozen=True):
    """Member of a generation: its number, its host, and its slot there."""

    worker_id: int
    host: str
    slot: int


@final
class LeadEntry(msgspec.Struct, frozen=True):
    """One entry: the ``epoch`` of a lead, and the ``members`` of the ``generation`` that was formed last (0: of none).

    Workers from ``next_worker_id`` on have not been started when it was written; ``nonce`` tells it from all others.
    """

    epoch: int
    generation: int = 0
    members: tuple[LeadMember, ...] = ()
    next_worker_id: int = 0
    nonce: str = ""


@final
class LeaderLog:
    """Log in the folder of a run. Methods raise ``OSError`` where that cannot be read or written."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / LEADS
        self._number = 0
        self._last = LeadEntry(0)

    def last(self) -> LeadEntry:
        """The last entry; one of epoch 0 where there is none."""
        self._skip()
        while (entry := self._read(self._number + 1)) is not None:
            self._number, self._last = self._number + 1, entry
        return self._last

    def take(self, *, goes_on: bool) -> LeadEntry:
        """Begin the next epoch; what was formed last stands in its entry, if the run ``goes_on``."""
        self._path.mkdir(mode=0o700, exist_ok=True)
        while True:
            last = self.last()
            kept = last if goes_on else LeadEntry(0)
            entry = msgspec.structs.replace(kept, epoch=last.epoch + 1, nonce=secrets.token_hex(8))
            if self._link(entry):
                return entry

    def append(self, entry: LeadEntry) -> None:
        """Append an entry; raises what ``check`` does unless its epoch is the last one."""
        entry = msgspec.structs.replace(entry, nonce=secrets.token_hex(8))
        while True:
            self.check(entry.epoch)
            if self._link(entry):
                return

    def check(self, epoch: int) -> None:
        """Raise ``SupersededError`` if there is a later epoch, and ``UsageError`` if not even this one is there."""
        last = self.last()
        if last.epoch < epoch:  # the file system is away, or shows an old state
            raise UsageError(f"{self._path} shows no lead after number {last.epoch}, and this is number {epoch}")
        if last.epoch > epoch:
            raise SupersededError(
                f"this run has another lead: this one was number {epoch}, and number {last.epoch} has taken over. "
                "Nothing is committed here any more; see: farandole ps"
            )

    def _skip(self) -> None:
        """Begin to read at the last number that is there: nobody asks for those before it."""
        if not self._last.epoch and self._path.is_dir():
            numbers = [int(name) for name in os.listdir(self._path) if name.isdecimal()]
            self._number = max(numbers, default=1) - 1

    def _file(self, number: int) -> Path:
        return self._path / f"{number:08}"

    def _read(self, number: int) -> LeadEntry | None:
        if self._last.epoch:  # a folder that has gone since says nothing of who leads
            self._open_again()
        with contextlib.suppress(FileNotFoundError):
            self._open_again()
            text = self._file(number).read_bytes()
            try:
                return msgspec.json.decode(text, type=LeadEntry)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise UsageError(f"{self._file(number)} is not what a lead writes: {error}") from error
        return None

    def _open_again(self) -> None:
        """Open the folder: NFS remembers until then that a name did not exist."""
        os.close(os.open(self._path, os.O_RDONLY | os.O_DIRECTORY))

    def _link(self, entry: LeadEntry) -> bool:
        """Give an entry the next number; False where another one has it. It is on the disk before this returns."""
        new = self._path / f"{entry.nonce}.new"
        try:
            with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
                file.write(msgspec.json.encode(entry))
                file.flush()
                os.fsync(file.fileno())
            with contextlib.suppress(FileExistsError):  # which NFS also says if only its answer was lost
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
