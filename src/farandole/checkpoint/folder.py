"""A folder of checkpoints, and what makes one whole.

    runs/a/step-000000001200/manifest.json      written last; its digest is its own first line
    runs/a/step-000000001200/shard-0-of-2       what rank 0 wrote, and so on
    runs/a/.writing-000000001250-node1-77-0a…/  one that is not whole yet, or never will be
    runs/a/later-than-000000000900-0a…/         the checkpoints of a branch that training has left, going back to 900

A checkpoint gets its name when everything in it is on the disk, by one ``rename``: who sees the name sees all of it,
whenever the power failed. Its manifest has size and digest of every file.

There are no locks, which a process that is killed would leave behind, and some shared file systems do not have. Several
processes may write, restore and remove in one folder at once, also such as know nothing of each other: each save has
a folder of its own (``mark``), names change hands by ``rename`` alone, and a loser learns of it by the call's error.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import hashlib
import os
import re
import secrets
import shutil
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, final

import msgspec

from farandole.events import logger

FORMAT = 1
MANIFEST = "manifest.json"
_NAME, _WRITING, _REMOVED, _LEFT = "step-", ".writing-", "removed-", "later-than-"
_DIGITS = 12
_BLOCK = 2**20

ABANDONED_S = 3600.0
"""So long nothing is added to a folder that a process of another host has left, until it is removed."""

_MARK = re.compile(r"(?P<host>.+)-(?P<pid>\d+)-[0-9a-f]{8}")
_in_flight: set[str] = set()
"""Marks of the saves that threads of this process are at; changed by methods that no other thread interrupts."""

_AT_FDCWD, _RENAME_EXCHANGE = -100, 2


@final
class ShardFile(msgspec.Struct, frozen=True):
    """One file of a checkpoint. ``writer`` is who wrote it, in words."""

    name: str
    nbytes: int
    digest: str
    writer: str = ""

    @property
    def title(self) -> str:
        """The file, and whose it is."""
        return f"{self.name} of {self.writer}" if self.writer else self.name


@final
class CheckpointManifest(msgspec.Struct, frozen=True):
    """Content of a checkpoint. ``farandole`` is the version that wrote it."""

    step: int
    shards: list[ShardFile]
    farandole: str
    format: int = FORMAT


class Unrestorable(Exception):  # noqa: N818 (no error of the user's: a reason)
    """Reason why something is no checkpoint that could be restored."""


class IncompleteError(Exception):
    """Files of a checkpoint are not there, or not whole, where it is to get its name."""


@final
class Digesting:
    """A file that is written from start to end, and knows the digest and number of its bytes."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._hash = file, hashlib.blake2b(digest_size=16)
        self.nbytes = 0
        self.error: OSError | None = None
        """Error of the file, if there was one: frameworks raise something of their own for it."""

    def write(self, data: bytes | memoryview) -> int:
        """Write all of ``data``."""
        try:
            self._file.write(data)
        except OSError as error:
            self.error = error
            raise
        self._hash.update(data)
        size = memoryview(data).nbytes
        self.nbytes += size
        return size

    def flush(self) -> None:
        """Flush the file, as writers of streams expect."""
        self._file.flush()

    @property
    def digest(self) -> str:
        """Digest of what was written so far."""
        return self._hash.hexdigest()


def new_mark() -> str:
    """Mark of one save: no other one has it, of whichever job, and it tells which process is behind it."""
    return f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"


def writing(root: Path, step: int, mark: str) -> Path:
    """Folder of a checkpoint while it is written, by those who have this ``mark`` and nobody else."""
    return root / f"{_WRITING}{step:0{_DIGITS}}-{mark}"


@contextlib.contextmanager
def in_flight(mark: str) -> Iterator[None]:
    """Context of the save that has this ``mark``: nothing of it is taken for abandoned by this process."""
    _in_flight.add(mark)
    try:
        yield
    finally:
        _in_flight.discard(mark)


def write_shard(folder: Path, name: str, dump: Callable[[BinaryIO], object], writer: str = "") -> ShardFile:
    """Write a file durably, for its owner alone."""
    fd = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "wb") as file:
        digesting = Digesting(file)
        try:
            dump(digesting)  # type: ignore[arg-type] # it has what writers of streams use
        except Exception as error:
            raise digesting.error or error from error
        file.flush()
        os.fsync(file.fileno())  # before the digest goes into a manifest, which is to speak of what is on the disk
    return ShardFile(name, digesting.nbytes, digesting.digest, writer)


