"""``tar``: samples of tar archives in WebDataset's layout: members whose names differ only in their extension.

    source = tar("/lustre/set")                                  # {"__key__": "a/0001", "jpg": b"...", "json": b"..."}
    source = tar("/lustre/BigEarthNet.tar", group="folder")      # {"__key__": "S2A_..._45", "B01.tif": b"...", ...}

Python's tarfile reads the headers (POSIX, GNU and pax); a sample is one run of bytes with the headers of its members.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar, NamedTuple, final

from farandole.data.formats.reading import Index, translated
from farandole.data.formats.records import Extent, Read, RecordsSource
from farandole.data.formats.source import Decode
from farandole.data.storage.listing import Where
from farandole.errors import DataError, UsageError

BLOCK, MOST_READ = tarfile.BLOCKSIZE, 2**20
KNOWN = (*tarfile.REGULAR_TYPES, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.DIRTYPE, tarfile.FIFOTYPE, b"D")
"""Types of members: ordinary files; devices, folders, pipes and lists of folders, which hold no bytes of samples."""
REFUSED = {
    b"1": "a hard link: pack it anew with --hard-dereference",
    b"2": "a symbolic link: pack it anew with --dereference",
    b"S": "a sparse file: pack it anew without --sparse",
}


class TarMember(NamedTuple):
    """A file in an archive: the place of its first header, and of its bytes."""

    name: str
    header: int
    begin: int
    nbytes: int


@final
class TarSource(RecordsSource):
    """Samples of tar archives: a dict of bytes by extension, and their common name as ``__key__``."""

    format: ClassVar[str] = "tar"
    suffixes: ClassVar[tuple[str, ...]] = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")
    most_unpacked: ClassVar[int] = 256 * 2**20

    @classmethod
    def is_plain(cls, head: bytes) -> bool:
        return _is_header(head)

    @classmethod
    def extents(cls, read: Read, size: int, path: str, details: Mapping[str, Any]) -> list[Extent]:
        if not size:
            raise DataError(f"{path} is empty, and no tar archive: copy it again")
        return _grouped(members(read, size, path), details["group"], path)

    def record(self, data: bytes, where: str) -> dict[str, Any]:
        found: dict[str, Any] = {}
        data += bytes(-len(data) % BLOCK)
        for member in members(lambda at, count: data[at : at + count], len(data), where):
            key, extension = split(member.name, self.manifest.details["group"])
            if key:
                found |= {"__key__": key, extension: data[member.begin : member.begin + member.nbytes]}
        return found


def tar(path: Where, decode: Decode | None = None, *, group: str = "key", index: Index = None) -> TarSource:
    """Samples of tar archives, in the order of the archives.

        tar("/lustre/set", decode=lambda sample: (decode_jpeg(sample["jpg"]), int(sample["cls"])))

    ``group="key"``: consecutive members are one sample if their names are equal up to the first dot of the last part,
    which is WebDataset's rule. ``group="folder"``: the members of a folder are one sample, and the rest of their names
    after the name of the folder is the extension. Hidden files (``._x``) and, by WebDataset's rule, files without
    extension are left out; extensions are in lower case.

    A compressed archive with at most 256 MiB of content is unpacked as a whole, and cached by each thread. Larger ones
    are refused, and so are links, sparse files, and samples whose members are not consecutive.
    Raises ``DataError`` with file and offset for a damaged header, and for a truncated archive.
    """
    if group not in ("key", "folder"):
        raise UsageError(f"group={group!r}: give 'key' (WebDataset's rule) or 'folder'")
    return TarSource.opened(path, decode, index, {"group": group})


def split(name: str, group: str) -> tuple[str, str]:
    """Key and extension of a member; no key if it is hidden, or has no extension by WebDataset's rule."""
    folder, slash, base = name.rpartition("/")
    if group == "folder":
        return ("" if base.startswith(".") else folder or "."), base.removeprefix(f"{folder.rpartition('/')[2]}_")
    key, dot, extension = base.partition(".")
    return (folder + slash + key if key and dot else ""), extension.lower()


def _grouped(found: Iterable[TarMember], group: str, path: str) -> list[Extent]:
    """Offset and length of each sample, from its first header to the last of its bytes."""
    extents: list[Extent] = []
    last, extensions, seen = "", set[str](), set[str]()
    for member in found:
        key, extension = split(member.name, group)
        if not key:
            continue
        if (key in seen and key != last) or (key == last and extension in extensions):
            raise DataError(
                f"{path}: the sample {key!r} has {extension!r} at byte {member.header}, "
                f"{'twice' if key == last else 'after other samples'}: pack it anew (tar --sort=name)"
            )
        if key != last:
            last, extensions = key, set()
            seen.add(key)
            extents.append((member.header, 0))
        extensions.add(extension)
        extents[-1] = extents[-1][0], member.begin + member.nbytes - extents[-1][0]
    return extents


@final
class _Parts(io.RawIOBase):
    """File of ``size`` bytes, which ``read`` returns in parts."""

    def __init__(self, read: Read, size: int) -> None:
        self._read, self._size, self._at = read, size, 0

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        assert whence == io.SEEK_SET, whence
        self._at = offset
        return offset

    def read(self, size: int = -1) -> bytes:
        part = self._read(self._at, min(size, self._size - self._at)) if self._at < self._size else b""
        self._at += len(part)
        return part


def members(read: Read, size: int, path: str) -> Iterator[TarMember]:
    """Files of an archive of ``size`` bytes, which ``read`` returns in parts. Raises ``DataError`` for damage."""
    if not size:
        return
    with translated(path, "tar"), tarfile.open(fileobj=_Parts(read, size), mode="r:") as archive:
        for member in archive:
            where = f"{path}: the member at byte {member.offset}, {member.name!r},"
            is_sparse = member.issparse() or any(key.startswith("GNU.sparse.") for key in member.pax_headers)
            kind = b"S" if is_sparse else member.type
            if kind in REFUSED or kind not in KNOWN:
                raise DataError(f"{where} is {REFUSED.get(kind, f'of the type {kind!r}, which is not read')}")
            if member.offset_data + member.size > size:
                raise DataError(f"{where} is cut off: {member.size} bytes are said to follow; copy the archive again")
            if {*archive.pax_headers} & {"path", "size"}:
                raise DataError(f"{where} has a name or size for all members: pack it anew")
            if member.isreg():
                yield TarMember(member.name, member.offset, member.offset_data, member.size)
        _check_end(read, archive.offset, size, path)


def _check_end(read: Read, at: int, size: int, path: str) -> None:
    """Refuse bytes after the last member: at a damaged header, or a second archive, tarfile ends its list silently."""
    if at < size and (block := read(at, BLOCK)).strip(b"\0") and not _is_header(block):
        raise DataError(f"{path}: the member at byte {at} has a header that fails its checksum: copy the archive again")
    while at < size:
        if (part := read(at, MOST_READ)).strip(b"\0"):
            raise DataError(
                f"{path}: bytes follow the end mark at {at}: archives were joined; use tar --concatenate, or list each"
            )
        at += len(part)


def _is_header(block: bytes) -> bool:
    """True if tarfile can read a header."""
    try:
        tarfile.TarInfo.frombuf(block, tarfile.ENCODING, "surrogateescape")
    except tarfile.HeaderError:
        return False
    return True
