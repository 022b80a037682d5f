"""Folder of checkpoints, and the rules by which a checkpoint in it is whole.

    runs/a/step-000000001200/manifest.json      written last; its digest is its own first line
    runs/a/step-000000001200/shard-0-of-2       what rank 0 wrote, and so on
    runs/a/.writing-000000001250-node1-77-0a…/  one that is not whole yet, or never will be
    runs/a/later-than-000000000900-0a…/         the checkpoints of a branch that training has left, going back to 900

A checkpoint gets its name when all its files are on the disk, by one ``rename``: a process that sees the name sees all
files, even after a power failure. Its manifest has size and digest of every file.

There are no locks: a killed process would leave them behind, and some shared file systems have none. Several processes,
even of unrelated jobs, may write, restore and remove in one folder at once: each save has a folder of its own
(``mark``), names change by ``rename`` alone, and a process that loses a race gets an error from the call.
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
"""Seconds without a change after which an unfinished folder of a process on another host is removed."""

_MARK = re.compile(r"(?P<host>.+)-(?P<pid>\d+)-[0-9a-f]{8}")
_in_flight: set[str] = set()
"""Marks of the saves that threads of this process write; changed by methods that no other thread interrupts."""

_AT_FDCWD, _RENAME_EXCHANGE = -100, 2


@final
class ShardFile(msgspec.Struct, frozen=True):
    """One file of a checkpoint. ``writer`` describes the rank that wrote it."""

    name: str
    nbytes: int
    digest: str
    writer: str = ""

    @property
    def title(self) -> str:
        """The file, and its writer."""
        return f"{self.name} of {self.writer}" if self.writer else self.name


@final
class CheckpointManifest(msgspec.Struct, frozen=True):
    """Content of a checkpoint. ``farandole`` is the version that wrote it."""

    step: int
    shards: list[ShardFile]
    farandole: str
    format: int = FORMAT


class Unrestorable(Exception):  # noqa: N818 (no error of the user's: a reason)
    """Reason why a checkpoint cannot be restored."""


class IncompleteError(Exception):
    """Files of a checkpoint are missing, or not whole, when it should get its name."""


@final
class Digesting:
    """A file that is written from start to end, with the digest and the number of its bytes."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._hash = file, hashlib.blake2b(digest_size=16)
        self.nbytes = 0
        self.error: OSError | None = None
        """Error of the file, if there was one: frameworks raise another exception for it."""

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
    """Mark of one save: unique among all saves of all jobs; it contains host and pid of its process."""
    return f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"


def writing(root: Path, step: int, mark: str) -> Path:
    """Folder of a checkpoint while it is written; only ranks of the save with this ``mark`` write to it."""
    return root / f"{_WRITING}{step:0{_DIGITS}}-{mark}"


@contextlib.contextmanager
def in_flight(mark: str) -> Iterator[None]:
    """Context of the save with this ``mark``: this process does not take its folder for abandoned."""
    _in_flight.add(mark)
    try:
        yield
    finally:
        _in_flight.discard(mark)


def write_shard(folder: Path, name: str, dump: Callable[[BinaryIO], object], writer: str = "") -> ShardFile:
    """Write a file durably, with access for its owner alone."""
    fd = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "wb") as file:
        digesting = Digesting(file)
        try:
            dump(digesting)  # type: ignore[arg-type] # it has what writers of streams use
        except Exception as error:
            raise digesting.error or error from error
        file.flush()
        os.fsync(file.fileno())  # before the digest goes into a manifest, which describes bytes on the disk
    return ShardFile(name, digesting.nbytes, digesting.digest, writer)


def finish(folder: Path, manifest: CheckpointManifest, back_to: int | None = None) -> Path:
    """Give a checkpoint its manifest and its name; all its shards are on the disk.

    ``back_to``: step that training has gone back to before this checkpoint; later checkpoints are moved away. Raises
    ``IncompleteError`` if this process does not see all shards: other ranks may have written to another disk.
    """
    if unseen := [text for text in (_unseen(folder, shard) for shard in manifest.shards) if text]:
        raise IncompleteError("; ".join(unseen))
    body = msgspec.json.encode(manifest)
    head = hashlib.blake2b(body, digest_size=16).hexdigest().encode()
    write_shard(folder, MANIFEST, lambda file: _write(file, head + b"\n" + body))
    sync_folder(folder)  # before the rename: after a power failure no name may exist without all its files
    if back_to is not None:
        _leave_branch(folder.parent, back_to, manifest.step)
    writer = folder_of(folder.parent, manifest.step)
    if exchange(folder, writer):  # the same step again: the newer checkpoint counts
        former: Path | None = folder
    else:
        former = _set_aside(writer)  # ``rename`` replaces no folder that is not empty
        try:
            os.rename(folder, writer)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            discard(folder)  # another process has written the same step since the line above, and its checkpoint stays
    sync_folder(folder.parent)  # before the caller removes older ones, or reports that this one is written
    if former is not None:
        discard(former)  # last: until here a crash leaves the files of both
    return writer


