"""``tar``: samples of tar archives as WebDataset has them: members whose names differ in their extension alone.

    source = tar("/lustre/set")                                  # {"__key__": "a/0001", "jpg": b"...", "json": b"..."}
    source = tar("/lustre/BigEarthNet.tar", group="folder")      # {"__key__": "S2A_..._45", "B01.tif": b"...", ...}

The index reads headers (POSIX, GNU and pax); a sample is one run of bytes, whose headers say what is in it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar, NamedTuple, final

from farandole.data.formats.reading import Index
from farandole.data.formats.records import Extent, Read, RecordsSource
from farandole.data.formats.source import Decode
from farandole.data.storage.listing import Where
from farandole.errors import DataError, UsageError

BLOCK, MOST_NAME = 512, 2**20
FILES, EMPTY = b"\x0007", b"3456D"
"""Types of members: ordinary files; devices, folders, pipes and lists of folders, which have no sample's bytes."""
REFUSED = {
    b"1": "a hard link: pack it anew with --hard-dereference",
    b"2": "a symbolic link: pack it anew with --dereference",
    b"S": "a sparse file: pack it anew without --sparse",
}


class TarMember(NamedTuple):
    """A file in an archive: where its first header lies, and its bytes."""

    name: str
    header: int
    begin: int
    nbytes: int


@final
class TarSource(RecordsSource):
    """Samples of tar archives: a dict of bytes by extension, and the name that they share as ``__key__``."""

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
        for member in members(lambda at, count: data[at : at + count], len(data), where):
            key, extension = split(member.name, self.manifest.details["group"])
            if key:
                found |= {"__key__": key, extension: data[member.begin : member.begin + member.nbytes]}
        return found


def tar(path: Where, decode: Decode | None = None, *, group: str = "key", index: Index = None) -> TarSource:
    """Samples of tar archives, in their order there.

        tar("/lustre/set", decode=lambda sample: (decode_jpeg(sample["jpg"]), int(sample["cls"])))

    ``group="key"``: members are one sample whose names are equal up to the first dot of their last part, and follow one
    another, which is WebDataset's rule. ``group="folder"``: those of a folder are, and what stands in their names after
    that of the folder are their extensions. Hidden files (``._x``) and, as the rule has it, those without extension are
    left out; extensions are in lower case.

    A compressed archive is unpacked as a whole if it holds 256 MiB at most, and kept by each thread; a larger one is
    refused, as are links, sparse files, and samples that others interrupt.
    Raises ``DataError`` with file and offset for a damaged header, and an archive that is cut off.
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


def members(read: Read, size: int, path: str) -> Iterator[TarMember]:
    """Files of an archive of ``size`` bytes, of which ``read`` gives parts. Raises ``DataError`` for damage."""
    at, first, said = 0, 0, dict[str, bytes]()
    while at < size and (block := read(at, BLOCK)).strip(b"\0"):
        where = f"{path}: the member at byte {at}"
        if not _is_header(block):
            raise DataError(
                f"{where} has a header that fails its checksum: the archive is damaged, or none; copy it again"
            )
        kind, nbytes, begin = block[156:157], _number(block[124:136], where), at + BLOCK
        if kind in b"LKxg":
            said |= _extension(kind, read(begin, min(nbytes, MOST_NAME + 1)), where)
        else:
            name = os.fsdecode(said.get("path") or _name(block))
            nbytes = _body(kind, int(said.get("size", nbytes)), name, said, where)
            if begin + nbytes > size:
                raise DataError(
                    f"{where}, {name!r}, is cut off: {nbytes} bytes, of which {size - begin} are there; copy it again"
                )
            if kind in FILES and not name.endswith("/"):
                yield TarMember(name, first, begin, nbytes)
            said = {}
        at = begin + -(-nbytes // BLOCK) * BLOCK
        first = first if said else at
    while at < size:  # what stands behind the end mark would be left out in silence by other readers, too
        if (part := read(at, MOST_NAME)).strip(b"\0"):
            raise DataError(
                f"{path}: bytes follow the end mark at {at}: archives were joined; use tar --concatenate, or list each"
            )
        at += len(part)


def _body(kind: bytes, nbytes: int, name: str, said: Mapping[str, bytes], where: str) -> int:
    """Number of bytes after the header of a member, whose type may be refused."""
    if kind == b"S" or any(key.startswith("GNU.sparse.") for key in said):
        kind = b"S"
    if kind in REFUSED or kind not in FILES + EMPTY:
        raise DataError(f"{where}, {name!r}, is {REFUSED.get(kind, f'of the type {kind!r}, which is not read')}")
    return nbytes if kind in FILES + b"D" and not (kind == b"\0" and name.endswith("/")) else 0


def _is_header(block: bytes) -> bool:
    """True if the checksum of a header is right; old archives have that of signed bytes."""
    stored = block[148:156].strip(b"\0 ")
    if len(block) < BLOCK or not stored.isdigit():
        return False
    rest = block[:148] + b" " * 8 + block[156:BLOCK]
    total, told = sum(rest), _octal(stored)
    return told == total or told == total - 256 * sum(byte > 127 for byte in rest)


def _octal(digits: bytes) -> int:
    return int(digits, 8) if digits.isdigit() and not {*digits} & {*b"89"} else -1


def _number(field: bytes, where: str) -> int:
    """Number in a header: octal digits, or big-endian bytes after 0x80, as GNU has it for large ones."""
    digits = field.strip(b"\0 ") or b"0"
    found = int.from_bytes(field[1:], "big") if field[0] == 0x80 else _octal(digits)
    if found < 0:
        raise DataError(f"{where} has {field!r} as its size: the archive is damaged")
    return found


def _name(block: bytes) -> bytes:
    name = block[:100].partition(b"\0")[0]
    prefix = block[345:500].partition(b"\0")[0] if block[257:263] == b"ustar\0" else b""
    return prefix + b"/" + name if prefix else name


def _extension(kind: bytes, data: bytes, where: str) -> dict[str, bytes]:
    """Content of a header before a member: GNU's long names, or records such as ``17 path=a/b.jpg`` (pax)."""
    if len(data) > MOST_NAME:
        raise DataError(f"{where} has a name of more than {MOST_NAME} bytes: the archive is damaged")
    if kind in b"LK":
        return {"path" if kind == b"L" else "linkpath": data.rstrip(b"\0")}
    found, at = dict[str, bytes](), 0
    while at < len(data) and data[at]:
        digits = data[at : at + 20].partition(b" ")[0]
        end = at + int(digits) if digits.isdigit() else at
        key, equals, value = data[at + len(digits) + 1 : end - 1].partition(b"=")
        if not equals or end > len(data) or data[end - 1 : end] != b"\n":
            raise DataError(f"{where} has a damaged extended header (pax): copy the archive again")
        found[os.fsdecode(key)] = value
        at = end
    if not found.get("size", b"0").isdigit() or (kind == b"g" and {*found} & {"path", "size"}):
        raise DataError(f"{where} has an extended header with a size that is none, or for all members: pack it anew")
    return found if kind == b"x" else {}
