"""Answers from a real folder, with the requested faults; counted by host."""

from __future__ import annotations

import errno
import itertools
import os
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

from workbench.cluster.shared_folder import protocol
from workbench.cluster.shared_folder.protocol import HEADER_BYTES, FuseRequest


@final
@dataclass
class FolderFault:
    """Wrong answers for one file: an errno, or the offset of a byte that is served flipped."""

    path: str
    host: str | None
    operation: int
    number: int = 0
    offset: int = -1
    left: int | None = None


@final
class Passthrough:
    """Folder ``root``, for all mounts. ``lock`` guards counts, faults and tables; file system calls run without it."""

    def __init__(self, root: str, has_locks: bool) -> None:
        self.lock = threading.Lock()
        self.counts: dict[str, Counter[str]] = {}
        self.faults: list[FolderFault] = []
        self._root = root
        self._paths: dict[int, str] = {1: ""}  # by node, which a path keeps for good: FORGET does nothing
        self._nodes: dict[str, int] = {"": 1}
        self._listings: dict[int, list[bytes]] = {}
        self._number = itertools.count(1)
        self._handlers: dict[int, Callable[[FuseRequest], bytes]] = {
            protocol.INIT: lambda request: protocol.initialized(request, not has_locks),
            protocol.LOOKUP: self._lookup,
            protocol.GETATTR: lambda request: protocol.attributes(os.lstat(self._real(request))),
            protocol.READLINK: lambda request: os.fsencode(os.readlink(self._real(request))),
            protocol.OPEN: self._open,
            protocol.RELEASE: self._release,
            protocol.OPENDIR: self._open_folder,
            protocol.READDIR: self._list,
            protocol.RELEASEDIR: self._release_folder,
            protocol.STATFS: self._describe,
            **dict.fromkeys((protocol.GETLK, protocol.SETLK, protocol.SETLKW), self._refuse_lock),
        }

    def answer(self, request: FuseRequest, room: memoryview) -> int:
        """Put the answer behind the header and return its length, or a negative errno."""
        try:
            if request.operation == protocol.READ:
                return self._read(request, room[HEADER_BYTES:])
            if request.operation not in self._handlers:
                return -errno.ENOSYS
            answer = self._handlers[request.operation](request)
        except OSError as error:
            return -(error.errno or errno.EIO)
        room[HEADER_BYTES : HEADER_BYTES + len(answer)] = answer
        return len(answer)

    def length(self, request: FuseRequest) -> int:
        """Most bytes that a READ will return."""
        descriptor, offset, size = request.read()
        return max(0, min(size, os.fstat(descriptor).st_size - offset))

    def _lookup(self, request: FuseRequest) -> bytes:
        path = os.path.join(self._paths[request.node], request.name())
        found = os.lstat(os.path.join(self._root, path))
        with self.lock:
            node = self._nodes.setdefault(path, len(self._nodes) + 1)
            self._paths[node] = path
        self._count(request, "lookups")
        return protocol.entry(node, found)

    def _open(self, request: FuseRequest) -> bytes:
        self._count(request, "opens")
        for fault in self._faults_of(request):
            raise OSError(fault.number, os.strerror(fault.number))
        return protocol.opened(os.open(self._real(request), os.O_RDONLY | os.O_CLOEXEC))

    def _read(self, request: FuseRequest, room: memoryview) -> int:
        descriptor, offset, size = request.read()
        faults = self._faults_of(request)
        for fault in faults:
            if fault.number:
                raise OSError(fault.number, os.strerror(fault.number))
        nbytes = os.preadv(descriptor, [room[:size]], offset)
        for fault in faults:
            if offset <= fault.offset < offset + nbytes:
                room[fault.offset - offset] ^= 0xFF
        self._count(request, "bytes", nbytes)  # before the answer: a reader that has its bytes finds them counted
        return nbytes

    def _release(self, request: FuseRequest) -> bytes:
        os.close(request.handle())
        return b""

    def _open_folder(self, request: FuseRequest) -> bytes:
        self._count(request, "listings")
        with os.scandir(self._real(request)) as entries:
            packed = protocol.listing(entries)
        with self.lock:
            handle = next(self._number)
            self._listings[handle] = packed
        return protocol.opened(handle)

    def _list(self, request: FuseRequest) -> bytes:
        handle, first, size = request.read()
        answer = b""
        for each in itertools.islice(self._listings[handle], first, None):
            if len(answer) + len(each) > size:
                break
            answer += each
        return answer

    def _release_folder(self, request: FuseRequest) -> bytes:
        with self.lock:
            del self._listings[request.handle()]
        return b""

    def _describe(self, request: FuseRequest) -> bytes:
        return protocol.statistics(os.statvfs(self._root))

    def _refuse_lock(self, request: FuseRequest) -> bytes:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    def _real(self, request: FuseRequest) -> str:
        return os.path.join(self._root, self._paths[request.node])

    def _count(self, request: FuseRequest, what: str, number: int = 1) -> None:
        with self.lock:
            self.counts.setdefault(request.host, Counter())[what] += number

    def _faults_of(self, request: FuseRequest) -> list[FolderFault]:
        if not self.faults:
            return []
        with self.lock:
            path = self._paths[request.node]
            found = [
                each
                for each in self.faults
                if (each.path, each.operation) == (path, request.operation)
                and each.host in {None, request.host}
                and each.left != 0
                and (each.number or self._touches(each, request))
            ]
            for each in found:
                each.left = None if each.left is None else each.left - 1
            return found

    def _touches(self, fault: FolderFault, request: FuseRequest) -> bool:
        _, offset, size = request.read()
        return offset <= fault.offset < offset + size