def _leave_branch(root: Path, back_to: int, written: int) -> None:
    """Move checkpoints later than the earlier of ``back_to`` and ``written`` to another folder of checkpoints.

    If all of them are earlier than ``written`` they stay: the script only read ``back_to``, and trains on as before.
    """
    after = min(back_to, written)
    later = [step for step in steps(root) if step > after]
    if not later or later[0] < written:
        return
    branch = root / f"{_LEFT}{after:0{_DIGITS}}-{secrets.token_hex(4)}"
    branch.mkdir(mode=0o700)
    for step in reversed(later):  # the newest last: after a crash before that it is still the newest
        with contextlib.suppress(FileNotFoundError):  # another process has moved it, or removed it
            os.rename(folder_of(root, step), folder_of(branch, step))
    sync_folder(branch)
    logger.warning(
        "checkpoint: training has gone back to step %d in %s: its checkpoints of steps %d to %d are in %s from now on",
        back_to, root, later[-1], later[0], branch,
    )  # fmt: skip


def left_in(root: Path, step: int) -> list[Path]:
    """The checkpoints of this step in branches that training has left."""
    return [folder_of(branch, step) for branch in root.glob(f"{_LEFT}*") if folder_of(branch, step).exists()]


def _unseen(folder: Path, shard: ShardFile) -> str:
    try:
        # Opened, because NFS then asks its server; ``stat`` may use a cache.
        with (folder / shard.name).open("rb") as file:
            nbytes = os.fstat(file.fileno()).st_size
    except OSError as error:
        return f"{shard.title} is not there ({error.strerror})"
    return "" if nbytes == shard.nbytes else f"{shard.title} has {nbytes} bytes instead of {shard.nbytes}"


def steps(root: Path) -> list[int]:
    """Steps of the folders that have a checkpoint's name, newest first."""
    names = (entry.name for entry in root.iterdir()) if root.is_dir() else ()
    numbers = (name.removeprefix(_NAME) for name in names if name.startswith(_NAME))
    return sorted((int(number) for number in numbers if number.isdecimal()), reverse=True)


def folder_of(root: Path, step: int) -> Path:
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

    The caller reads the verified bytes, even if another process replaces the file of this name meanwhile.
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
    """Remove a checkpoint, whole or not. It loses its name before its first file is removed."""
    without_name = _set_aside(folder) if folder.name.startswith(_NAME) else folder
    if without_name is not None:
        shutil.rmtree(without_name, ignore_errors=True)  # another process may, too; ``unfinished`` finds the rest


def _set_aside(folder: Path) -> Path | None:
    """Rename a checkpoint away: a restoring process sees it whole or not at all. ``None``: there was none."""
    # Random, because two processes may remove checkpoints of one step at the same time.
    mark = f"{_REMOVED}{secrets.token_hex(4)}"
    try:
        return folder.rename(folder.with_name(f"{_WRITING}{folder.name.removeprefix(_NAME)}-{mark}"))
    except FileNotFoundError:  # there is none, or another process removes it
        return None


def exchange(new: Path, old: Path) -> bool:
    """Swap the names of two folders atomically, even in a crash; False if this is not possible."""
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)  # Linux with glibc 2.28 or later
    if renameat2 is None:
        return False
    done: int = renameat2(_AT_FDCWD, os.fsencode(new), _AT_FDCWD, os.fsencode(old), _RENAME_EXCHANGE)
    return done == 0  # else there is no ``old``, or the file system (NFS, Lustre) cannot


def unfinished(root: Path) -> Iterator[Path]:
    """Folders without a checkpoint's name: left by interrupted writers, or being written now."""
    yield from root.glob(f"{_WRITING}*") if root.is_dir() else ()


def is_abandoned(path: Path, now: float) -> bool:
    """True if no process writes to the unfinished folder ``path`` any more, as far as this process can tell.

    Another job may write to the same folder, and so may workers that get SIGTERM between two generations, each as a
    rank 0 of its own: no process may remove a folder that another process is writing.
    """
    _, _, mark = path.name.removeprefix(_WRITING).partition("-")
    if mark.startswith(_REMOVED):
        return True
    found = _MARK.fullmatch(mark)
    if found and found["host"] == socket.gethostname():
        is_own = int(found["pid"]) == os.getpid()
        return mark not in _in_flight if is_own else not Path("/proc", found["pid"]).exists()
    try:  # of its files, too: writing a large file takes long
        return now - max(each.stat().st_mtime for each in (path, *path.iterdir())) > ABANDONED_S
    except OSError:  # it was finished just now, belongs to another user, or the file system cannot reach it
        return False


def retain(root: Path, keep: int, written: int) -> None:
    """Remove all but the newest ``keep`` checkpoints up to the step ``written``; 0 keeps all.

    Checkpoints of later steps do not count: they were refused as damaged, or belong to another training. If they
    counted, the checkpoint that was just written would be removed.
    """
    for step in [step for step in steps(root) if step <= written][keep:] if keep else ():
        discard(folder_of(root, step))


def _write(file: BinaryIO, data: bytes) -> None:
    file.write(data)


def sync_folder(folder: Path) -> None:
    """Flush a folder to the disk: only then do names of files survive a power failure."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
