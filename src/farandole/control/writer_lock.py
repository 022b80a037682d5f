"""Lock of a file that one process writes, also on file systems that have no locks.

    lock = WriterLock(fd, path)         # raises BlockingIOError if somebody else has it, with who that is
    lock.close()                        # or the end of the process

``flock`` is all that is needed on a disk. NFS may refuse it, and some mounts (``nolock``, ``local_lock``, Lustre's
``localflock``, BeeGFS) know only the locks of their own host; and of two hosts one may mount a folder so, the other
not. So on every file system that hosts may share a file beside the other, ``PATH.writer``, says who writes: ``O_EXCL``
is atomic on servers, too. It is heeded wherever it lies.

What a process has left that was killed is taken over where that is certain. Where its ``flock`` was the server's, and
ours is, too, having ours is proof. On one host its number and the time at which it started are, by which the kernel
knows it. Who then binds an abstract socket, named after a nonce in the file, may remove this file, and no other; the
nonce is shown nowhere before, so that no other user can take the name first. Of another host without locks, of another
container or of the time before a reboot, nobody can know: that file has to be removed by somebody who does.
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
"""Options of mounts on which ``flock`` keeps nobody away who is on another host."""

LOCAL_TYPES = frozenset({"beegfs"})

SERVED_TYPES = frozenset({"nfs", "nfs4", "lustre", "cifs", "smb3"})
"""Types whose ``flock`` is the server's, unless the mount says otherwise."""

UNKNOWN_TYPES = frozenset({"fuse", "virtiofs", "9p", "beegfs"})
"""Types that hosts may share, and whose ``flock`` may be of one host only; ``fuse.*`` as well."""

MOST_TRIES = 8

_told: set[Path] = set()
"""Folders of which it was said that they have no locks."""


@final
class _Writer(msgspec.Struct, frozen=True):
    """Process that writes; ``place`` is where its number is known, and abstract sockets are.

    It ``has_lock`` where it holds a ``flock`` that other hosts see. ``started`` is what the kernel says, in its ticks.
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
        """True if this process can tell whether that one lives."""
        return self.place == _place() and bool(self.nonce and self.started)

    @property
    def is_dead(self) -> bool:
        """True if it has ended; asked of one of this place."""
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
    """Lock of the open file ``fd`` at ``path``, until it is closed, or the process ends.

    Raises ``BlockingIOError`` where another process has it, with words for people as its ``strerror``.
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
            _make_way(self._file, has_lock)  # somebody may have it by another way than ours

    def close(self) -> None:
        """Free what is beside the file; its own lock goes with its descriptor. Idempotent."""
        mine, self._mine = self._mine, None
        if mine is not None and _read(self._file) == mine:  # else somebody has removed it, and another one writes
            with contextlib.suppress(OSError):
                self._file.unlink()

    def _claim(self, has_lock: bool, why: str) -> None:
        """Write down that this process writes."""
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
    """Socket that one process at a time has, while it removes the file with this ``nonce``; ``None`` for the others."""
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
    """Write ``file``, which must not be there; false if it is."""
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
            file.unlink()  # an empty one would keep everybody away for good
        raise
    finally:
        os.close(fd)
    return True


def _make_way(file: Path, has_lock: bool) -> None:
    """Remove the file of a writer that is dead; raises ``BlockingIOError`` where that is not certain."""
    if not os.path.lexists(file):
        return
    other = _read(file)
    if other is None and not os.path.lexists(file):  # its writer has just ended
        return
    taken = None
    if other is None:
        is_dead = False
    elif other.is_of_this_place:
        # As long as we have it nobody else of this host removes what lies there.
        taken = _bind(other.nonce) if other.is_dead else None
        is_dead = taken is not None
    else:
        is_dead = other.has_lock and has_lock
    try:
        if not is_dead:
            raise BlockingIOError(errno.EWOULDBLOCK, _words(file, other))
        if _read(file) == other:  # nobody has done so in between
            file.unlink(missing_ok=True)
    finally:
        if taken is not None:
            taken.close()


def _read(file: Path) -> _Writer | None:
    try:
        return msgspec.json.decode(file.read_bytes(), type=_Writer)
    except (OSError, ValueError, msgspec.DecodeError):  # about to be written, or its writer was killed before it could
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
    """Words on who has the ``flock`` of a file, as far as that can be known."""
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
    """Boot, and namespaces of processes and of the network: numbers and sockets are known to all who have the same."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return " ".join([boot, *(str(os.stat(f"/proc/self/ns/{kind}").st_ino) for kind in ("pid", "net"))])


def _started(pid: int) -> int:
    """Time at which a process started, in ticks since the boot; 0 for one that has ended."""
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
    """Option of the mount of ``device`` by which its locks are of one host only, or its type; "" where there is none.

    >>> local_locks("36 35 0:52 / /home rw - nfs4 server:/home rw,vers=4.2,local_lock=all", "0:52")
    'mounted with local_lock=all'
    """
    mount = _mount(mountinfo, device)
    if mount.kind in LOCAL_TYPES:
        return f"of type {mount.kind}"
    found = sorted(LOCAL_OPTIONS & mount.options)
    return f"mounted with {found[0]}" if found else ""
