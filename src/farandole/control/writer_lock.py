"""Lock of a file that one process writes, also on file systems that have no locks.

    lock = WriterLock(fd, path)         # raises BlockingIOError if another process has it; the text names the process
    lock.close()                        # or the end of the process

On a local disk ``flock`` is enough. NFS may refuse it, and some mounts (``nolock``, ``local_lock``, Lustre's
``localflock``, BeeGFS) know only the locks of their own host; and two hosts may mount the same folder differently. So
on every file system that hosts may share, a second file, ``PATH.writer``, names the writer: ``O_EXCL`` is atomic on
servers, too. Every process respects that file, on any file system.

A ``PATH.writer`` file that a killed process left is removed if its death is certain. If that process and this one both
use server-side ``flock``, holding the lock is proof. On the same host, its process ID and start time are. The process
that then binds an abstract socket, named after a nonce in the file, may remove this file and no other; the nonce is
published nowhere else, so no other user can bind the name first. A writer on another host without locks, in another
container or from before a reboot cannot be checked: a user who knows that it has ended must remove the file.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import socket
import time
from pathlib import Path
from typing import NamedTuple, final

import msgspec

from farandole.events import logger

LOCAL_OPTIONS = frozenset({"nolock", "local_lock=all", "local_lock=flock", "localflock", "nobrl"})
"""Mount options with which ``flock`` does not exclude processes of other hosts."""

LOCAL_TYPES = frozenset({"beegfs"})

SERVED_TYPES = frozenset({"nfs", "nfs4", "lustre", "cifs", "smb3"})
"""File system types with server-side ``flock``, unless a mount option changes that."""

UNKNOWN_TYPES = frozenset({"fuse", "virtiofs", "9p", "beegfs"})
"""File system types that hosts may share and whose ``flock`` may be local to one host; ``fuse.*`` as well."""

MOST_TRIES = 8

_told: set[Path] = set()
"""Folders for which the warning about missing locks was logged."""


@final
class _Writer(msgspec.Struct, frozen=True):
    """Process that writes; ``place`` identifies its boot and its namespaces of process IDs and abstract sockets.

    ``has_lock``: it holds a ``flock`` that other hosts see. ``started`` is its start time in kernel ticks.
    """

    host: str
    place: str
    pid: int
    since: str
    nonce: str = ""
    has_lock: bool = False
    started: int = 0

    @property
    def is_of_this_place(self) -> bool:
        """True if this process can check whether the writer lives."""
        return self.place == _place() and bool(self.nonce and self.started)

    @property
    def is_dead(self) -> bool:
        """True if the writer has ended; valid only if ``is_of_this_place``."""
        return _started(self.pid) != self.started


@final
class _Mount(NamedTuple):
    """Mount of a file: its type, and the options of its file system."""

    kind: str = ""
    options: frozenset[str] = frozenset()

    @property
    def is_shared(self) -> bool:
        return self.kind in SERVED_TYPES or self.is_unknown

    @property
    def is_unknown(self) -> bool:
        return self.kind in UNKNOWN_TYPES or self.kind.startswith("fuse.")


@final
class WriterLock:
    """Lock of the open file ``fd`` at ``path``, until ``close``, or the end of the process.

    Raises ``BlockingIOError`` if another process has it; ``strerror`` is a text for users.
    """

    def __init__(self, fd: int, path: Path) -> None:
        path = path.absolute()
        self._file = path.with_name(f"{path.name}.writer")
        self._mine: _Writer | None = None
        mounts, device = _mounts(), os.fstat(fd).st_dev
        name = f"{os.major(device)}:{os.minor(device)}"
        mount, why = _mount(mounts, name), local_locks(mounts, name)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BlockingIOError(errno.EWOULDBLOCK, f"{_holder(fd, self._file)} writes to {path}") from None
        except OSError as error:
            why = str(error.strerror)
        has_lock = not why and not mount.is_unknown
        if why or mount.is_shared:
            self._claim(has_lock, why)
        else:
            _make_way(self._file, has_lock)  # another host may see this folder as shared and hold ``PATH.writer``

    def close(self) -> None:
        """Remove the ``PATH.writer`` file; the ``flock`` ends when its descriptor is closed. Idempotent."""
        mine, self._mine = self._mine, None
        if mine is not None and _read(self._file) == mine:  # else it was removed by hand, and another process writes
            with contextlib.suppress(OSError):
                self._file.unlink()

    def _claim(self, has_lock: bool, why: str) -> None:
        """Create ``PATH.writer`` for this process."""
        if why and self._file.parent not in _told:
            _told.add(self._file.parent)
            logger.warning(
                "%s is on a file system without locks (%s): files named *.writer keep other processes from writing "
                "there meanwhile",
                self._file.parent,
                why,
            )
        since, pid = time.strftime("%Y-%m-%d %H:%M:%S"), os.getpid()
        mine = _Writer(socket.gethostname(), _place(), pid, since, secrets.token_hex(16), has_lock, _started(pid))
        for _ in range(MOST_TRIES):
            _make_way(self._file, has_lock)
            if _create(self._file, mine):
                self._mine = mine
                return
        raise BlockingIOError(errno.EWOULDBLOCK, _words(self._file, _read(self._file)))


def _bind(nonce: str) -> socket.socket | None:
    """Socket as a mutex: one process at a time may remove the file with this ``nonce``; ``None`` for all others."""
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        bound.bind(f"\0farandole-writer-{nonce}")
    except OSError as error:
        bound.close()
        if error.errno != errno.EADDRINUSE:
            raise
        return None
    return bound


def _create(file: Path, mine: _Writer) -> bool:
    """Create ``file``; false if it exists already."""
    try:
        fd = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except FileExistsError:
        return False
    try:
        left = memoryview(msgspec.json.encode(mine) + b"\n")
        while left:
            left = left[os.write(fd, left) :]
        os.fsync(fd)
    except BaseException:
        with contextlib.suppress(OSError):
            file.unlink()  # an empty file would block every later writer
        raise
    finally:
        os.close(fd)
    return True


def _make_way(file: Path, has_lock: bool) -> None:
    """Remove the file of a dead writer; raises ``BlockingIOError`` if its death is not certain."""
    if not os.path.lexists(file):
        return
    other = _read(file)
    if other is None and not os.path.lexists(file):  # its writer has just ended
        return
    taken = None
    if other is None:
        is_dead = False
    elif other.is_of_this_place:
        # While this process holds the socket, no other process of this host removes the file.
        taken = _bind(other.nonce) if other.is_dead else None
        is_dead = taken is not None
    else:
        is_dead = other.has_lock and has_lock
    try:
        if not is_dead:
            raise BlockingIOError(errno.EWOULDBLOCK, _words(file, other))
        if _read(file) == other:  # not replaced in between
            file.unlink(missing_ok=True)
    finally:
        if taken is not None:
            taken.close()


def _read(file: Path) -> _Writer | None:
    try:
        return msgspec.json.decode(file.read_bytes(), type=_Writer)
    except (OSError, ValueError, msgspec.DecodeError):  # being written, or its writer was killed while writing it
        return None


def _words(file: Path, other: _Writer | None) -> str:
    if other is not None and other.is_of_this_place:
        return f"process {other.pid} of this host has written there since {other.since}: {file}"
    who = "somebody" if other is None else f"process {other.pid} on host {other.host} since {other.since}"
    return (
        f"{file} says that {who} writes there, and this file system has no locks that tell if that process lives: "
        f"when it has ended, remove {file}"
    )


def _holder(fd: int, file: Path) -> str:
    """Text that names the holder of the ``flock`` of a file, if it can be determined."""
    other = _read(file)
    if other is not None:
        return f"process {other.pid} on host {other.host}"
    status = os.fstat(fd)
    name = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    with contextlib.suppress(OSError):
        for line in Path("/proc/locks").read_text().splitlines():
            words = line.split()
            if words[1:2] == ["FLOCK"] and words[5:6] == [name] and words[4].isdecimal() and int(words[4]) > 0:
                return f"process {words[4]} of this host"
    return "another process"


def _place() -> str:
    """Identifier of boot, PID namespace and network namespace: processes that share it share PIDs and sockets."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return " ".join([boot, *(str(os.stat(f"/proc/self/ns/{kind}").st_ino) for kind in ("pid", "net"))])


def _started(pid: int) -> int:
    """Start time of a process, in ticks since the boot; 0 if it has ended."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b") ")[2].split()
    except OSError:
        return 0
    return 0 if state in (b"Z", b"X") else int(fields[18])


def _mounts() -> str:
    try:
        return Path("/proc/self/mountinfo").read_text()
    except OSError:
        return ""


def _mount(mountinfo: str, device: str) -> _Mount:
    """Mount of ``device``, as in ``"0:52"``."""
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        if before.split(" ")[2:3] == [device] and after:
            kind, *rest = after.split(" ")
            return _Mount(kind, frozenset(rest[-1].split(",") if rest else ()))
    return _Mount()


def local_locks(mountinfo: str, device: str) -> str:
    """Mount option or type that makes the locks of ``device`` local to one host; "" if they are not.

    >>> local_locks("36 35 0:52 / /home rw - nfs4 server:/home rw,vers=4.2,local_lock=all", "0:52")
    'mounted with local_lock=all'
    """
    mount = _mount(mountinfo, device)
    if mount.kind in LOCAL_TYPES:
        return f"of type {mount.kind}"
    found = sorted(LOCAL_OPTIONS & mount.options)
    return f"mounted with {found[0]}" if found else ""
