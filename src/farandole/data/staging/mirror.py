"""``MirrorFolder``: pieces stored as copies of the files, under their own names, for programs that open paths.

    mirror = MirrorFolder("/local/set", pieces, manifest)
    mirror.begin(3, checksums, 1)       # written into partial files, which get their names when they are whole

The subfolder ``.farandole-stage`` holds the partial files and the checksums of all pieces. Existing files that are not
our copies are never written: they are an error. After a reboot of the host all copies are verified, because programs
read them without Farandole.

Threads. Readers of the stager write pieces concurrently; ``_lock`` guards the set of complete pieces, and the
renaming of a file whose last piece has arrived.
"""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path
from typing import final

from farandole.data.staging import folder_lock
from farandole.data.staging.cache import NewPiece, OpenPiece, PieceFolder, require_own
from farandole.data.staging.checksums import Checksums
from farandole.data.staging.sources import readable
from farandole.data.storage.byte_store import read_fully
from farandole.data.storage.fields import Integers
from farandole.data.storage.manifest import Manifest
from farandole.data.storage.pieces import Pieces
from farandole.errors import DataError
from farandole.runtime.coordination.rank_names import list_some

ASIDE = ".farandole-stage"
"""Folder for incomplete files, and for checksums."""

NO_COPIES = "are there already, and are no copies"

VERIFIED_BYTES = 2**22
"""Bytes that are verified at once."""


