"""Lock of a file that one process writes, also on file systems that have no locks.

    lock = WriterLock(fd, path)         # raises BlockingIOError if somebody else has it
    lock.close()                        # or the end of the process

``flock`` is all that is needed where it works. NFS may refuse it, and some mounts (``nolock``, ``local_lock``, Lustre's
``localflock``, BeeGFS) know only the locks of their own host. There a file beside the other, ``PATH.writer``, says who
writes: ``O_EXCL`` is atomic on servers, too. On one host an abstract socket, which the kernel frees when a process
dies, tells a writer that lives from one that was killed; the file of such a one is taken over. Of another host nobody
can know: its file has to be removed by somebody who does.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import socket
import time
from pathlib import Path
from typing import final

import msgspec

from farandole.events import logger

LOCAL_OPTIONS = frozenset({"nolock", "local_lock=all", "local_lock=flock", "localflock"})
"""Options of mounts on which ``flock`` keeps nobody away who is on another host."""

LOCAL_TYPES = frozenset({"beegfs"})

_told: set[Path] = set()
"""Folders of which it was said that they have no locks."""


@final
class _Writer(msgspec.Struct, frozen=True):
    """Process that writes; ``place`` is where its abstract sockets are known."""

    host: str
    place: str
    pid: int
    since: str


@final
class WriterLock:
    """Lock of the open file ``fd`` at ``path``, until it is closed, or the process ends.

    Raises ``BlockingIOError`` where another process has it, with words for people as its ``strerror``.
    """

    def __init__(self, fd: int, path: Path) -> None:
        self._file: Path | None = None
        self._socket: socket.socket | None = None
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            why = _locality(fd)
        except BlockingIOError:
            raise BlockingIOError(errno.EWOULDBLOCK, f"another process writes to {path}") from None
        except OSError as error:
            why = str(error.strerror)
        if why:
            self._lock_by_file(fd, path, why)

    def close(self) -> None:
        """Free what is beside the file; its own lock goes with its descriptor. Idempotent."""
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(OSError):
                file.unlink()
        if self._socket is not None:
            self._socket.close()  # after the file: whoever has the socket next may take over what lies there

    def _lock_by_file(self, fd: int, path: Path, why: str) -> None:
        path = path.absolute()
        file = path.with_name(f"{path.name}.writer")
        if path.parent not in _told:
            _told.add(path.parent)
            logger.warning(
                "%s is on a file system without locks (%s): files named *.writer keep other processes from writing "
                "there meanwhile",
                path.parent,
                why,
            )
        self._socket = _bind(fd, path)
        try:
            _claim(file)
        except BaseException:
            self._socket.close()
            raise
        self._file = file


def _bind(fd: int, path: Path) -> socket.socket:
    """Keep other processes of this host away; the kernel forgets it with this process."""
    status = os.fstat(fd)
    digest = hashlib.blake2b(f"{status.st_dev} {status.st_ino}".encode(), digest_size=16).hexdigest()
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        bound.bind(f"\0farandole-writer-{digest}")
    except OSError as error:
        bound.close()
        if error.errno != errno.EADDRINUSE:
            raise
        raise BlockingIOError(errno.EWOULDBLOCK, f"another process of this host writes to {path}") from None
    return bound


def _claim(file: Path) -> None:
    """Write down that this process writes; over one of this host, which is dead, as we have its socket."""
    mine = _Writer(socket.gethostname(), _place(), os.getpid(), time.strftime("%Y-%m-%d %H:%M:%S"))
    payload = msgspec.json.encode(mine) + b"\n"
    how = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        fd = os.open(file, how | os.O_EXCL, 0o600)
    except FileExistsError:
        other = _read(file)
        if other is None or (other.host, other.place) != (mine.host, mine.place):
            raise BlockingIOError(errno.EWOULDBLOCK, _words(file, other)) from None
        fd = os.open(file, how | os.O_TRUNC, 0o600)
    try:
        os.write(fd, payload)
        os.fsync(fd)
    finally:
        os.close(fd)


def _read(file: Path) -> _Writer | None:
    try:
        return msgspec.json.decode(file.read_bytes(), type=_Writer)
    except (OSError, msgspec.DecodeError):  # it is about to be written, or its writer was killed before it could
        return None


def _words(file: Path, other: _Writer | None) -> str:
    who = "somebody" if other is None else f"process {other.pid} on host {other.host} since {other.since}"
    return (
        f"{file} says that {who} writes there, and this file system has no locks that tell if that process lives: "
        f"when it has ended, remove {file}"
    )


def _place() -> str:
    """Boot and network namespace: an abstract socket is known to all who have the same."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot} {os.stat('/proc/self/ns/net').st_ino}"


def _locality(fd: int) -> str:
    """Reason why a lock of this file keeps nobody away who is on another host; "" where it does."""
    try:
        mounts = Path("/proc/self/mountinfo").read_text()
    except OSError:
        return ""
    device = os.fstat(fd).st_dev
    return local_locks(mounts, f"{os.major(device)}:{os.minor(device)}")


def local_locks(mountinfo: str, device: str) -> str:
    """Option of the mount of ``device`` by which its locks are of one host only, or its type; "" where there is none.

    >>> local_locks("36 35 0:52 / /home rw - nfs4 server:/home rw,vers=4.2,local_lock=all", "0:52")
    'mounted with local_lock=all'
    """
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        if before.split(" ")[2:3] != [device] or not after:
            continue
        kind, *rest = after.split(" ")
        if kind in LOCAL_TYPES:
            return f"of type {kind}"
        for option in sorted(LOCAL_OPTIONS.intersection(rest[-1].split(",")) if rest else ()):
            return f"mounted with {option}"
    return ""
