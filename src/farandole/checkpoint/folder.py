"""A folder of checkpoints, and what makes one whole.

    runs/a/step-000000001200/manifest.json      written last; its digest is its own first line
    runs/a/step-000000001200/shard-0-of-2       what rank 0 wrote, and so on
    runs/a/.writing-000000001250-3/             one that is not whole yet, or never will be

A checkpoint gets its name when everything in it is on the disk, by one ``rename``: who sees the name sees all of it,
whenever the power failed. Its manifest has size and digest of every file.

There are no locks, which a process that is killed would leave behind, and some shared file systems do not have. Several
processes may write, restore and remove in one folder at once: those that write one checkpoint together do so in a
folder of their own (``mark``), names change hands by ``rename`` alone, and a loser learns of it by the call's error.
"""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, final

import msgspec

FORMAT = 1
MANIFEST = "manifest.json"
_NAME, _WRITING = "step-", ".writing-"
_DIGITS = 12
_BLOCK = 2**20


@final
class ShardFile(msgspec.Struct, frozen=True):
    """One file of a checkpoint."""

    name: str
    nbytes: int
    digest: str


@final
class Manifest(msgspec.Struct, frozen=True):
    """Content of a checkpoint. ``farandole`` is the version that wrote it."""

    step: int
    shards: list[ShardFile]
    farandole: str
    format: int = FORMAT


class Unrestorable(Exception):  # noqa: N818 (no error of the user's: a reason)
    """Reason why something is no checkpoint that could be restored."""


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


def writing(root: Path, step: int, mark: str) -> Path:
    """Folder of a checkpoint while it is written, by those who have this ``mark`` and nobody else."""
    return root / f"{_WRITING}{step:0{_DIGITS}}-{mark}"


def write_shard(folder: Path, name: str, dump: Callable[[BinaryIO], None]) -> ShardFile:
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
    return ShardFile(name, digesting.nbytes, digesting.digest)


def finish(folder: Path, manifest: Manifest) -> Path:
    """Give a checkpoint, all of whose shards are on the disk, its manifest and its name."""
    body = msgspec.json.encode(manifest)
    head = hashlib.blake2b(body, digest_size=16).hexdigest().encode()
    write_shard(folder, MANIFEST, lambda file: _write(file, head + b"\n" + body))
    _sync(folder)  # before the rename: after a power failure there may be no name whose files are not all there
    writer = writer_of(folder.parent, manifest.step)
    discard(writer)  # the same step again: what is newer counts, and ``rename`` replaces no folder that is not empty
    try:
        os.rename(folder, writer)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        discard(folder)  # another process has written the same step since the line above, and its checkpoint stays
    _sync(folder.parent)  # before the caller removes older ones, or says that this one is written
    return writer


def steps(root: Path) -> list[int]:
    """The steps of what looks like a checkpoint, newest first."""
    names = (entry.name for entry in root.iterdir()) if root.is_dir() else ()
    numbers = (name.removeprefix(_NAME) for name in names if name.startswith(_NAME))
    return sorted((int(number) for number in numbers if number.isdecimal()), reverse=True)


def writer_of(root: Path, step: int) -> Path:
    """The folder of a checkpoint."""
    return root / f"{_NAME}{step:0{_DIGITS}}"


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest; raises ``Unrestorable`` where it is missing, damaged, or of an unknown format."""
    try:
        head, _, body = (folder / MANIFEST).read_bytes().partition(b"\n")
    except OSError as error:
        raise Unrestorable(f"its manifest cannot be read ({error.strerror})") from error
    if hashlib.blake2b(body, digest_size=16).hexdigest().encode() != head:
        raise Unrestorable("its manifest is damaged, or not one of Farandole's")
    try:
        manifest = msgspec.json.decode(body, type=Manifest)
    except msgspec.ValidationError as error:
        raise Unrestorable(f"its manifest is not of a form that is known here ({error})") from error
    if manifest.format != FORMAT:
        raise Unrestorable(f"it has format {manifest.format}, and this Farandole reads format {FORMAT}")
    return manifest


def verify(folder: Path, shard: ShardFile) -> None:
    """Raise ``Unrestorable`` unless the file holds the bytes that were written."""
    path = folder / shard.name
    try:
        with path.open("rb") as file:
            nbytes = os.fstat(file.fileno()).st_size
            if nbytes != shard.nbytes:
                raise Unrestorable(f"{shard.name} has {nbytes} bytes instead of {shard.nbytes}")
            digest = hashlib.blake2b(digest_size=16)
            for block in iter(lambda: file.read(_BLOCK), b""):
                digest.update(block)
    except OSError as error:
        raise Unrestorable(f"{shard.name} cannot be read ({error.strerror})") from error
    if digest.hexdigest() != shard.digest:
        raise Unrestorable(f"{shard.name} does not have the bytes that were written")


def discard(folder: Path) -> None:
    """Remove a checkpoint, whole or not. When it is half removed it has lost its name already."""
    if folder.name.startswith(_NAME):
        # Renamed first: a process that restores sees all of it or nothing. At random, as two processes may remove
        # checkpoints of one step, one after the other, while the first is still at it.
        mark = f"removed-{secrets.token_hex(4)}"
        try:
            folder = folder.rename(folder.with_name(f"{_WRITING}{folder.name.removeprefix(_NAME)}-{mark}"))
        except FileNotFoundError:  # there is none, or somebody else removes it
            return
    shutil.rmtree(folder, ignore_errors=True)  # another may remove it as well; ``unfinished`` finds what is left


def unfinished(root: Path, step: int | None = None) -> Iterator[Path]:
    """Folders that interrupted writers have left, or others write now: of all steps but ``step``."""
    own = f"{_WRITING}{step:0{_DIGITS}}-" if step is not None else None
    for path in root.glob(f"{_WRITING}*") if root.is_dir() else ():
        if own is None or not path.name.startswith(own):
            yield path


def retain(root: Path, keep: int) -> None:
    """Remove all but the newest ``keep`` checkpoints; 0 keeps all."""
    for step in steps(root)[keep:] if keep else ():
        discard(writer_of(root, step))


def _write(file: BinaryIO, data: bytes) -> None:
    file.write(data)


def _sync(folder: Path) -> None:
    """Flush a folder to the disk: names of files outlive a power failure only then."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