@final
class MirrorFolder(PieceFolder):
    """Copies of the files of ``manifest`` below ``target``; one stager holds the lock of the folder."""

    def __init__(self, target: str, pieces: Pieces, manifest: Manifest) -> None:
        self.folder, self._pieces, self._manifest = Path(target), pieces, manifest
        self._aside = aside_of(target)
        self._names = [_below(each, manifest.root) for each in manifest.paths]
        try:
            (self._aside / "partial").mkdir(mode=0o700, exist_ok=True)
            self._fd = os.open(self._aside, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            folder_lock.lock(self._fd, self._aside)
        except BlockingIOError as error:
            os.close(self._fd)
            raise DataError(f"another job copies into {target}: wait for it, or give another folder") from error
        except OSError as error:
            raise DataError(f"{target} cannot be written ({error.strerror}): give a folder of this host") from error
        self._lock = threading.Lock()
        try:
            self._whole = self._found()
            self._verify_after_boot()
            for file in range(len(self._names)):
                self._name(file)
        except BaseException:
            self.close()
            raise

    @property
    def locked(self) -> Path:
        return self._aside

    def held(self) -> set[int]:
        return set(self._whole)

    def open(self, piece: int, bounds: Integers, whole: int | None = None) -> OpenPiece | None:
        if piece not in self._whole:
            return None
        try:
            sums = Checksums.decode(bounds, self._sums(piece).read_bytes(), whole)
        except FileNotFoundError:
            return None
        return None if sums is None else _MirroredPiece(self, piece, sums)

    def has(self, piece: int) -> bool:
        return piece in self._whole

    def begin(self, piece: int, checksums: Checksums, number: int) -> NewPiece:
        return _MirrorWriter(self, piece, checksums)

    def drop(self, piece: int) -> None:
        with self._lock:
            self._whole.discard(piece)
        self._sums(piece).unlink(missing_ok=True)

    def close(self) -> None:
        os.close(self._fd)

    def parts(self, piece: int) -> list[tuple[Path, int, int]]:
        """Present file of each part of a piece, with offset and length."""
        return [(self._now(file), offset, nbytes) for file, offset, nbytes in self._pieces.extents(piece)]

    def reserve(self, piece: int) -> None:
        """Create the partial files of a piece, and reserve their space."""
        for file, offset, nbytes in self._pieces.extents(piece):
            path = self._now(file)
            if path == self._final(file):
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            try:
                os.posix_fallocate(fd, offset, nbytes)
            finally:
                os.close(fd)

    def complete(self, piece: int, checksums: Checksums) -> None:
        """Note that a piece is written, and rename the files that are complete now."""
        aside = self._sums(piece).with_suffix(".new")
        aside.write_bytes(checksums.encode())
        with self._lock:
            aside.replace(self._sums(piece))
            self._whole.add(piece)
            for file, _, _ in self._pieces.extents(piece):
                self._name(file)

    def _name(self, file: int) -> None:
        """Rename a file that is complete; create a file without bytes, which is in no piece."""
        size, final, partial = int(self._manifest.sizes[file]), self._final(file), self._partial(file)
        if not size and not final.exists():
            partial.parent.mkdir(parents=True, exist_ok=True)
            partial.touch(mode=0o600)
        if not partial.exists() or not self._whole.issuperset(self._pieces.spanned(file, 0, size) if size else ()):
            return
        final.parent.mkdir(parents=True, exist_ok=True)
        modified_ns = int(self._manifest.mtimes_ns[file])
        os.truncate(partial, size)
        os.utime(partial, ns=(modified_ns, modified_ns))
        partial.replace(final)

    def _now(self, file: int) -> Path:
        final = self._final(file)
        return final if final.exists() else self._partial(file)

    def _final(self, file: int) -> Path:
        return self.folder / self._names[file]

    def _partial(self, file: int) -> Path:
        return self._aside / "partial" / self._names[file]

    def _sums(self, piece: int) -> Path:
        return self._aside / f"{self._manifest.digest}-{piece:08x}.sums"

    def _found(self) -> set[int]:
        """Complete pieces of this data set in the folder; raises ``DataError`` if foreign files have their names."""
        there = {name for name in os.listdir(self._aside) if name.endswith(".sums")}
        whole = {piece for piece in range(len(self._pieces)) if self._sums(piece).name in there}
        foreign: dict[bool, list[str]] = {True: [], False: []}
        """Files in the way: those that differ from the source, and those of its size and time that are no copies."""
        for file, name in enumerate(self._names):
            size, modified_ns = int(self._manifest.sizes[file]), int(self._manifest.mtimes_ns[file])
            pieces = self._pieces.spanned(file, 0, size) if size else range(0)
            with contextlib.suppress(FileNotFoundError):
                found = (self.folder / name).lstat()
                is_other = (found.st_size, found.st_mtime_ns) != (size, modified_ns)
                if is_other or not whole.issuperset(pieces):
                    foreign[is_other].append(readable(f"{self.folder / name}"))
                continue
            if not self._partial(file).exists():  # the file was deleted
                whole.difference_update(pieces)
        if others := foreign[True] or foreign[False]:
            is_older = any(not name.startswith(self._manifest.digest) for name in there)
            cure = f"what was copied into {self.folder} before, as all is copied anew" if is_older else "that"
            raise DataError(
                f"{list_some(others)} {'is there already, and is no copy' if len(others) == 1 else NO_COPIES} of "
                f"{readable(self._manifest.root)} as it is now: delete {cure}, or give another folder"
            )
        return whole

    def _verify_after_boot(self) -> None:
        """Drop pieces that a crash of the host has damaged."""
        boot, mark = Path("/proc/sys/kernel/random/boot_id").read_text(), self._aside / "boot"
        if mark.exists() and mark.read_text() == boot:
            return
        for piece in sorted(self._whole):
            found = self.open(piece, self._pieces.blocks(piece))
            if found is None or not _is_right(found):
                self.drop(piece)
        mark.write_text(boot)


def aside_of(target: str) -> Path:
    """Create ``.farandole-stage`` in the folder ``target``, and return its path.

    Raises ``DataError`` if another user could place links in one of them.
    """
    folder, cure = Path(target), f"give a folder of your own, as in {target}/{os.environ.get('USER', 'yours')}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        require_own(folder, cure, owners=[0])
        (folder / ASIDE).mkdir(mode=0o700, exist_ok=True)
        require_own(folder / ASIDE, cure)
    except OSError as error:
        raise DataError(f"{target} cannot be written ({error.strerror}): give a folder of this host") from error
    return folder / ASIDE


def _below(path: str, root: str) -> str:
    """Name of a file relative to the root of its data set. Raises ``DataError`` for a file outside of the root."""
    name = path.removeprefix(root).lstrip("/") if "://" in path else os.path.relpath(path, root)
    if not name or "://" in name or not {"", ".", ".."}.isdisjoint(name.split("/")):
        raise DataError(
            f"{readable(path)} is not below {readable(root)}, so its copy has no place: stage its own folder"
        )
    return name


def _is_right(piece: OpenPiece) -> bool:
    sums = piece.checksums
    for first, last in sums.runs(VERIFIED_BYTES):
        data = memoryview(bytearray(sums.nbytes(first, last)))
        try:
            piece.read_blocks(first, last, data)
        except (DataError, OSError):
            return False
        if not sums.verify(first, last, data):
            return False
    return True


@final
class _MirroredPiece(OpenPiece):
    def __init__(self, mirror: MirrorFolder, piece: int, checksums: Checksums) -> None:
        self._mirror, self._piece, self.checksums = mirror, piece, checksums

    def read_blocks(self, first: int, last: int, buffer: memoryview) -> None:
        begin, end = int(self.checksums.bounds[first]), int(self.checksums.bounds[last])
        place = 0
        for path, offset, nbytes in self._mirror.parts(self._piece):
            low, high = max(begin, place), min(end, place + nbytes)
            if low < high:
                fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                try:
                    read_fully(fd, str(path), offset + low - place, buffer[low - begin : high - begin])
                finally:
                    os.close(fd)
            place += nbytes


@final
class _MirrorWriter(NewPiece):
    def __init__(self, mirror: MirrorFolder, piece: int, checksums: Checksums) -> None:
        self._mirror, self._piece, self._checksums = mirror, piece, checksums
        mirror.reserve(piece)

    def write(self, first: int, data: memoryview) -> None:
        if self._mirror.has(self._piece):
            raise DataError("another attempt was faster")
        begin, place = int(self._checksums.bounds[first]), 0
        for path, offset, nbytes in self._mirror.parts(self._piece):
            low, high = max(begin, place), min(begin + len(data), place + nbytes)
            if low < high:
                fd = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
                try:
                    _write_fully(fd, offset + low - place, data[low - begin : high - begin])
                finally:
                    os.close(fd)
            place += nbytes

    def finish(self) -> None:
        self._mirror.complete(self._piece, self._checksums)

    def cancel(self) -> None:
        pass  # the next attempt overwrites the bytes


def _write_fully(fd: int, offset: int, data: memoryview) -> None:
    done = 0
    while done < len(data):
        done += os.pwrite(fd, data[done:], offset + done)