def finish(folder: Path, manifest: CheckpointManifest, back_to: int | None = None) -> Path:
    """Give a checkpoint, all of whose shards are on the disk, its manifest and its name.

    ``back_to`` is the step that training has gone back to before this one: those after it are moved out of the way.
    Raises ``IncompleteError`` if this process does not see all shards: others may have written to another disk.
    """
    if unseen := [text for text in (_unseen(folder, shard) for shard in manifest.shards) if text]:
        raise IncompleteError("; ".join(unseen))
    body = msgspec.json.encode(manifest)
    head = hashlib.blake2b(body, digest_size=16).hexdigest().encode()
    write_shard(folder, MANIFEST, lambda file: _write(file, head + b"\n" + body))
    sync_folder(folder)  # before the rename: after a power failure there may be no name whose files are not all there
    if back_to is not None:
        _leave_branch(folder.parent, back_to, manifest.step)
    writer = writer_of(folder.parent, manifest.step)
    if exchange(folder, writer):  # the same step again: what is newer counts
        former: Path | None = folder
    else:
        former = _set_aside(writer)  # ``rename`` replaces no folder that is not empty
        try:
            os.rename(folder, writer)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            discard(folder)  # another process has written the same step since the line above, and its checkpoint stays
    sync_folder(folder.parent)  # before the caller removes older ones, or says that this one is written
    if former is not None:
        discard(former)  # last: until here a crash leaves the files of both
    return writer


def _leave_branch(root: Path, back_to: int, written: int) -> None:
    """Move what is later than ``back_to``, or than ``written``, to a folder that is one of checkpoints, too.

    Unless all of it is earlier than ``written``: whoever has only looked at ``back_to`` goes on where it was.
    """
    after = min(back_to, written)
    later = [step for step in steps(root) if step > after]
    if not later or later[0] < written:
        return
    branch = root / f"{_LEFT}{after:0{_DIGITS}}-{secrets.token_hex(4)}"
    branch.mkdir(mode=0o700)
    for step in reversed(later):  # the newest last: a crash before that leaves it the newest
        with contextlib.suppress(FileNotFoundError):  # another process has moved it, or removed it
            os.rename(writer_of(root, step), writer_of(branch, step))
    sync_folder(branch)
    logger.warning(
        "checkpoint: training has gone back to step %d in %s: its checkpoints of steps %d to %d are in %s from now on",
        back_to, root, later[-1], later[0], branch,
    )  # fmt: skip


def left_in(root: Path, step: int) -> list[Path]:
    """The checkpoints of this step in branches that training has left."""
    return [writer_of(branch, step) for branch in root.glob(f"{_LEFT}*") if writer_of(branch, step).exists()]


def _unseen(folder: Path, shard: ShardFile) -> str:
    try:
        # Opened, as NFS asks its server then, where ``stat`` may be of a cache.
        with (folder / shard.name).open("rb") as file:
            nbytes = os.fstat(file.fileno()).st_size
    except OSError as error:
        return f"{shard.title} is not there ({error.strerror})"
    return "" if nbytes == shard.nbytes else f"{shard.title} has {nbytes} bytes instead of {shard.nbytes}"


def steps(root: Path) -> list[int]:
    """The steps of what looks like a checkpoint, newest first."""
    names = (entry.name for entry in root.iterdir()) if root.is_dir() else ()
    numbers = (name.removeprefix(_NAME) for name in names if name.startswith(_NAME))
    return sorted((int(number) for number in numbers if number.isdecimal()), reverse=True)


def writer_of(root: Path, step: int) -> Path:
    """The folder of a checkpoint."""
    return root / f"{_NAME}{step:0{_DIGITS}}"


def read_manifest(folder: Path) -> CheckpointManifest:
    """Read the manifest; raises ``Unrestorable`` where it is missing, damaged, or of an unknown format."""
    try:
        head, _, body = (folder / MANIFEST).read_bytes().partition(b"\n")
    except OSError as error:
        raise Unrestorable(f"its manifest cannot be read ({error.strerror})") from error
    if hashlib.blake2b(body, digest_size=16).hexdigest().encode() != head:
        raise Unrestorable("its manifest is damaged, or not one of Farandole's")
    try:
        manifest = msgspec.json.decode(body, type=CheckpointManifest)
    except msgspec.ValidationError as error:
        raise Unrestorable(f"its manifest is not of a form that is known here ({error})") from error
    if manifest.format != FORMAT:
        raise Unrestorable(f"it has format {manifest.format}, and this Farandole reads format {FORMAT}")
    return manifest


