"""``CacheFolder``: pieces of one data set in a folder of this host, one file per piece.

    cache = CacheFolder.acquire("/tmp", manifest.digest)
    writer = cache.begin(3, size, checksums)
    writer.write(0, view)
    writer.finish()                     # from now on ``cache.open(3)`` finds it

A piece is written to a temporary file, whose space is reserved first, and renamed when it is complete: a file under its
final name is whole, unless the host crashed. After a crash it may not be, so every read verifies the checksums.
Dropping a piece unlinks its file; a reader that has the file open can go on reading.

A job holds the lock of its folder; the kernel frees the lock when the holder exits. A second job with the same data
takes the folder over from a stager without workers; else it uses one beside it, and hard-links the pieces of the first.

Only files with our names, in folders with our marker, are deleted; a folder that another user can write is never read.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import stat
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import final

import xxhash

from farandole.data.staging import folder_lock
from farandole.data.staging.checksums import Checksums
from farandole.data.storage.byte_store import read_fully
from farandole.data.storage.fields import Integers
from farandole.data.storage.manifest import Manifest
from farandole.errors import DataError

MARK = ".farandole-cache"
"""Marker file of a folder that Farandole may clean."""

PLANS = "plans"
"""File in the folder of a data set with the plans of its jobs, on the host of rank 0."""

INDEX = ".index"
"""Suffix of the file of a manifest, beside the folder of its data set."""

ATTEMPTS = 3
"""How often a manifest is written if another process deletes it meanwhile."""

_PIECE = re.compile(r"[0-9a-f]{8}")
_OURS = re.compile(rf"[0-9a-f]{{8}}(\.sums)?(\.[0-9]+\.new)?|{PLANS}")


def home_of(base: str) -> Path:
    """Folder of this user's caches below ``base``; created if missing.

    Raises ``DataError`` if it belongs to another user, or others can write to it.
    """
    home = Path(os.path.expandvars(base)).expanduser() / f"farandole-cache-{os.geteuid()}"
    if "$" in str(home):
        raise DataError(f"cache={base!r}: the variable is not set here; give a folder of this host, such as /tmp")
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"cache={base!r} cannot be used ({error}): give a folder of this host") from error
    require_own(home, "give another cache=")
    (home / MARK).touch(mode=0o600)
    return home


def require_own(folder: Path, cure: str, owners: Collection[int] = ()) -> None:
    """Raise ``DataError`` if ``folder`` is no folder, or other users could place links to our files in it.

    ``owners`` are users besides this one who may own it.
    """
    found = folder.lstat()
    is_ours = found.st_uid in (os.geteuid(), *owners)
    if not stat.S_ISDIR(found.st_mode) or not is_ours or found.st_mode & 0o022:
        raise DataError(f"{folder} belongs to another user, or others may write to it: {cure}")


def keep_index(base: str, manifest: Manifest) -> tuple[str, Manifest]:
    """Write a manifest beside the folder of its data set, for all processes of this host to map.

    Returns its path and the mapped manifest; while that object lives, ``clean`` keeps the file.
    """
    sums = f"-{xxhash.xxh3_64_hexdigest(manifest.sums.tobytes())}" if len(manifest.sums) else ""
    path = home_of(base) / f"{manifest.digest}{sums}{INDEX}"
    for _ in range(ATTEMPTS):
        with contextlib.suppress(DataError):  # no such file, or the host crashed while it was written
            kept = Manifest.load(path, is_held=True)
            if kept.digest == manifest.digest:
                return str(path), kept
        manifest.save(path)
        path.chmod(0o600)
    return str(path), Manifest.load(path, is_held=True)


class OpenPiece(ABC):
    """A piece that is open for reading, with its checksums. Any thread may read."""

    checksums: Checksums

    @abstractmethod
    def read_blocks(self, first: int, last: int, buffer: memoryview) -> None:
        """Read blocks into ``buffer``, without verifying them."""


class NewPiece(ABC):
    """A piece that one thread writes; ``finish`` or ``cancel`` ends it."""

    @abstractmethod
    def write(self, first: int, data: memoryview) -> None:
        """Write blocks, beginning with number ``first``."""

    @abstractmethod
    def finish(self) -> None:
        """Make the piece visible to readers."""

    @abstractmethod
    def cancel(self) -> None:
        """Discard the written bytes."""


class PieceFolder(ABC):
    """Pieces of one data set in a folder; the stager of a host writes them."""

    folder: Path

    @property
    def locked(self) -> Path:
        """Folder that the writer has locked."""
        return self.folder

    @abstractmethod
    def held(self) -> set[int]:
        """Pieces in the folder."""

    @abstractmethod
    def open(self, piece: int, bounds: Integers, whole: int | None = None) -> OpenPiece | None:
        """Open a piece; ``None`` if it is absent, or its checksums are damaged or do not match ``whole``."""

    @abstractmethod
    def has(self, piece: int) -> bool:
        """True if a piece is still in the folder, not deleted by another process."""

    @abstractmethod
    def begin(self, piece: int, checksums: Checksums, number: int) -> NewPiece:
        """Start to write a piece, as attempt ``number``. Raises ``OSError`` if there is no room for it."""

    @abstractmethod
    def drop(self, piece: int) -> None:
        """Delete a piece; a reader that has it open can go on reading."""

    def link(self, piece: int) -> bool:
        """Hard-link a piece from another job of this host; false if no job has it."""
        return False

    @abstractmethod
    def close(self) -> None:
        """Release the lock."""


@final
class CachedPiece(OpenPiece):
    """A piece in a file of its own."""

    def __init__(self, path: str, fd: int, checksums: Checksums) -> None:
        self.path, self.fd, self.checksums = path, fd, checksums

    def read_blocks(self, first: int, last: int, buffer: memoryview) -> None:
        read_fully(self.fd, self.path, int(self.checksums.bounds[first]), buffer)

    def is_dropped(self) -> bool:
        """True if the piece was unlinked, and takes space only until it is closed."""
        return os.fstat(self.fd).st_nlink == 0

    def __del__(self, close: Callable[[int], None] = os.close) -> None:  # bound: at exit ``os`` may be cleared
        close(self.fd)


@final
class PieceWriter(NewPiece):
    """A piece that attempt ``number`` writes to a temporary file."""

    def __init__(self, path: Path, size: int, checksums: Checksums, number: int) -> None:
        self._path, self._checksums = path, checksums
        self._suffix = f".{number}.new"
        self._aside = path.with_name(f"{path.name}{self._suffix}")
        self._fd = os.open(self._aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            if size:
                os.posix_fallocate(self._fd, 0, size)  # a full disk fails here, not half way
        except OSError:
            self.cancel()
            raise

    def write(self, first: int, data: memoryview) -> None:
        place, done = int(self._checksums.bounds[first]), 0
        while done < len(data):
            done += os.pwrite(self._fd, data[done:], place + done)

    def finish(self) -> None:
        sums = self._path.with_name(f"{self._path.name}.sums")
        aside = sums.with_name(f"{sums.name}{self._suffix}")
        fd, self._fd = self._fd, -1
        os.close(fd)
        aside.write_bytes(self._checksums.encode())
        aside.chmod(0o600)
        aside.replace(sums)
        self._aside.replace(self._path)

    def cancel(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
        self._aside.unlink(missing_ok=True)


@final
class CacheFolder(PieceFolder):
    """Pieces of one data set in ``folder``. The writer holds the lock; readers need none."""

    def __init__(self, folder: Path, lock: int = -1) -> None:
        self.folder, self._lock = folder, lock

    @classmethod
    def acquire(cls, base: str, digest: str) -> CacheFolder:
        """Lock the folder of a data set below ``base``, or another one beside it if another job holds that lock."""
        home = home_of(base)
        number = 0
        while True:
            folder = home / (f"{digest}.{number}" if number else digest)
            try:
                lock = _locked(folder)
            except BlockingIOError:
                number += 1
                continue
            if lock >= 0:
                (folder / MARK).touch(mode=0o600)
                cache = cls(folder, lock)
                cache._sweep()
                return cache

    @classmethod
    def of(cls, folder: str) -> CacheFolder:
        """Open the folder of another process, for reading."""
        return cls(Path(folder))

    def close(self) -> None:
        lock, self._lock = self._lock, -1
        if lock >= 0:
            os.close(lock)

    def path(self, piece: int) -> Path:
        """File of a piece."""
        return self.folder / f"{piece:08x}"

    def held(self) -> set[int]:
        return {int(name, 16) for name in os.listdir(self.folder) if _PIECE.fullmatch(name)}

    def open(self, piece: int, bounds: Integers, whole: int | None = None) -> CachedPiece | None:
        path = self.path(piece)
        try:
            sums = Checksums.decode(bounds, path.with_name(f"{path.name}.sums").read_bytes(), whole)
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:  # absent, or lost by the disk
            return None
        if sums is None or os.fstat(fd).st_size != int(bounds[-1]):
            os.close(fd)
            return None
        return CachedPiece(str(path), fd, sums)

    def has(self, piece: int) -> bool:
        return self.path(piece).exists()

    def begin(self, piece: int, checksums: Checksums, number: int) -> PieceWriter:
        return PieceWriter(self.path(piece), int(checksums.bounds[-1]), checksums, number)

    def link(self, piece: int) -> bool:
        stem = self.folder.name.partition(".")[0]
        for other in [self.folder.with_name(stem), *self.folder.parent.glob(f"{stem}.*")]:
            if other == self.folder or not (other / MARK).exists():
                continue
            theirs, mine = other / f"{piece:08x}", self.path(piece)
            with contextlib.suppress(OSError):
                for suffix in (".sums", ""):
                    mine.with_name(f"{mine.name}{suffix}").unlink(missing_ok=True)
                    os.link(f"{theirs}{suffix}", f"{mine}{suffix}")
                return True
        return False

    def drop(self, piece: int) -> None:
        path = self.path(piece)
        path.unlink(missing_ok=True)
        path.with_name(f"{path.name}.sums").unlink(missing_ok=True)

    def _sweep(self) -> None:
        """Delete the incomplete files of a writer that was killed."""
        for name in list(self._own()):
            if name.endswith(".new"):
                (self.folder / name).unlink(missing_ok=True)

    def _own(self) -> Iterator[str]:
        return (name for name in os.listdir(self.folder) if _OURS.fullmatch(name))


def _locked(folder: Path) -> int:
    """Create a folder if missing, and lock it; returns the descriptor, or -1 if another process deletes the folder.

    Raises ``BlockingIOError`` if another process holds the lock.
    """
    with contextlib.suppress(FileExistsError):  # ``Path.mkdir`` checks again, and fails if it was deleted meanwhile
        os.mkdir(folder, 0o700)
    try:
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return -1
    try:
        folder_lock.lock(lock, folder)
        if os.path.samestat(os.fstat(lock), folder.stat()):
            return lock
    except FileNotFoundError:
        pass
    except BlockingIOError:
        os.close(lock)
        raise
    os.close(lock)
    return -1


def clean(base: str) -> int:
    """Delete this user's caches below ``base`` that no job uses; returns the freed bytes."""
    home, freed = home_of(base), 0
    for folder in sorted(home.iterdir()):
        if not folder.is_dir() or not (folder / MARK).exists():
            continue
        try:
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:  # another process cleans, too
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            freed += _emptied(folder)
        except (BlockingIOError, FileNotFoundError):
            continue
        finally:
            os.close(lock)
    kept = {folder.name.partition("-")[0] for folder in home.iterdir() if folder.is_dir()}
    for index in [*home.glob(f"*{INDEX}"), *home.glob(f".*{INDEX}.*.new")]:
        if index.name.startswith(".") or index.stem.partition("-")[0] not in kept:
            with contextlib.suppress(OSError), index.open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails if it is mapped: its stager may start later
                index.unlink()
    return freed


def _emptied(folder: Path) -> int:
    freed = 0
    for name in os.listdir(folder):
        if _OURS.fullmatch(name) or name == MARK:
            freed += (folder / name).stat().st_blocks * 512
            (folder / name).unlink()
    with contextlib.suppress(OSError):  # a foreign file lies in it
        folder.rmdir()
    return freed
