"""FUSE protocol of the kernel: version 7.36 of ``linux/fuse.h``, as far as a read-only file system needs it."""

from __future__ import annotations

import os
import signal
import stat
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import final

LOOKUP, FORGET, GETATTR, READLINK, OPEN, READ, STATFS, RELEASE = 1, 2, 3, 5, 14, 15, 17, 18
INIT, OPENDIR, READDIR, RELEASEDIR, GETLK, SETLK, SETLKW, INTERRUPT, BATCH_FORGET = 26, 27, 28, 29, 31, 32, 33, 36, 42
"""Operations; all others get ENOSYS, and the kernel does without them."""

UNANSWERED = {FORGET, INTERRUPT, BATCH_FORGET}
WAITING = {LOOKUP, GETATTR, READLINK, OPEN, READ, OPENDIR, READDIR}
"""Requests for which a file system accesses its storage."""

HEADER_BYTES = 16
REQUEST_BYTES = 8192
LARGEST_READ = 1 << 20

_ASYNC_READ, _POSIX_LOCKS, _FLOCK_LOCKS, _PARALLEL_LOOKUPS, _MAX_PAGES = 1 << 0, 1 << 1, 1 << 10, 1 << 18, 1 << 22
_MORE_FLAGS, _MMAP_IN_SPITE_OF_DIRECT_IO = 1 << 30, 1 << (36 - 32)
_DIRECT_IO = 1
_KEPT_S = 3600
_BACKGROUND, _CONGESTION, _LARGEST_WRITE, _PAGE = 64, 48, 4096, 4096


@final
@dataclass(frozen=True)
class FuseRequest:
    """Request of the kernel for a host, and the device for its answer."""

    device: int
    host: str
    operation: int
    unique: int
    node: int
    pid: int
    body: bytes

    @classmethod
    def of(cls, device: int, host: str, data: bytes) -> FuseRequest:
        """Unpack ``fuse_in_header``."""
        _, operation, unique, node, _, _, pid, _ = struct.unpack_from("=IIQQIIII", data)
        return cls(device, host, operation, unique, node, pid, data[40:])

    def read(self) -> tuple[int, int, int]:
        """Handle, offset and size of READ and READDIR."""
        handle, offset, size = struct.unpack_from("=QQI", self.body)
        return handle, offset, size

    def handle(self) -> int:
        """Handle of RELEASE and RELEASEDIR."""
        return int(struct.unpack_from("=Q", self.body)[0])

    def name(self) -> str:
        """Name of LOOKUP."""
        return os.fsdecode(self.body.rstrip(b"\0"))

    def is_killed(self) -> bool:
        """True if SIGKILL is pending for the thread that asked. The kernel lets it die only after the answer."""
        if not self.pid:
            return False
        try:
            with open(f"/proc/{self.pid}/status") as status:
                pending = next(line for line in status if line.startswith("SigPnd:"))
        except (OSError, StopIteration):
            return True
        return bool(int(pending.split()[1], 16) >> (signal.SIGKILL - 1) & 1)


def head(room: memoryview, unique: int, result: int) -> memoryview:
    """Put ``fuse_out_header`` before an answer of ``result`` bytes; negative: an errno, without an answer."""
    length = HEADER_BYTES + max(0, result)
    struct.pack_into("=IiQ", room, 0, length, min(0, result), unique)
    return room[:length]


def initialized(request: FuseRequest, own_locks: bool) -> bytes:
    """Answer to INIT. With ``own_locks`` the kernel requests each lock; else it keeps a host's locks by itself."""
    ahead = struct.unpack_from("=III", request.body)[2]
    flags = _ASYNC_READ | _PARALLEL_LOOKUPS | _MAX_PAGES | _MORE_FLAGS | (own_locks and _POSIX_LOCKS | _FLOCK_LOCKS)
    queues = (_BACKGROUND, _CONGESTION, _LARGEST_WRITE, 1, LARGEST_READ // _PAGE, 0)
    return struct.pack("=IIIIHHIIHHI28x", 7, 36, ahead, flags, *queues, _MMAP_IN_SPITE_OF_DIRECT_IO)


def entry(node: int, of: os.stat_result) -> bytes:
    """Answer to LOOKUP. The kernel keeps it for a folder, but looks up a file's name at every use."""
    return struct.pack("=QQQQII", node, 0, _KEPT_S * stat.S_ISDIR(of.st_mode), _KEPT_S, 0, 0) + _attributes(of)


def attributes(of: os.stat_result) -> bytes:
    """Answer to GETATTR."""
    return struct.pack("=QII", _KEPT_S, 0, 0) + _attributes(of)


def opened(handle: int) -> bytes:
    """Answer to OPEN and OPENDIR: reads bypass the page cache, except those of mapped memory."""
    return struct.pack("=QII", handle, _DIRECT_IO, 0)


def listing(entries: Iterable[os.DirEntry[str]]) -> list[bytes]:
    """``fuse_dirent`` of each entry; each has the offset of the next one."""
    names = [(".", stat.S_IFDIR), ("..", stat.S_IFDIR), *((each.name, _kind(each)) for each in entries)]
    packed = []
    for place, (name, kind) in enumerate(names, 1):
        text = os.fsencode(name)
        packed.append(struct.pack("=QQII", place, place, len(text), kind >> 12) + text + b"\0" * (-len(text) % 8))
    return packed


def statistics(of: os.statvfs_result) -> bytes:
    """Answer to STATFS."""
    sizes = (of.f_blocks, of.f_bfree, of.f_bavail, of.f_files, of.f_ffree)
    return struct.pack("=QQQQQIII28x", *sizes, of.f_bsize, of.f_namemax, of.f_frsize)


def _attributes(of: os.stat_result) -> bytes:
    times = (of.st_atime_ns, of.st_mtime_ns, of.st_ctime_ns)
    seconds, rest = [each // 10**9 for each in times], [each % 10**9 for each in times]
    owner = (of.st_mode, of.st_nlink, of.st_uid, of.st_gid, of.st_rdev, of.st_blksize, 0)
    return struct.pack("=QQQqqqIIIIIIIIII", of.st_ino, of.st_size, of.st_blocks, *seconds, *rest, *owner)


def _kind(entry: os.DirEntry[str]) -> int:
    if entry.is_symlink():
        return stat.S_IFLNK
    return stat.S_IFDIR if entry.is_dir() else stat.S_IFREG