@contextlib.contextmanager
def verified(folder: Path, shard: ShardFile) -> Iterator[BinaryIO]:
    """The open file, if it holds the bytes that were written; raises ``Unrestorable`` if it does not.

    Those bytes are read from it, whatever another process puts in the place of its name meanwhile.
    """
    with contextlib.ExitStack() as stack:
        try:
            file = stack.enter_context((folder / shard.name).open("rb"))
            nbytes = os.fstat(file.fileno()).st_size
            if nbytes != shard.nbytes:
                raise Unrestorable(f"{shard.title} has {nbytes} bytes instead of {shard.nbytes}")
            digest = hashlib.blake2b(digest_size=16)
            for block in iter(lambda: file.read(_BLOCK), b""):
                digest.update(block)
            file.seek(0)
        except OSError as error:
            raise Unrestorable(f"{shard.title} cannot be read ({error.strerror})") from error
        if digest.hexdigest() != shard.digest:
            raise Unrestorable(f"{shard.title} does not have the bytes that were written")
        yield file


def discard(folder: Path) -> None:
    """Remove a checkpoint, whole or not. When it is half removed it has lost its name already."""
    without_name = _set_aside(folder) if folder.name.startswith(_NAME) else folder
    if without_name is not None:
        shutil.rmtree(without_name, ignore_errors=True)  # another may, too; ``unfinished`` finds what is left


def _set_aside(folder: Path) -> Path | None:
    """Take a checkpoint's name away: a process that restores sees all of it or nothing. ``None``: there was none."""
    # At random, as two processes may remove checkpoints of one step, the second while the first is still at it.
    mark = f"{_REMOVED}{secrets.token_hex(4)}"
    try:
        return folder.rename(folder.with_name(f"{_WRITING}{folder.name.removeprefix(_NAME)}-{mark}"))
    except FileNotFoundError:  # there is none, or somebody else removes it
        return None


def exchange(new: Path, old: Path) -> bool:
    """Swap the names of two folders in one step, of which no crash sees a half; False where that cannot be had."""
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)  # Linux with glibc 2.28 or later
    if renameat2 is None:
        return False
    done: int = renameat2(_AT_FDCWD, os.fsencode(new), _AT_FDCWD, os.fsencode(old), _RENAME_EXCHANGE)
    return done == 0  # or there is no ``old``, or the file system (NFS, Lustre) cannot


def unfinished(root: Path) -> Iterator[Path]:
    """Folders without a checkpoint's name: interrupted writers have left them, or others write them now."""
    yield from root.glob(f"{_WRITING}*") if root.is_dir() else ()


def is_abandoned(path: Path, now: float) -> bool:
    """True if nobody writes to the unfinished folder ``path`` any more, as far as this process can tell.

    Another job may write to the same folder, and workers that are told to end between two generations, each of which is
    a rank 0 of its own: nobody may remove what another process is writing.
    """
    _, _, mark = path.name.removeprefix(_WRITING).partition("-")
    if mark.startswith(_REMOVED):
        return True
    found = _MARK.fullmatch(mark)
    if found and found["host"] == socket.gethostname():
        is_own = int(found["pid"]) == os.getpid()
        return mark not in _in_flight if is_own else not Path("/proc", found["pid"]).exists()
    try:  # of its files, too: a large one is written for long
        return now - max(each.stat().st_mtime for each in (path, *path.iterdir())) > ABANDONED_S
    except OSError:  # its writer has just finished it, or is another user, or the file system has lost sight of it
        return False


def retain(root: Path, keep: int, written: int) -> None:
    """Remove all but the newest ``keep`` checkpoints up to the step ``written``; 0 keeps all.

    Not those of later steps: they were refused as damaged, or are another training's. If they counted, the one that
    was just written would have to go.
    """
    for step in [step for step in steps(root) if step <= written][keep:] if keep else ():
        discard(writer_of(root, step))


def _write(file: BinaryIO, data: bytes) -> None:
    file.write(data)


def sync_folder(folder: Path) -> None:
    """Flush a folder to the disk: names of files outlive a power failure only then."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
