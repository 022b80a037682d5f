"""Mounts of a shared folder under test, and the process that serves them; see the docstring of the package."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any, Literal, final

from workbench.cluster import needs
from workbench.cluster.helpers import PATIENCE_S
from workbench.cluster.hosts import Cluster
from workbench.cluster.needs import ClusterError, UnavailableError
from workbench.cluster.shared_folder.mounts import unmount
from workbench.cluster.shared_folder.protocol import OPEN, READ

_OPERATIONS = {"read": READ, "open": OPEN}
_PROJECT = Path(__file__).parents[3]


@final
class SharedFolder:
    """Mounts of ``root``; close it, or use it in a ``with`` block: this ends mounts and process, even with readers.

    ``rate_bytes_s`` is for all hosts together, ``latency_s`` for each request; ``locks=False`` refuses locks with
    ENOLCK, like file systems that are mounted without locks. Paths of faults are relative to ``root``. May be called
    from several threads.
    """

    def __init__(
        self, root: str | Path, rate_bytes_s: float | None = None, latency_s: float = 0.0, *, locks: bool = True
    ) -> None:
        needs.require_fuse()
        self._root = Path(root).resolve(strict=True)
        self._lock = threading.Lock()
        self._folder = Path(tempfile.mkdtemp(prefix="shared-folder-"))
        self._folder.chmod(0o755)  # users of a host may look in
        self._mounts: list[tuple[Path, str]] = []
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            words = [str(os.getpid()), str(self._root), str(self._folder), str(locks), str(theirs.fileno())]
            self._server = subprocess.Popen(
                [sys.executable, "-S", "-m", "workbench.cluster.shared_folder.server", *words],
                cwd="/",
                env={**os.environ, "PYTHONPATH": str(_PROJECT)},
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        try:
            self.rate(rate_bytes_s)
            self.lag(latency_s)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> SharedFolder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def mount(self, host: str, cluster: Cluster | None = None) -> Path:
        """Mount it on a host of a cluster, at a path that is the same on all; or here, at a path of its own.

        A host that was killed and booted needs a new mount; its earlier reads still count.
        """
        folder = self._folder / ("hosts" if cluster else host)
        folder.mkdir(exist_ok=cluster is not None)
        namespace = str(cluster.path(host, "").parent / "ns" / "mnt") if cluster else ""
        try:
            self._ask("mount", host=host, folder=str(folder), namespace=namespace)
        except PermissionError as error:
            raise UnavailableError(f"this root may not mount ({error}): docker run --privileged ...") from error
        self._mounts.append((folder, namespace))
        return folder

    def bytes(self, host: str | None = None) -> int:
        """Bytes that a host has read, or all hosts."""
        return self._count("bytes", host)

    def opens(self, host: str | None = None) -> int:
        """Files that were opened."""
        return self._count("opens", host)

    def listings(self, host: str | None = None) -> int:
        """Folders that were listed, each whole listing once."""
        return self._count("listings", host)

    def lookups(self, host: str | None = None) -> int:
        """Names that were looked up: once by each mount for a folder, at each open and stat for a file."""
        return self._count("lookups", host)

    def reset(self) -> None:
        """Count from zero again."""
        self._ask("reset")

    def rate(self, bytes_s: float | None) -> None:
        """Limit what all hosts together read, from their next requests on; ``None``: no more."""
        self._ask("rate", bytes_s=bytes_s)

    def lag(self, seconds: float, host: str | None = None) -> None:
        """Delay the answer to each request, of one host or of all that have no delay of their own."""
        self._ask("lag", seconds=seconds, host=host)

    def stall(self, host: str | None = None, *, killable: bool = True) -> None:
        """Answer nothing until ``heal``, for a host or for all that have a mount.

        A killed reader ends; with ``killable=False`` it stays in uninterruptible sleep until ``heal``.
        """
        self._ask("stall", host=host, is_killable=killable)

    def stalled(self, host: str | None = None) -> int:
        """Requests that wait for the end of a stall."""
        return int(self._ask("held", host=host))

    def heal(self, host: str | None = None) -> None:
        """Undo stalls, corrupt bytes and failures: all, or those that were made for one host."""
        self._ask("heal", host=host)

    def corrupt(self, path: str | Path, offset: int, *, host: str | None = None, times: int | None = None) -> None:
        """Serve a byte with all bits flipped, to one host or to all; ``times`` counts reads of that byte."""
        self._fault(path, "read", host=host, left=times, offset=offset)

    def fail(
        self,
        path: str | Path,
        number: int,
        *,
        on: Literal["read", "open"] = "read",
        host: str | None = None,
        times: int | None = None,
    ) -> None:
        """Let reads, or ``open``, of a file fail with an errno. At ESTALE the kernel itself tries again."""
        self._fault(path, on, host=host, left=times, number=number)

    def close(self) -> None:
        """Unmount everywhere and end the server; later calls do nothing."""
        self._control.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._server.wait(PATIENCE_S)
        self._server.kill()
        self._server.wait(PATIENCE_S)
        while self._mounts:
            folder, namespace = self._mounts.pop()
            unmount(str(folder), namespace)  # a server that was killed has not unmounted
        for folder in (*self._folder.glob("*"), self._folder):
            with contextlib.suppress(OSError):
                folder.rmdir()

    def _count(self, what: str, host: str | None) -> int:
        return int(self._ask("count", host=host).get(what, 0))

    def _fault(self, path: str | Path, on: str, **words: Any) -> None:
        if not (self._root / path).is_file():
            raise FileNotFoundError(errno.ENOENT, f"there is no such file in {self._root}", str(path))
        self._ask("fault", path=os.path.normpath(path), operation=_OPERATIONS[on], **words)

    def _ask(self, verb: str, **words: Any) -> Any:
        with self._lock:
            try:
                self._control.send(json.dumps([verb, words]).encode())
                said = self._control.recv(1 << 16)
            except OSError as error:
                raise ClusterError(f"the server of {self._root} has ended ({error}), or was closed") from error
        if not said:
            raise ClusterError(f"the server of {self._root} has ended")
        answer, number, text = json.loads(said)
        if number:
            raise OSError(number, text)
        return answer
